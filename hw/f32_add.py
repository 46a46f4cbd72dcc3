"""float32 adder: the contract's `a (+) b`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.f32_bits import normalise, pack, rounds_up


class F32Add(wiring.Component):
    """y = a (+) b, rounded to nearest even, as section 2 of the numeric contract defines it.

    Subnormal inputs count as zero of their sign; a result whose exact magnitude is below 2**-126 is zero of its
    sign; an exact zero is +0 except for (-0) (+) (-0); overflow is infinity; the NaN is 0x7FC00000.

    A free-running pipeline without enable, valid or reset of data: operands before one clock edge, result after
    the `LATENCY`-th edge, new operands every cycle. Stages: order by magnitude; align; add; normalise; round and
    pack. Guard, round and sticky bits suffice: where more than one place cancels, the operands' exponents differ
    by at most one, and nothing was shifted past the guard bit.

    Cost, synthesised by Yosys for UltraScale+ (`tests/synth/test_f32_synth.py` bounds it):
    428 LUT, 234 FF, no DSP; at most 11 cells between registers, 8 of them the CARRY4 of the rounding,
    and at most 9 LUTs in a row (the alignment).
    """

    LATENCY = 5
    INITIATION_INTERVAL = 1

    a: In(32)
    b: In(32)
    y: Out(32)

    def elaborate(self, platform):
        m = Module()

        # Stage 1: the operand of the larger magnitude first, and the distance of the exponents (from the
        # exponents alone, beside the wide comparison). A zero exponent makes the significand 0.
        large = Signal(24, reset_less=True)
        small = Signal(24, reset_less=True)
        exponent1 = Signal(8, reset_less=True)
        distance = Signal(8, reset_less=True)
        sign1 = Signal(reset_less=True)
        subtract1 = Signal(reset_less=True)
        exponent_a, exponent_b = self.a[23:31], self.b[23:31]
        significand_a = Signal(24)
        significand_b = Signal(24)
        swap = Signal()
        m.d.comb += [
            significand_a.eq(Mux(exponent_a.any(), Cat(self.a[:23], 1), 0)),
            significand_b.eq(Mux(exponent_b.any(), Cat(self.b[:23], 1), 0)),
            swap.eq(self.a[:31] < self.b[:31]),
        ]
        m.d.sync += [
            large.eq(Mux(swap, significand_b, significand_a)),
            small.eq(Mux(swap, significand_a, significand_b)),
            exponent1.eq(Mux(swap, exponent_b, exponent_a)),
            sign1.eq(Mux(swap, self.b[31], self.a[31])),
            subtract1.eq(self.a[31] ^ self.b[31]),
            distance.eq(Mux(exponent_a < exponent_b, exponent_b - exponent_a, exponent_a - exponent_b)),
        ]

        # Stage 2: align. 24 bits of significand, guard and round; all that falls below is the sticky bit. A
        # distance of 32 or more leaves only the sticky bit, as 26 does.
        large2 = Signal(24, reset_less=True)
        small2 = Signal(27, reset_less=True)
        exponent2 = Signal(8, reset_less=True)
        sign2 = Signal(reset_less=True)
        subtract2 = Signal(reset_less=True)
        nan2 = Signal(reset_less=True)
        infinite2 = Signal(reset_less=True)
        near = Signal(5)
        shifted = Signal(52)
        m.d.comb += [
            near.eq(distance[:5] | distance[5:8].any().replicate(5)),
            shifted.eq(Cat(Const(0, 28), small) >> near),
        ]
        special = Signal()
        m.d.comb += special.eq(exponent1.all())
        m.d.sync += [
            large2.eq(large),
            small2.eq(Cat(shifted[:26].any(), shifted[26:])),
            exponent2.eq(exponent1),
            sign2.eq(sign1),
            subtract2.eq(subtract1),
            # Both are special exactly when the larger is and the exponents are equal.
            nan2.eq(special & (large[:23].any() | (subtract1 & (distance == 0)))),
            infinite2.eq(special),
        ]

        # Stage 3: add or subtract in one carry chain; the result is not negative, the larger coming first.
        total = Signal(28, reset_less=True)
        top16_empty = Signal(reset_less=True)
        exponent3 = Signal(8, reset_less=True)
        sign3 = Signal(reset_less=True)
        subtract3 = Signal(reset_less=True)
        nan3 = Signal(reset_less=True)
        infinite3 = Signal(reset_less=True)
        sum_with_carry_in = Signal(29)
        m.d.comb += sum_with_carry_in.eq(
            Cat(1, Const(0, 3), large2) + Cat(subtract2, small2 ^ subtract2.replicate(27), subtract2)
        )
        m.d.sync += [
            total.eq(sum_with_carry_in[1:]),
            top16_empty.eq(~sum_with_carry_in[13:].any()),
            exponent3.eq(exponent2),
            sign3.eq(sign2),
            subtract3.eq(subtract2),
            nan3.eq(nan2),
            infinite3.eq(infinite2),
        ]

        # Stage 4: normalise, with the leading one at bit 27; the exponent field falls by the shift less one, and
        # the value is flushed where that leaves none. A total that small lost no bit in the alignment, so it is exact.
        normal = Signal(28, reset_less=True)
        exponent4 = Signal(8, reset_less=True)
        over4 = Signal(reset_less=True)
        last4 = Signal(reset_less=True)
        sign4 = Signal(reset_less=True)
        zero4 = Signal(reset_less=True)
        nan4 = Signal(reset_less=True)
        infinite4 = Signal(reset_less=True)
        aligned, shift = normalise(m, total, "total", first_empty=top16_empty)
        vanishes = Signal()
        m.d.comb += vanishes.eq(total == 0)
        # Whether the exponent field becomes 255, or 254, the last that is finite: only a shift of 0 or 1 gets there.
        shift_0 = total[27]
        shift_1 = ~total[27] & total[26]
        m.d.sync += [
            normal.eq(aligned),
            exponent4.eq(exponent3 + 1 - shift),
            over4.eq(shift_0 & (exponent3 == 254)),
            last4.eq(Mux(shift_0, exponent3 == 253, shift_1 & (exponent3 == 254))),
            zero4.eq(vanishes | (shift > exponent3)),
            sign4.eq(sign3 & ~(vanishes & subtract3)),
            nan4.eq(nan3),
            infinite4.eq(infinite3),
        ]

        # Stage 5: round and pack, a carry out of the fraction incrementing the exponent above it; from 254, which
        # is even, that shows in the lowest bit of the exponent.
        result = Signal(32, reset_less=True)
        rounded = Signal(31)
        overflow = Signal()
        m.d.comb += [
            rounded.eq(Cat(normal[4:27], exponent4) + rounds_up(normal[4], normal[3], normal[:3].any())),
            overflow.eq(over4 | (last4 & rounded[23])),
        ]
        m.d.sync += result.eq(
            pack(sign=sign4, rounded=rounded, overflow=overflow, nan=nan4, infinite=infinite4, zero=zero4)
        )
        m.d.comb += self.y.eq(result)
        return m
