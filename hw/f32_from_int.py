"""int32 to float32: the contract's `f32(acc)`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.f32_bits import BIAS, normalise, rounds_up


class F32FromInt32(wiring.Component):
    """y = f32(x): a signed 32-bit integer, all of -2**31 .. 2**31 - 1, rounded to nearest even; 0 gives +0.

    A free-running pipeline without enable, valid or reset of data: operand before one clock edge, result after
    the `LATENCY`-th edge, a new operand every cycle. Stages: magnitude; normalise; round and pack.

    Cost, synthesised by Yosys for UltraScale+ (`tests/synth/test_f32_synth.py` bounds it):
    185 LUT, 107 FF, no DSP; at most 11 cells between registers, 8 of them the CARRY4 of the rounding,
    and at most 8 LUTs in a row (the normalisation).
    """

    LATENCY = 3
    INITIATION_INTERVAL = 1

    x: In(signed(32))
    y: Out(32)

    def elaborate(self, platform):
        m = Module()

        # Stage 1: the magnitude, up to 2**31. It is below 2**16 for 0 .. 2**16 - 1 and for -(2**16 - 1) .. -1, which
        # is read off the operand, beside the carry chain.
        magnitude = Signal(32, reset_less=True)
        sign1 = Signal(reset_less=True)
        top16_empty = Signal(reset_less=True)
        bits = self.x.as_unsigned()
        m.d.sync += [
            magnitude.eq((bits ^ bits[31].replicate(32)) + bits[31]),
            top16_empty.eq(Mux(bits[31], bits[16:31].all() & bits[:16].any(), ~bits[16:31].any())),
            sign1.eq(bits[31]),
        ]

        # Stage 2: the leading one at bit 31, whose weight is 2**31 less the shift.
        normal = Signal(32, reset_less=True)
        sign2 = Signal(reset_less=True)
        exponent = Signal(8, reset_less=True)
        aligned, shift = normalise(m, magnitude, "magnitude", first_empty=top16_empty)
        m.d.sync += [
            normal.eq(aligned),
            exponent.eq(BIAS + 31 - shift),
            sign2.eq(sign1),
        ]

        # Stage 3: round, a carry out of the fraction incrementing the exponent above it. Bit 31 is 0 for 0 alone.
        result = Signal(32, reset_less=True)
        rounded = Signal(31)
        m.d.comb += rounded.eq(Cat(normal[8:31], exponent) + rounds_up(normal[8], normal[7], normal[:7].any()))
        m.d.sync += result.eq(Mux(normal[31], Cat(rounded, sign2), Const(0, 32)))
        m.d.comb += self.y.eq(result)
        return m
