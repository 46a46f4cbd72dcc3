"""float32 add, multiply, order and sum of the contract (section 2), vectorised and independent of the batch.

Every function takes anything that numpy broadcasts, works on float32 and returns float32 arrays (or numpy scalars for
scalars). No reduction of numpy is used on float32: the order of additions is written out in `sum16`.
"""

import numpy as np

from headrace.kernels.contract import constants as c

_MAGNITUDE = np.uint32(c.MAGNITUDE_MASK)
_SIGN = np.uint32(c.SIGN_BIT)
_ONE = np.uint32(1)
_MIN_NORMAL = np.uint32(c.MIN_NORMAL_BITS)
_NAN = np.uint32(c.NAN_BITS)
# 2 * pattern - 1 drops the sign and wraps zero to the top: a subnormal, and nothing else, gives less than 2**-126 gives.
_MIN_NORMAL_RANK = np.uint32(2 * c.MIN_NORMAL_BITS - 1)
_PLAIN_SUM_RANK = np.uint32(2 * ((127 - 102) << 23) - 1)  # that of 2**-102
_TOP_RANK = np.uint32(0xFFFFFFFF)


class UnorderedError(ArithmeticError):
    """A NaN met a comparison: the machine raises its sticky error flag and halts."""


def bits(x) -> np.ndarray:
    """Bit patterns (uint32) of float32 values."""
    return np.asarray(x, np.float32).view(np.uint32)


def from_bits(u) -> np.ndarray:
    """float32 values of uint32 bit patterns."""
    return np.asarray(u, np.uint32).view(np.float32)


def _lowest_rank(u: np.ndarray) -> np.uint32:
    """Lowest of 2 * pattern - 1 over all elements (see `_MIN_NORMAL_RANK`)."""
    return np.minimum.reduce(np.subtract(np.left_shift(u, _ONE), _ONE), axis=None, initial=_TOP_RANK)


def flush(x) -> np.ndarray:
    """`x` with every subnormal replaced by zero of its sign. Returns `x` itself where there is none."""
    x = np.asarray(x, np.float32)
    u = x.view(np.uint32)
    if _lowest_rank(u) >= _MIN_NORMAL_RANK:
        return x
    return np.where((u & _MAGNITUDE) < _MIN_NORMAL, u & _SIGN, u).view(np.float32)


def one_nan(x: np.ndarray) -> np.ndarray:
    """`x` with every NaN replaced by the canonical one."""
    nan = np.isnan(x)
    if nan.any():
        return np.where(nan, _NAN, x.view(np.uint32)).view(np.float32)
    return x


# The two below are links of longer chains of operations. They take operands without subnormals, give results without
# subnormals, and leave it to the end of the chain to call `one_nan`: which NaN it is cannot matter in between. Floating-
# point warnings must be off.


def add_normal(a, b) -> np.ndarray:
    """Link of a chain: ``a (+) b`` up to the choice of NaN.

    The sum of two normal numbers is a multiple of 2**-149, so a sum below 2**-126 is exact in float32 and the rounded
    result decides about the flush.
    """
    return flush(np.add(a, b))


def mul_normal(a, b) -> np.ndarray:
    """Link of a chain: ``a (*) b`` up to the choice of NaN.

    Rounding is monotonic, so an exact value below 2**-126 gives a result of at most 2**-126. Only that one result is
    ambiguous; there the float64 product, exact for two float32 operands, decides.
    """
    product = np.asarray(np.multiply(a, b))
    u = product.view(np.uint32)
    if _lowest_rank(u) > _MIN_NORMAL_RANK:
        return product
    magnitude = u & _MAGNITUDE
    below = magnitude < _MIN_NORMAL
    edge = magnitude == _MIN_NORMAL
    if edge.any():
        below |= edge & (np.abs(np.multiply(a, b, dtype=np.float64)) < 2.0**-126)
    return np.where(below, u & _SIGN, u).view(np.float32)


def add(a, b) -> np.ndarray:
    """``a (+) b``: rounded to nearest even, subnormals as zero, the one NaN."""
    with np.errstate(all="ignore"):
        return one_nan(add_normal(flush(a), flush(b)))


def mul(a, b) -> np.ndarray:
    """``a (*) b``: rounded to nearest even, flushed when the exact product is below 2**-126, the one NaN."""
    with np.errstate(all="ignore"):
        return one_nan(mul_normal(flush(a), flush(b)))


def neg(x) -> np.ndarray:
    """`x` with its sign bit flipped, whatever it is."""
    return (bits(x) ^ _SIGN).view(np.float32)


def sub(a, b) -> np.ndarray:
    """``a (+) (-b)``."""
    return add(a, neg(b))


def order_key(x) -> np.ndarray:
    """int32 keys that order as the contract orders float32: sign-magnitude bit patterns, -0 = +0, NaN outside infinity."""
    u = bits(x)
    magnitude = (u & _MAGNITUDE).view(np.int32)
    return np.where(u >= _SIGN, np.negative(magnitude), magnitude)


def unordered(a, b=0.0) -> np.ndarray:
    """Where a comparison of `a` and `b` raises the error flag: a NaN is among them."""
    return np.isnan(np.asarray(a, np.float32)) | np.isnan(np.asarray(b, np.float32))


def less(a, b) -> np.ndarray:
    """``a < b`` in the order of the contract; a NaN compares by its bit pattern and raises the flag (`unordered`)."""
    return order_key(a) < order_key(b)


def maximum(a, b) -> np.ndarray:
    """The larger operand, the first when they are equal; with a NaN by its bit pattern, and the flag (`unordered`)."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return np.where(less(a, b), b, a)


def minimum(a, b) -> np.ndarray:
    """The smaller operand, the first when they are equal; with a NaN by its bit pattern, and the flag (`unordered`)."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return np.where(less(b, a), b, a)


def require_ordered(x, what: str) -> None:
    """Raise `UnorderedError`, naming `what`, when `x` holds a NaN."""
    if np.isnan(x).any():
        raise UnorderedError(f"{what} holds a NaN")


def max_last(x) -> np.ndarray:
    """Largest of the last axis. A zero is +0: which zero was first has no effect on any function of the contract."""
    require_ordered(x, "operand of max")
    key = order_key(x).max(axis=-1)
    return np.where(key < 0, (-key).view(np.uint32) | _SIGN, key.view(np.uint32)).view(np.float32)


def absmax_last(x) -> np.ndarray:
    """Largest magnitude of the last axis."""
    require_ordered(x, "operand of absmax")
    return (bits(x) & _MAGNITUDE).max(axis=-1).view(np.float32)


def argmax_last(x) -> np.ndarray:
    """Index of the largest of the last axis, the lowest such index."""
    require_ordered(x, "operand of argmax")
    return order_key(x).argmax(axis=-1)


def from_int32(accumulator) -> np.ndarray:
    """``f32(acc)``: int32 to float32, nearest even."""
    accumulator = np.asarray(accumulator)
    if accumulator.dtype != np.int32:
        raise TypeError(f"an accumulator is int32, not {accumulator.dtype}")
    return accumulator.astype(np.float32)


def sum16(x) -> np.ndarray:
    """Sum of the last axis in the one order of the contract: 16 strided partials from +0, then a tree.

    x: float32 [..., n] -> float32 [...]. An axis of length 0 sums to +0.
    """
    x = flush(x)
    lanes = c.SUM_LANES
    n = x.shape[-1]
    padding = -n % lanes
    if padding:  # +0 never changes a partial: a partial starts at +0 and no sum that includes +0 is -0
        x = np.concatenate([x, np.zeros(x.shape[:-1] + (padding,), np.float32)], axis=-1)
    partial = np.zeros(x.shape[:-1] + (lanes,), np.float32)
    # Sums need no check for subnormals when nothing can cancel, nor when every term is zero or at least 2**-102 and so a
    # multiple of 2**-125: rounding keeps sums multiples of it.
    u = x.view(np.uint32)
    plain = np.maximum.reduce(u, axis=None, initial=np.uint32(0)) < _SIGN or _lowest_rank(u) >= _PLAIN_SUM_RANK
    add_ = np.add if plain else add_normal
    with np.errstate(all="ignore"):
        for start in range(0, n, lanes):
            partial = add_(partial, x[..., start : start + lanes])
        while partial.shape[-1] > 1:
            partial = add_(partial[..., 0::2], partial[..., 1::2])
        return one_nan(partial[..., 0])
