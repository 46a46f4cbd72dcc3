"""ScaleLane: one result to float32 and its two scales; emitted once as Verilog module ``hr_scale_lane``."""

from functools import cache

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.emit import to_verilog
from headrace.hw.f32_from_int import F32FromInt32
from headrace.hw.f32_mul import F32Mul

MODULE = "hr_scale_lane"


class ScaleLane(wiring.Component):
    """y = f32(acc) (*) (s_a (*) s_w), free-running. Latency 2 multiplies (`LATENCY`); initiation interval 1.

    Cost: two F32Mul and one F32FromInt32.
    """

    LATENCY = 2 * F32Mul.LATENCY
    INITIATION_INTERVAL = 1

    acc: In(32)
    s_a: In(32)
    s_w: In(32)
    y: Out(32)

    def elaborate(self, platform):
        m = Module()
        m.submodules.scales = scales = F32Mul()
        m.submodules.convert = convert = F32FromInt32()
        m.submodules.product = product = F32Mul()
        m.d.comb += [scales.a.eq(self.s_a), scales.b.eq(self.s_w), convert.x.eq(self.acc)]
        value = convert.y
        for i in range(F32Mul.LATENCY - F32FromInt32.LATENCY):
            delayed = Signal(32, name=f"value{i}", reset_less=True)
            m.d.sync += delayed.eq(value)
            value = delayed
        m.d.comb += [product.a.eq(value), product.b.eq(scales.y), self.y.eq(product.y)]
        return m


@cache
def lane_sources() -> dict[str, str]:
    """File name to text of the one lane module that every instance shares."""
    return {f"{MODULE}.v": to_verilog(ScaleLane(), MODULE)}


def lane_instance(*, acc, s_a, s_w, y) -> Instance:
    """An instance of the shared module."""
    return Instance(MODULE, i_clk=ClockSignal(), i_rst=ResetSignal(), i_acc=acc, i_s_a=s_a, i_s_w=s_w, o_y=y)
