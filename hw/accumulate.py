"""Accumulate: int32 accumulators at the ends of the chains, and the FIFO of finished stripes."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from headrace.hw.decode_unit import MvSizes
from headrace.hw.dsp_chain import FIELD_BITS
from headrace.hw.group_fifo import GroupFifo
from headrace.hw.machine import Machine

RESULT_STRIPES = 8
"""Stripes between array and scale unit. A cascade cannot stall half-way: a stripe's last slice enters the array only
when a place here is reserved for it."""


class Accumulate(wiring.Component):
    """acc = (first ? 0 : acc) + sum, per row, modulo 2**32; a stripe's results go to the FIFO after its last slice.

    `valid`, `first`, `last` accompany the sums `low{c}` (row 2c), `high{c}` + `carry{c}` (row 2c + 1). `room` and
    `reserve` are the credits of the FIFO; `available`, `read`, `group`, `pop`, `q` its read side (`GroupFifo`), group
    g being rows g * scale_lanes onwards.

    Exact for |sum| <= 2**31 - 1, that is K <= 133,144 for weights and activations of magnitude 127. Latency from
    `last` to `available` 2 cycles (`LATENCY`); initiation interval 1. Cost: R adders of 32 bits, 8 R words of LUT RAM.
    """

    LATENCY = 2
    INITIATION_INTERVAL = 1

    def __init__(self, *, machine: Machine):
        self.sizes = sizes = MvSizes(machine)
        self.fifo = GroupFifo(groups=sizes.result_groups, width=32 * sizes.scale_lanes, depth=RESULT_STRIPES)
        reader = {name: self.fifo.signature.members[name] for name in ("room", "reserve", "available", "read", "group", "pop", "q")}
        chains = range(sizes.rows // 2)
        super().__init__(
            {"valid": In(1), "first": In(1), "last": In(1)}
            | reader
            | {f"low{c}": In(signed(FIELD_BITS)) for c in chains}
            | {f"high{c}": In(signed(FIELD_BITS)) for c in chains}
            | {f"carry{c}": In(1) for c in chains}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = self.fifo
        totals = []
        for c in range(self.sizes.rows // 2):
            low, high = getattr(self, f"low{c}"), getattr(self, f"high{c}")
            even = Signal(32, name=f"acc{2 * c}", reset_less=True)
            odd = Signal(32, name=f"acc{2 * c + 1}", reset_less=True)
            with m.If(self.valid):
                m.d.sync += [
                    even.eq(Mux(self.first, 0, even) + low),
                    odd.eq(Mux(self.first, 0, odd) + high + getattr(self, f"carry{c}")),
                ]
            totals += [even, odd]
        finished = Signal()
        m.d.sync += finished.eq(self.valid & self.last)
        m.d.comb += [
            fifo.write.eq(finished),
            fifo.data.eq(Cat(*totals)),
            fifo.reserve.eq(self.reserve),
            fifo.read.eq(self.read),
            fifo.group.eq(self.group),
            fifo.pop.eq(self.pop),
            self.room.eq(fifo.room),
            self.available.eq(fifo.available),
            self.q.eq(fifo.q),
        ]
        return m
