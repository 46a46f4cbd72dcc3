"""The weight stream as a fluid: LD fills FIFOs, MV drains them. Times are cycles, numbers or arrays that broadcast.

LD brings rho words a cycle, at most `prefetch` words ahead of the array; the array takes up to one a cycle. With segments of words in
order, segment i = words start_i .. end_i of the stream, consumed from S_i on, the last word of segment i is there at

    L_i = max(L_{i-1}, gate + latency) + w_i / rho                         LD brings one word after the other
    L_i >= S_j + (end_i - prefetch - start_j) / rho   for every j <= i     the FIFOs were full when j began

and its consumption ends at E_i = max(S_i + cycles_i, L_i + FIFO latency). Both bounds are exact for a fluid whose consumption is never
slower than rho while the FIFOs are not full, which holds because a slower consumer keeps them full. Where the FIFOs hold all that was
asked for (end_i - start_j < prefetch) the second bound lies before S_j, and moves nothing that happens after it; so it needs no
condition, and its maximum over j is one running number.
"""

from dataclasses import dataclass

import numpy as np

from headrace.mapping.analytic_timing import LD_DONE_CYCLES, RAW_FIFO_CYCLES, MachineColumns

@dataclass
class WeightFlow:
    """State of LD and MV."""

    machine: MachineColumns
    loaded: np.ndarray | float = -np.inf
    """When the last word of all so far is there."""
    gate: np.ndarray | float = 0.0
    """Before this no further load may start."""
    taken: np.ndarray | float = 0.0
    """When the array has taken all words so far."""
    position: np.ndarray | float = 0.0
    full: np.ndarray | float = -np.inf
    """The second bound at end = 0, over all segments so far."""

    def __post_init__(self):
        self.cycles_per_word = 1 / self.machine.words_per_cycle
        self.row_cycles = np.maximum(self.machine.ports, self.cycles_per_word)  # of a word that LDV writes row by row
        self.latency, self.prefetch = self.machine.restart_cycles, self.machine.prefetch_words

    def hold(self, time) -> None:
        """No load from here on starts before `time`."""
        self.gate = np.maximum(self.gate, time)

    def _idle_until(self):
        return np.maximum(self.loaded, self.gate + self.latency)

    def vector(self, words):
        """LDV of `words` words in all: a row of every port in turn. Returns when it is done."""
        self.loaded = self._idle_until() + words * self.row_cycles
        return self.loaded + LD_DONE_CYCLES

    def gather(self, words):
        """LDA: one slice a word. Returns when it is done."""
        self.loaded = self._idle_until() + words * self.cycles_per_word
        return self.loaded + LD_DONE_CYCLES

    def multiply(self, words, cycles, ready, ahead=None):
        """A segment of `words` that the array needs at least `cycles` for and may begin at `ready`; at most `ahead` words of it are
        loaded before. Returns (time at which its last word is taken, True where the load decided it)."""
        start = np.maximum(self.taken, ready)
        self.full = np.maximum(self.full, start - (self.position + self.prefetch) * self.cycles_per_word)
        self.position = self.position + words
        loaded = np.maximum(self._idle_until() + words * self.cycles_per_word, self.full + self.position * self.cycles_per_word)
        if ahead is not None:
            loaded = np.maximum(loaded, start + (words - np.minimum(words, ahead)) * self.cycles_per_word)
        self.loaded = loaded
        arrived, busy = loaded + RAW_FIFO_CYCLES, start + cycles
        self.taken = np.maximum(busy, arrived)
        return self.taken, arrived > busy
