"""BurstGenerator: read addresses of strided runs of words, for all memory ports in lockstep."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.axi import ADDRESS_BITS, BEAT_BYTES, BURST_BEATS, Address

ADDRESSABLE_WORDS = 1 << (ADDRESS_BITS - exact_log2(BEAT_BYTES))


class Runs(data.StructLayout):
    """`count` runs of `words` words; run i starts at word base + i * stride (mod 2**32)."""

    def __init__(self):
        super().__init__({"base": 32, "words": 32, "count": 32, "stride": 32, "pc": 16})


class BurstGenerator(wiring.Component):
    """Splits runs into bursts and sends each to every port: word w is beat w of all ports, so addresses are equal.

    A burst ends at the next multiple of `burst_beats` words or at the end of its run. It is issued when the ports'
    read FIFOs have room for all of it: `capacity` words less those issued and not yet `returned` (one pulse a word).
    The next burst follows when every port has taken the last one.

    A run with words past `memory_words` is not issued from the burst that would cross the end: `error` pulses with
    `error_pc`, and the generator stays silent until reset.

    Rate: one burst a cycle, also from one item of `runs` to the next. LATENCY: cycles from an accepted item to its
    first AR. Cost (Yosys, xcup, 2 ports): 269 FF, 259 LUT, 42 CARRY4.
    """

    LATENCY = 2
    INITIATION_INTERVAL = 1

    def __init__(self, *, ports: int, burst_beats: int, capacity: int, memory_words: int):
        if burst_beats not in (1, 2, 4, 8, 16):
            raise ValueError(f"burst_beats = {burst_beats}: a power of two up to {BURST_BEATS} is allowed")
        if capacity < burst_beats:
            raise ValueError(f"capacity = {capacity} words hold no burst of {burst_beats}")
        if not 1 <= memory_words <= ADDRESSABLE_WORDS:
            raise ValueError(f"memory_words = {memory_words}: 1..{ADDRESSABLE_WORDS} is allowed ({ADDRESS_BITS} address bits)")
        self.ports, self.burst_beats, self.capacity, self.memory_words = ports, burst_beats, capacity, memory_words
        super().__init__(
            {
                "runs": In(stream.Signature(Runs())),
                "ar": Out(stream.Signature(Address())).array(ports),
                "returned": In(1),
                "error": Out(1),
                "error_pc": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        runs = self.runs.payload
        live = Signal()
        dead = Signal()
        address = Signal(32)  # of the next burst
        left = Signal(32)  # words of this run from there on
        run_base = Signal(32)
        words = Signal(32)
        count = Signal(32)  # runs left, this one included
        stride = Signal(32)
        pc = Signal(16)
        free = Signal(range(self.capacity + 1), init=self.capacity)

        offset_bits = exact_log2(self.burst_beats)
        room = Signal(range(self.burst_beats + 1))
        beats = Signal(range(self.burst_beats + 1))
        ends_run = Signal()
        end = Signal(33)
        offset = address[:offset_bits] if offset_bits else Const(0, 1)
        m.d.comb += [
            room.eq(self.burst_beats - offset),
            ends_run.eq(left <= room),
            beats.eq(Mux(ends_run, left, room)),
            end.eq(address + beats),
        ]

        slot = Signal()
        beyond = Signal()
        issue = Signal()
        finish = Signal()
        valids = [Signal(name=f"ar_valid_{i}") for i in range(self.ports)]
        m.d.comb += [
            slot.eq(1),
            beyond.eq(live & (end > self.memory_words)),
            issue.eq(live & ~beyond & slot & (free >= beats)),
            finish.eq(issue & ends_run & (count == 1)),
            self.runs.ready.eq(~dead & (~live | finish)),
        ]
        waiting = 0
        for valid, ar in zip(valids, self.ar, strict=True):
            waiting = waiting | (valid & ~ar.ready)
        m.d.comb += slot.eq(~waiting)

        with m.If(issue):
            with m.If(~ends_run):
                m.d.sync += [address.eq(end), left.eq(left - beats)]
            with m.Else():
                m.d.sync += [
                    address.eq(run_base + stride),
                    run_base.eq(run_base + stride),
                    left.eq(words),
                    count.eq(count - 1),
                ]
        with m.If(finish | beyond):
            m.d.sync += live.eq(0)
        with m.If(self.runs.valid & self.runs.ready):
            m.d.sync += [
                live.eq((runs.words != 0) & (runs.count != 0)),
                address.eq(runs.base),
                run_base.eq(runs.base),
                left.eq(runs.words),
                words.eq(runs.words),
                count.eq(runs.count),
                stride.eq(runs.stride),
                pc.eq(runs.pc),
            ]
        m.d.sync += [
            free.eq(free - Mux(issue, beats, 0) + self.returned),
            self.error.eq(beyond),
        ]
        with m.If(beyond):
            m.d.sync += [dead.eq(1), self.error_pc.eq(pc)]

        ar_address = Signal(ADDRESS_BITS)
        ar_length = Signal(4)
        with m.If(issue):
            m.d.sync += [ar_address.eq(address << exact_log2(BEAT_BYTES)), ar_length.eq(beats - 1)]
        for valid, ar in zip(valids, self.ar, strict=True):
            m.d.sync += valid.eq(issue | (valid & ~ar.ready))
            m.d.comb += [ar.valid.eq(valid), ar.payload.addr.eq(ar_address), ar.payload.len.eq(ar_length)]
        return m
