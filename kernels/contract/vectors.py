"""Seeded float32 operand pairs that reach the hard cases of add and multiply. Used by tests of every level."""

import numpy as np

from headrace.kernels.contract import constants as c

# Every value whose handling is special, by bit pattern; signs are added by `special_values`.
_SPECIAL_MAGNITUDES = (
    0x00000000,  # zero
    0x00000001, 0x00000002, 0x003FFFFF, 0x00400000, 0x007FFFFF,  # subnormals
    0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000,  # about 2**-126 and 2**-125
    0x1FFFFFFF, 0x20000000, 0x20000001,  # about 2**-63: their products are about 2**-126
    0x33800000, 0x34000000,  # half an ulp and one ulp of 1.0
    0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x40000000, 0x42FE0000,
    0x4B000000, 0x4B400000, 0x4B7FFFFF, 0x4B800000,  # about 2**23 and 2**24
    0x5F7FFFFF, 0x5F800000, 0x5F800001,  # about 2**64: their products are about 2**128
    0x73000000, 0x73000001, 0x72FFFFFF,  # about half an ulp of the largest finite value
    0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF,  # the largest finite values
    0x7F800000,  # infinity
    0x7F800001, 0x7FC00000, 0x7FFFFFFF,  # NaNs, signalling, canonical and other
)


def special_values() -> np.ndarray:
    """Bit patterns (uint32) of all special values, both signs."""
    magnitudes = np.array(_SPECIAL_MAGNITUDES, np.uint32)
    return np.concatenate([magnitudes, magnitudes | np.uint32(c.SIGN_BIT)])


def special_pairs() -> tuple[np.ndarray, np.ndarray]:
    """All special values crossed with each other: two uint32 vectors."""
    values = special_values()
    return np.repeat(values, len(values)), np.tile(values, len(values))


def _normal(sign, exponent, mantissa) -> np.ndarray:
    """Bit patterns from sign 0/1, biased exponent and 23-bit mantissa field."""
    return (np.asarray(sign, np.uint32) << 31) | (np.asarray(exponent, np.uint32) << 23) | np.asarray(mantissa, np.uint32)


def _near_exponents(rng, n, operation):
    """Exponents within 26 of each other: alignment, rounding and normalisation of an adder."""
    first = rng.integers(1, 255, n)
    second = np.clip(first + rng.integers(-26, 27, n), 1, 254)
    return tuple(_normal(rng.integers(0, 2, n), e, rng.integers(0, 2**23, n)) for e in (first, second))


def _cancelling(rng, n, operation):
    """Nearly equal magnitudes of opposite sign, a few ulp apart, equal ones included, also across a binade."""
    first = _normal(rng.integers(0, 2, n), rng.integers(1, 255, n), rng.integers(0, 2**23, n))
    magnitude = (first & np.uint32(c.MAGNITUDE_MASK)).astype(np.int64)
    distance = rng.integers(-1, 2, n) * rng.integers(0, 2 ** rng.integers(1, 20, n))
    second = np.clip(magnitude + distance, c.MIN_NORMAL_BITS, c.INFINITY_BITS - 1).astype(np.uint32)
    return first, second | (~first & np.uint32(c.SIGN_BIT))


def _near_magnitude(rng, n, operation, exponent):
    """Operands whose result has about this biased exponent (254: overflow, 1: the flush boundary)."""
    if operation == "add":
        second = np.clip(exponent + rng.integers(-3, 4, n), 1, 254)
        first = np.clip(exponent + rng.integers(-1, 2, n), 1, 254)
    else:
        first = rng.integers(1, 255, n)
        second = exponent + 127 - first + rng.integers(-2, 2, n)
        inside = (second >= 1) & (second <= 254)
        second = np.where(inside, second, 127)
        first = np.where(inside, first, exponent)
    signs = rng.integers(0, 2, n), rng.integers(0, 2, n)
    mantissas = [rng.integers(0, 2**23, n) for _ in range(2)]
    # Every fourth operand lies within a few ulp of a power of two, where the boundary itself lies.
    for mantissa in mantissas:
        edge = rng.integers(0, 4, n) == 0
        mantissa[edge] = (rng.integers(-4, 5, n)[edge]) % 2**23
    return _normal(signs[0], first, mantissas[0]), _normal(signs[1], second, mantissas[1])


def _near_overflow(rng, n, operation):
    return _near_magnitude(rng, n, operation, 254)


def _near_flush(rng, n, operation):
    """Results about 2**-126; half of the products are within an ulp of it: first * fl(2**-126 / first)."""
    first, second = _near_magnitude(rng, n, operation, 1)
    if operation == "mul":
        half = n // 2
        mantissa = rng.integers(0, 2**23, half)
        exponent = rng.integers(2, 124, half)
        value = 1.0 + mantissa / 2.0**23  # the quotient of the mantissas lies in (0.5, 1]
        quotient = (1.0 / value).astype(np.float32).view(np.uint32) + rng.integers(-1, 2, half).astype(np.int64)
        other = quotient + ((1 - exponent) << 23)  # first is value * 2**(exponent - 127)
        first[:half] = _normal(rng.integers(0, 2, half), exponent, mantissa)
        second[:half] = other.astype(np.uint32) | (rng.integers(0, 2, half).astype(np.uint32) << 31)
    return first, second


def _ties(rng, n, operation):
    """Exact results half-way between two float32 values."""
    if operation == "add":
        # The sum stays in the binade of the first, and the second is an odd multiple of half an ulp of it.
        exponent = rng.integers(26, 255, n)
        first = _normal(rng.integers(0, 2, n), exponent, rng.integers(2**21, 2**23 - 2**21, n))
        odd = (2 * rng.integers(0, 2 ** rng.integers(0, 21, n)) + 1).astype(np.float64)
        second = np.ldexp(odd, exponent - 127 - 24).astype(np.float32).view(np.uint32)
        second = second | (rng.integers(0, 2, n).astype(np.uint32) << 31)
    else:
        # Odd significands whose product has exactly 25 bits: the last bit is the half.
        firsts, seconds, found = [], [], 0
        while found < n:
            width = rng.integers(2, 25, 2 * n)
            a = rng.integers(2 ** (width - 1), 2**width) | 1
            other = 26 - width
            b = rng.integers(2 ** (other - 1), 2**other) | 1
            keep = (a * b >= 2**24) & (a * b < 2**25) & (other <= 24)
            firsts.append(a[keep])
            seconds.append(b[keep])
            found += int(keep.sum())
        exponents = rng.integers(-50, 30, n), rng.integers(-50, 30, n)
        first, second = (
            np.ldexp(np.concatenate(parts)[:n].astype(np.float64), e).astype(np.float32).view(np.uint32)
            | (rng.integers(0, 2, n).astype(np.uint32) << 31)
            for parts, e in zip((firsts, seconds), exponents)
        )
    swap = rng.integers(0, 2, n) == 1
    return np.where(swap, second, first), np.where(swap, first, second)


def _uniform(rng, n, operation):
    return tuple(rng.integers(0, 2**32, n, dtype=np.uint32) for _ in range(2))


def float32_pairs(count: int, operation: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` random operand pairs as bit patterns: two uint32 vectors, shuffled, the same for the same seed.

    operation: "add" or "mul". A half have exponents within 26 of each other, a tenth cancel, a twentieth each lie near
    overflow, near 2**-126 and on ties, the rest are uniform bit patterns.
    """
    if operation not in ("add", "mul"):
        raise ValueError(f"operation {operation!r} is unknown, allowed are 'add' and 'mul'")
    rng = np.random.default_rng(seed)
    kinds = ((_near_exponents, 2), (_cancelling, 10), (_near_overflow, 20), (_near_flush, 20), (_ties, 20))
    parts = [make(rng, -(-count // share), operation) for make, share in kinds]
    rest = count - sum(len(first) for first, _ in parts)
    parts.append(_uniform(rng, max(rest, 0), operation))
    order = rng.permutation(sum(len(first) for first, _ in parts))[:count]
    return tuple(np.concatenate([part[i] for part in parts]).astype(np.uint32)[order] for i in range(2))


def special_and_random_pairs(count: int, operation: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All special values crossed, then `count` random pairs."""
    special, random = special_pairs(), float32_pairs(count, operation, seed)
    return tuple(np.concatenate([special[i], random[i]]) for i in range(2))
