"""ActivationSkew: the 16 activations of a slice, element k delayed by k more cycles than element 0."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.machine import BLOCK


class ActivationSkew(wiring.Component):
    """`act{k}` = byte k of `data` after k + 1 enabled cycles (`LATENCY` = 1 for element 0). No reset.

    A triangle of registers, kept as two halves of at most 64 bits that lose a byte per step (cheap to simulate; in
    the device a shift register of LUTs per bit). Cost: 128 LUT as shift registers, 128 FF.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    def __init__(self):
        super().__init__({"en": In(1), "data": In(8 * BLOCK)} | {f"act{k}": Out(8) for k in range(BLOCK)})

    def elaborate(self, platform):
        m = Module()
        halves = (range(BLOCK // 2), range(BLOCK // 2, BLOCK))
        for lanes in halves:
            previous = {k: self.data.word_select(k, 8) for k in lanes}
            for stage in range(lanes[-1] + 1):
                remaining = [k for k in lanes if k >= stage]
                held = Signal(8 * len(remaining), name=f"stage{stage}_{lanes[0]}", reset_less=True)
                with m.If(self.en):
                    m.d.sync += held.eq(Cat(*(previous[k] for k in remaining)))
                previous = {k: held.word_select(i, 8) for i, k in enumerate(remaining)}
                if stage in previous:
                    m.d.comb += getattr(self, f"act{stage}").eq(previous[stage])
        return m
