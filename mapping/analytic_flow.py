"""The weight stream as a fluid: LD fills FIFOs, MV drains them. Times are cycles, numbers or arrays that broadcast.

LD brings rho words a cycle, at most `prefetch` words ahead of the array; the array takes up to one a cycle. With segments of words in
order, segment i = words start_i .. end_i of the stream, consumed from S_i on, the last word of segment i is there at

    L_i = max(L_{i-1}, gate + latency) + w_i / rho                                LD brings one word after the other
    L_i >= S_j + (end_i - prefetch - start_j) / rho   for every j <= i            the FIFOs were full when j began

and its consumption ends at E_i = max(S_i + cycles_i, L_i + FIFO latency). Both bounds are exact for a fluid whose consumption is never
slower than rho while the FIFOs are not full, which holds because a slower consumer keeps them full.
"""

from dataclasses import dataclass, field

import numpy as np

from headrace.mapping.analytic_timing import LD_DONE_CYCLES, RAW_FIFO_CYCLES, MachineColumns

LOOK_BACK = 5
"""Earlier segments whose full FIFOs are considered; older ones bound nothing that these do not."""


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
    begun: list = field(default_factory=list)

    def __post_init__(self):
        self.rho, self.latency, self.prefetch = self.machine.words_per_cycle, self.machine.restart_cycles, self.machine.prefetch_words

    def hold(self, time) -> None:
        """No load from here on starts before `time`."""
        self.gate = np.maximum(self.gate, time)

    def vector(self, words, runs=1):
        """LDV of `words` words in all: a row of every port in turn. Returns when it is done."""
        del runs  # runs follow each other without a gap
        self.loaded = np.maximum(self.loaded, self.gate + self.latency) + words * np.maximum(self.machine.ports, 1 / self.rho)
        return self.loaded + LD_DONE_CYCLES

    def gather(self, words):
        """LDA: one slice a word. Returns when it is done."""
        self.loaded = np.maximum(self.loaded, self.gate + self.latency) + words / self.rho
        return self.loaded + LD_DONE_CYCLES

    def multiply(self, words, cycles, ready, ahead=np.inf):
        """A segment of `words` that the array needs at least `cycles` for and may begin at `ready`; at most `ahead` words of it are
        loaded before. Returns (time at which its last word is taken, True where the load decided it)."""
        start = np.maximum(self.taken, ready)
        end = self.position + words
        loaded = np.maximum(self.loaded, self.gate + self.latency) + words / self.rho
        own = (self.position, start, np.minimum(self.prefetch, ahead))
        for begin, time, reach in (*self.begun, own):
            beyond = end - reach - begin
            loaded = np.where(beyond > 0, np.maximum(loaded, time + beyond / self.rho), loaded)
        arrived = loaded + RAW_FIFO_CYCLES
        self.begun = [*self.begun, (self.position, start, self.prefetch)][-LOOK_BACK:]
        self.position, self.loaded = end, loaded
        self.taken = np.maximum(start + cycles, arrived)
        return self.taken, arrived > start + cycles
