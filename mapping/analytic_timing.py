"""Stated latencies of the machine's blocks, and machines as columns of numbers: what the closed forms of `analytic` are made of.

Every number is an attribute of a block or a distance that the block's docstring states; none is fitted to a result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from headrace.hw.burst_generator import BurstGenerator
from headrace.hw.command_queue import CommandQueue
from headrace.hw.decode_unit import DecodeUnit
from headrace.hw.group_fifo import GroupFifo
from headrace.hw.isa import Op
from headrace.hw.machine import BLOCK, LANES, META_BITS, Machine
from headrace.hw.mv_array import MvArray
from headrace.hw.mv_unit import MvUnit
from headrace.hw.mv_writer import MvWriter
from headrace.hw.scale_lane import ScaleLane
from headrace.hw.sequencer import Sequencer
from headrace.hw.st_unit import FIFO_BEATS, StUnit
from headrace.hw.stream_fifo import StreamFifo
from headrace.hw.tokens import TokenCounters
from headrace.hw.weight_fifo import WeightFifo
from headrace.mapping.analytic_dram import dram_rates

TOKEN_CYCLES = TokenCounters.LATENCY
"""From a retirement to the earliest start of a command in another queue that waits for it."""

START_CYCLES = CommandQueue.LATENCY
"""From dispatch by the sequencer to the earliest start in an idle unit."""

DISPATCH_CYCLES = 1
"""Sequencer cycles of an instruction for a unit (its docstring)."""

SYS_CYCLES = {Op.MUL: 4, Op.RDV: 6}
"""Sequencer cycles of SYS instructions that take other than SYS_DEFAULT_CYCLES (its docstring)."""

SYS_DEFAULT_CYCLES = 2
BRANCH_TAKEN_CYCLES = 3 + Sequencer.LATENCY
"""3 in the sequencer, then the target is fetched and decoded again."""

BARRIER_CYCLES = 2
"""Of BAR beside the waiting."""

LD_DONE_CYCLES = 2
"""From the last accepted unit of data to LdUnit's done (its docstring)."""

RAW_FIFO_CYCLES = StreamFifo.LATENCY

MV_FRONT_CYCLES = MvUnit.FRONT_CYCLES
"""The least distance between two MVs."""

MV_START_CYCLES = MvUnit.START_CYCLES
"""From the start of an MV to the first word it takes. The front is still fetching s_a then."""

MV_DONE_CYCLES = 3
"""From the last accepted row to MvWriter's done (its docstring)."""

ST_DONE_CYCLES = 2
"""From the last response to StUnit's done: its count of unanswered writes, then the pulse."""

WRITE_ROUND_TRIP_CYCLES = 4
"""Cycles that an unanswered write is counted beside the memory's latency: port registers, memory's answer queue, count."""

OUTSTANDING_WRITES = 32
"""Of StUnit: writes without a response."""


@dataclass(frozen=True, kw_only=True)
class MachineColumns:
    """The fields of a `Machine` that decide cycles, as numbers or as arrays of any one shape (a machine per element)."""

    clock_hz: np.ndarray
    macs_per_cycle: np.ndarray
    ports: np.ndarray
    port_bytes: np.ndarray
    slots: np.ndarray  # beats per core cycle and port, p/q
    read_latency: np.ndarray
    trefi: np.ndarray
    trfc: np.ndarray
    channel_slots: np.ndarray  # beats per core cycle that a DRAM channel has for a port, more than `slots` where it is the faster; 0: no channel
    in_flight_words: np.ndarray  # outstanding_bursts * burst_beats: what the ports' read FIFOs hold
    raw_fifo_words: np.ndarray
    weight_fifo_slices: np.ndarray
    queue_depth: np.ndarray

    @classmethod
    def of(cls, machine: Machine) -> "MachineColumns":
        memory = machine.memory
        if memory.dram:
            rates = dram_rates(machine)
            timing = {"slots": rates.slots, "read_latency": rates.read_latency, "trefi": rates.trefi, "trfc": rates.trfc,
                      "channel_slots": rates.channel_slots}  # fmt: skip
        else:
            timing = {
                "slots": memory.beats_per_cycle, "read_latency": memory.read_latency_cycles, "trefi": machine.trefi_cycles,
                "trfc": machine.trfc_cycles, "channel_slots": 0.0,
            }  # fmt: skip
        return cls(
            clock_hz=machine.clock_hz, macs_per_cycle=machine.array.macs_per_cycle, ports=memory.ports, port_bytes=memory.port_bytes, **timing,
            in_flight_words=max(4, memory.outstanding_bursts * memory.burst_beats),
            raw_fifo_words=machine.buffers.raw_fifo_words, weight_fifo_slices=machine.buffers.weight_fifo_slices,
            queue_depth=machine.control.queue_depth,
        )  # fmt: skip

    @classmethod
    def stack(cls, machines: Iterable[Machine]) -> "MachineColumns":
        """Many machines; each field becomes an array [machines, 1], so that contexts broadcast along the second axis."""
        rows = [cls.of(machine) for machine in machines]
        return cls(**{f.name: np.array([[getattr(row, f.name)] for row in rows]) for f in fields(cls)})

    @classmethod
    def columns(cls, values: Mapping[str, np.ndarray]) -> "MachineColumns":
        """From arrays by field name, as a sweep holds them."""
        return cls(**{name: np.asarray(value) for name, value in values.items()})

    # Sizes of docs/machine.md, section 1.

    @cached_property
    def word_bytes(self):
        return self.ports * self.port_bytes

    @cached_property
    def stripe_rows(self):
        return self.macs_per_cycle // BLOCK

    @cached_property
    def scales_per_word(self):
        return self.word_bytes // 4

    @cached_property
    def stripes_per_scale_word(self):
        return self.scales_per_word // self.stripe_rows

    @cached_property
    def meta_groups_per_word(self):
        return 8 * self.word_bytes // (self.stripe_rows * META_BITS)

    def slice_words(self, bits: int):
        return self.stripe_rows * BLOCK * bits // (8 * self.word_bytes)

    # Rates and latencies.

    @cached_property
    def load_cycles(self):
        """From an idle LD unit's command to its first word at a destination."""
        return BurstGenerator.LATENCY + self.read_latency + StreamFifo.LATENCY

    @cached_property
    def refresh_wait(self):
        """Mean cycles that a first word waits because a port refreshes, at a time that knows nothing of refreshes.

        Refreshes of the ports begin d = trefi / ports apart, or together. A word needs every port: it waits for the end of the refresh that began
        last, if that is still on. Over a uniform time: trfc**2 / 2d, or trfc - d/2 where refreshes overlap.
        """
        apart = self.trefi / np.where(self.channel_slots > 0, 1, self.ports)
        return np.where(self.trfc <= apart, self.trfc**2 / (2 * apart), self.trfc - apart / 2)

    @cached_property
    def restart_cycles(self):
        """From the command of an LD unit that stood still to its first word, on average."""
        return self.load_cycles + self.refresh_wait

    @cached_property
    def words_per_cycle(self):
        """Sustained rate of the LD stream.

        A port gives `slots` beats a cycle except in trfc of every trefi cycles, and a word needs a beat of every port. A lead hides a
        refresh: words in flight less the loop from a freed place to its data. Ports of fixed latency refresh one after the other: while one
        does, the others run ahead as far as their lead; a lead of trfc hides their own refresh later, what is missing is lost once for each
        other port. DRAM channels refresh together, but those that are faster than their ports run ahead of them between refreshes, and lose
        what the lead does not hide, or their own rate. A loop longer than the words in flight bounds the rate by itself.
        """
        loop = self.load_cycles + 1
        lead = np.maximum(0, self.in_flight_words / self.slots - loop)
        missing = np.maximum(0, self.trfc - lead)
        lost = self.trfc + (self.ports - 1) * missing
        staggered = self.slots * np.maximum(0.0, 1 - lost / self.trefi)
        # Fully serialised refreshes still leave what one port has in one of its own periods.
        floor = self.slots * (1 - self.trfc / self.trefi) / self.ports
        together = np.minimum(self.channel_slots * (1 - self.trfc / self.trefi), self.slots * (1 - missing / self.trefi))
        rate = np.where(self.channel_slots > 0, together, np.maximum(staggered, floor))
        return np.minimum(rate, self.in_flight_words / loop)

    @cached_property
    def prefetch_words(self):
        """Words that LD can bring before the array takes the first: raw FIFO and port FIFOs."""
        return self.raw_fifo_words + self.in_flight_words

    @cached_property
    def results_cycles(self):
        """Cycles that the scale unit takes for a stripe (its INITIATION_INTERVAL)."""
        return self.stripe_rows // np.minimum(LANES, self.stripe_rows // LANES)

    @cached_property
    def mv_tail_cycles(self):
        """From the last word taken to the retirement of the MV: decode, FIFO, skew, chain, accumulate, scale, write."""
        scale = self.results_cycles + GroupFifo.LATENCY + ScaleLane.LATENCY + 2
        return DecodeUnit.LATENCY + WeightFifo.LATENCY + MvArray.LATENCY + scale + MvWriter.LATENCY + MV_DONE_CYCLES

    def store_cycles(self, items):
        """Of an ST command of `items` single-beat writes, start to done."""
        round_trip = self.read_latency + WRITE_ROUND_TRIP_CYCLES
        interval = np.maximum(1 / self.slots, round_trip / OUTSTANDING_WRITES)
        burst = np.minimum(items, OUTSTANDING_WRITES)  # these leave at the slots' rate, the rest as answers come
        send = (burst / self.slots + (items - burst) * interval) / (1 - self.trfc / self.trefi)
        wait = self.trfc**2 / (2 * self.trefi)  # the first write meets its port's refresh
        return StUnit.LATENCY + wait + send + round_trip + ST_DONE_CYCLES


assert FIFO_BEATS >= StUnit.LATENCY, "the write FIFO must cover its own loop, else an item a cycle is not sustained"
