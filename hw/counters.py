"""Performance counters of 64 bits behind a snapshot latch."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

COUNTER_BASE = 0x80
"""AXI-Lite address of the first counter; 8 bytes each, low word first."""


def counter_address(index: int) -> int:
    return COUNTER_BASE + 8 * index


class Counters(wiring.Component):
    """One counter per event bit; ``cycles`` is the live value of counter 0.

    ``snapshot`` copies all counters at once into a latch, from which ``read_data`` = 32-bit half ``read_index`` (2i: low,
    2i + 1: high half of counter i) comes one cycle later; past the last one it reads 0. ``clear`` sets the counters
    (not the latch) to 0 and wins over counting.

    Latency: an event counts two cycles later (registered event). Initiation interval: 1.
    Cost: 128 FF and about 40 LUT per counter.
    """

    LATENCY = 2
    INITIATION_INTERVAL = 1

    def __init__(self, names: tuple[str, ...]):
        if len(set(names)) != len(names) or not names:
            raise ValueError("counter names must be there and differ from one another")
        self.names = names
        super().__init__(
            {
                "events": In(len(names)),
                "clear": In(1),
                "snapshot": In(1),
                "read_index": In(range(2 * len(names) + 1)),
                "read_data": Out(32),
                "cycles": Out(64),
            }
        )

    def elaborate(self, platform):
        m = Module()
        events = Signal.like(self.events)
        m.d.sync += events.eq(self.events)
        latched = []
        for i, name in enumerate(self.names):
            live, latch = Signal(64, name=name), Signal(64, name=f"{name}_latch")
            with m.If(events[i]):
                m.d.sync += live.eq(live + 1)
            with m.If(self.clear):
                m.d.sync += live.eq(0)
            with m.If(self.snapshot):
                m.d.sync += latch.eq(live)
            latched += [latch[:32], latch[32:]]
            if i == 0:
                m.d.comb += self.cycles.eq(live)
        with m.If(self.clear):
            m.d.sync += events.eq(0)
        with m.Switch(self.read_index):
            for i, half in enumerate(latched):
                with m.Case(i):
                    m.d.sync += self.read_data.eq(half)
            with m.Default():
                m.d.sync += self.read_data.eq(0)
        return m
