"""float32 multiplier: the contract's `a (*) b`."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.f32_bits import BIAS, pack, rounds_up


class F32Mul(wiring.Component):
    """y = a (*) b, rounded to nearest even, as section 2 of the numeric contract defines it.

    Subnormal inputs count as zero of their sign; a result whose exact magnitude is below 2**-126 is zero of its
    sign, which is decided on the product's exponent before rounding; overflow is infinity; the NaN is 0x7FC00000.

    A free-running pipeline without enable, valid or reset of data: operands before one clock edge, result after
    the `LATENCY`-th edge, new operands every cycle. Stages: unpack; 24 x 24 product; normalise and round; pack.

    Cost, synthesised by Yosys for UltraScale+ (`tests/synth/test_f32_synth.py` bounds it):
    2 DSP48E2, 128 LUT, 191 FF; at most 11 cells between registers, 8 of them the CARRY4 of the rounding.
    Yosys joins the two partial products in LUTs and CARRY4 and leaves the DSPs' own registers unused.
    """

    LATENCY = 4
    INITIATION_INTERVAL = 1

    a: In(32)
    b: In(32)
    y: Out(32)

    def elaborate(self, platform):
        m = Module()

        # Stage 1: operands into the multiplier's input registers, exponents added, special cases found.
        significand_a = Signal(24, reset_less=True)
        significand_b = Signal(24, reset_less=True)
        sign1 = Signal(reset_less=True)
        nan1 = Signal(reset_less=True)
        infinite1 = Signal(reset_less=True)
        zero1 = Signal(reset_less=True)
        exponents = Signal(9, reset_less=True)
        exponent_a, exponent_b = self.a[23:31], self.b[23:31]
        zero_a, zero_b = exponent_a == 0, exponent_b == 0
        special_a, special_b = exponent_a.all(), exponent_b.all()
        m.d.sync += [
            significand_a.eq(Cat(self.a[:23], 1)),
            significand_b.eq(Cat(self.b[:23], 1)),
            exponents.eq(exponent_a + exponent_b),
            sign1.eq(self.a[31] ^ self.b[31]),
            zero1.eq(zero_a | zero_b),
            infinite1.eq(special_a | special_b),
            nan1.eq(
                (special_a & self.a[:23].any()) | (special_b & self.b[:23].any())
                | (special_a & zero_b) | (special_b & zero_a)
            ),
        ]  # fmt: skip

        # Stage 2: the product, in [2**46, 2**48). The exponent field is the sum less the bias if the product is
        # below 2**47, one more if not; it runs from 2 - 127 to 508 - 126, and only its sign is kept below zero.
        product = Signal(48, reset_less=True)
        sign2 = Signal(reset_less=True)
        nan2 = Signal(reset_less=True)
        infinite2 = Signal(reset_less=True)
        zero2 = Signal(reset_less=True)
        low = Signal(9, reset_less=True)
        high = Signal(9, reset_less=True)
        low_under = Signal(reset_less=True)
        high_under = Signal(reset_less=True)
        m.d.sync += [
            product.eq(significand_a * significand_b),
            low.eq(exponents - BIAS),
            high.eq(exponents - (BIAS - 1)),
            low_under.eq(exponents < BIAS + 1),
            high_under.eq(exponents < BIAS),
            sign2.eq(sign1),
            nan2.eq(nan1),
            infinite2.eq(infinite1),
            zero2.eq(zero1),
        ]

        # Stage 3: normalise by at most one place, flush on the exact exponent, then round. The exponent stands
        # above the fraction in one word, so that a carry out of the fraction increments it.
        rounded = Signal(32, reset_less=True)
        sign3 = Signal(reset_less=True)
        nan3 = Signal(reset_less=True)
        infinite3 = Signal(reset_less=True)
        zero3 = Signal(reset_less=True)
        top = product[47]
        fraction = Signal(23)
        guard = Signal()
        sticky = Signal()
        m.d.comb += [
            fraction.eq(Mux(top, product[24:47], product[23:46])),
            guard.eq(Mux(top, product[23], product[22])),
            sticky.eq(product[:22].any() | (top & product[22])),
        ]
        m.d.sync += [
            rounded.eq(Cat(fraction, Mux(top, high, low)) + rounds_up(fraction[0], guard, sticky)),
            zero3.eq(zero2 | Mux(top, high_under, low_under)),
            sign3.eq(sign2),
            nan3.eq(nan2),
            infinite3.eq(infinite2),
        ]

        # Stage 4: pack.
        result = Signal(32, reset_less=True)
        overflow = Signal()
        m.d.comb += overflow.eq(rounded[23:31].all() | rounded[31])
        m.d.sync += result.eq(
            pack(sign=sign3, rounded=rounded, overflow=overflow, nan=nan3, infinite=infinite3, zero=zero3)
        )
        m.d.comb += self.y.eq(result)
        return m
