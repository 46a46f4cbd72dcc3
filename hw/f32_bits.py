"""What the float32 units share: the constants of the contract's section 2, normalisation, rounding, packing."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

BIAS = 127
EXPONENT_SPECIAL = 255
"""The exponent field of infinity and NaN."""

NAN = 0x7FC00000
"""The one NaN that a unit gives."""


def normalise(m: Module, value: Value, name: str, *, first_empty: Value) -> tuple[Value, Value]:
    """(`value` shifted left until its top bit is set, the shift), combinational; a zero gives (0, 2**k - 1).

    Leading zeros are counted by binary search: a step of 2**i looks at the top 2**i bits and shifts them out if
    all are zero, so the count is the list of the steps taken and costs nothing more than the shifter.
    `first_empty` answers the first and widest step; the stage before has found it, to shorten this one.
    """
    width, shifts = len(value), []
    for step in reversed(range((width - 1).bit_length())):
        distance = 1 << step
        empty = Signal(name=f"{name}_empty{distance}")
        shifted = Signal(width, name=f"{name}_by{distance}")
        m.d.comb += [
            empty.eq(~value[width - distance :].any() if shifts else first_empty),
            shifted.eq(Mux(empty, Cat(Const(0, distance), value[: width - distance]), value)),
        ]
        value = shifted
        shifts.append(empty)
    return value, Cat(*reversed(shifts))


def rounds_up(lsb: Value, guard: Value, sticky: Value) -> Value:
    """Round to nearest, ties to even: whether the significand above `guard` is incremented."""
    return guard & (sticky | lsb)


def pack(*, sign: Value, rounded: Value, overflow: Value, nan: Value, infinite: Value, zero: Value) -> Value:
    """The float32 of a rounded fraction and exponent, after the special cases.

    rounded
        Cat(fraction 23, exponent field 8 or more), after rounding.
    overflow
        Whether the exponent field after rounding is 255 or more. Any value where `zero` is 1.
    zero
        An exact zero, or an exact value below 2**-126, decided before rounding. It yields to `infinite`, and
        both yield to `nan`.
    """
    top = infinite | overflow & ~zero
    magnitude = Mux(top, Const(EXPONENT_SPECIAL << 23, 31), Mux(zero, Const(0, 31), rounded[:31]))
    return Mux(nan, Const(NAN, 32), Cat(magnitude, sign))
