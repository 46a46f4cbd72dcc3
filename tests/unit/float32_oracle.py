"""Exact float32 add and multiply in Python integers, written from docs/contract.md section 2 alone."""

NAN = 0x7FC00000
INFINITY = 0x7F800000


def decode(u: int) -> tuple[str, int, int, int]:
    """(kind, sign, significand, exponent): the value is significand * 2**exponent; a subnormal is a zero."""
    sign, exponent, mantissa = u >> 31, (u >> 23) & 255, u & 0x7FFFFF
    if exponent == 255:
        return ("nan" if mantissa else "inf"), sign, 0, 0
    if exponent == 0:
        return "zero", sign, 0, 0
    return "finite", sign, mantissa | 0x800000, exponent - 150


def encode(sign: int, significand: int, exponent: int) -> int:
    """Round the exact positive value significand * 2**exponent to nearest even, after the flush decision."""
    width = significand.bit_length()
    if exponent + width - 1 < -126:
        return sign << 31
    shift = width - 24
    if shift > 0:
        kept, lost, half = significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1)
        if lost > half or (lost == half and kept & 1):
            kept += 1
    else:
        kept = significand << -shift
    exponent += shift
    if kept == 1 << 24:
        kept, exponent = kept >> 1, exponent + 1
    biased = exponent + 150
    if biased >= 255:
        return sign << 31 | INFINITY
    return sign << 31 | biased << 23 | (kept & 0x7FFFFF)


def is_tie(significand: int) -> bool:
    """Whether rounding this exact significand to 24 bits is a tie."""
    shift = significand.bit_length() - 24
    return shift > 0 and significand & ((1 << shift) - 1) == 1 << (shift - 1)


def exact_sum(a: int, b: int) -> tuple[int, int]:
    """Exact sum of two finite patterns: (signed significand, exponent)."""
    (_, sa, ma, ea), (_, sb, mb, eb) = decode(a), decode(b)
    low = min(ea, eb)
    return (-1) ** sa * (ma << (ea - low)) + (-1) ** sb * (mb << (eb - low)), low


def add(a: int, b: int) -> int:
    (ka, sa, _, _), (kb, sb, _, _) = decode(a), decode(b)
    if ka == "nan" or kb == "nan" or (ka == kb == "inf" and sa != sb):
        return NAN
    if ka == "inf" or kb == "inf":
        return (sa if ka == "inf" else sb) << 31 | INFINITY
    if ka == "zero" and kb == "zero":
        return (sa & sb) << 31
    if ka == "zero":
        return b
    if kb == "zero":
        return a
    total, exponent = exact_sum(a, b)
    return encode(int(total < 0), abs(total), exponent) if total else 0


def mul(a: int, b: int) -> int:
    (ka, sa, ma, ea), (kb, sb, mb, eb) = decode(a), decode(b)
    sign = sa ^ sb
    if ka == "nan" or kb == "nan" or {ka, kb} == {"inf", "zero"}:
        return NAN
    if "inf" in (ka, kb):
        return sign << 31 | INFINITY
    if "zero" in (ka, kb):
        return sign << 31
    return encode(sign, ma * mb, ea + eb)
