"""Functions of the contract (section 3): built from float32 add and multiply and from integer operations alone.

Vectors lie along the last axis; every other axis is a batch, on which no result depends.
"""

import numpy as np

from headrace.kernels.contract import constants as c
from headrace.kernels.contract.f32 import (
    absmax_last, add, add_normal, argmax_last, bits, flush, from_bits, from_int32, less, max_last, maximum, minimum, mul,
    mul_normal, neg, one_nan, require_ordered, sum16,
)

_ONE = from_bits(c.ONE_BITS)
_TWO = from_bits(c.TWO_BITS)
_MINUS_HALF = from_bits(c.MINUS_HALF_BITS)
_ONE_AND_HALF = from_bits(c.ONE_AND_HALF_BITS)
_MAGIC = from_bits(c.MAGIC_BITS)
_MINUS_MAGIC = neg(_MAGIC)
_LOG2E = from_bits(c.LOG2E_BITS)
_MINUS_LN2_HI = neg(from_bits(c.LN2_HI_BITS))
_MINUS_LN2_LO = neg(from_bits(c.LN2_LO_BITS))
_EXP_MIN = from_bits(c.EXP_MIN_BITS)
_EXP_MAX = from_bits(c.EXP_MAX_BITS)
_EXP_COEFFICIENTS = tuple(from_bits(u) for u in c.EXP_COEFFICIENT_BITS)
_INT8_MAX = from_bits(c.INT8_MAX_BITS)


# Within its range a function meets no subnormal, so that plain numpy is the arithmetic of the contract, and the checks of
# `add_normal` and `mul_normal` on every result can be spared. Each function says why; the tests hold both paths together.
_PLAIN = (np.add, np.multiply)
_CHECKED = (add_normal, mul_normal)


def _arithmetic(x: np.ndarray, lowest: float, highest: float):
    """(add, multiply): plain numpy where all of `x` lies within lowest .. highest, checked otherwise."""
    inside = np.logical_and.reduce((x >= np.float32(lowest)) & (x <= np.float32(highest)), axis=None)
    return _PLAIN if inside else _CHECKED


def recip(x) -> np.ndarray:
    """1/x for 2**-121 <= x <= 2**120: integer seed and three Newton steps. Outside that range the bits are those of
    the same steps (32-bit wrap-around in the seed) and mean nothing.

    In range the seed is within 13% of 1/x, so x*y and e lie in 0.8 .. 1.2 and y is normal.
    """
    y = from_bits(np.subtract(np.uint32(c.RECIP_SEED), bits(x)))
    x = flush(x)
    with np.errstate(all="ignore"):
        add_, mul_ = _arithmetic(x, 2.0**-121, 2.0**120)
        y, minus_x = flush(y), np.negative(x)
        for _ in range(c.RECIP_STEPS):
            e = add_(mul_(minus_x, y), _TWO)
            y = mul_(y, e)
        return one_nan(y)


def rsqrt(x) -> np.ndarray:
    """1/sqrt(x) for 2**-120 <= x <= 2**120: integer seed and three Newton steps.

    In range the seed is within 4% of the result, so h*u lies near -0.5, e near 1, and h, u and y are normal.
    """
    y = from_bits(np.subtract(np.uint32(c.RSQRT_SEED), bits(x) >> np.uint32(1)))
    x = flush(x)
    with np.errstate(all="ignore"):
        add_, mul_ = _arithmetic(x, 2.0**-120, 2.0**120)
        y, h = flush(y), mul_(x, _MINUS_HALF)
        for _ in range(c.RSQRT_STEPS):
            u = mul_(y, y)
            e = add_(mul_(h, u), _ONE_AND_HALF)
            y = mul_(y, e)
        return one_nan(y)


def exp(x) -> np.ndarray:
    """e**x with x clipped to -87 .. 80: Cody-Waite reduction, seven Horner steps, exponent by integer addition.

    No flush can change a bit here. x*LOG2E and p*r may be subnormal, but are then added to a constant of at least 1e-4,
    which absorbs them as it absorbs a zero. n is an integer; for n = 0, r is x; for others x is a multiple of 2**-25,
    n*LN2_HI of 2**-9 and n*LN2_LO of 2**-36, so that r is zero or at least 2**-36.
    """
    x = one_nan(flush(minimum(maximum(x, _EXP_MIN), _EXP_MAX)))
    t = x * _LOG2E + _MAGIC
    n = t + _MINUS_MAGIC
    r = n * _MINUS_LN2_HI + x
    r = n * _MINUS_LN2_LO + r
    p = _EXP_COEFFICIENTS[0]
    for coefficient in _EXP_COEFFICIENTS[1:]:
        p = p * r + coefficient  # two operations of numpy, each rounded
    return from_bits(np.add(bits(p), np.left_shift(bits(t), np.uint32(23))))


def rmsnorm(x, weight, epsilon: float) -> np.ndarray:
    """Root-mean-square norm of the last axis. x [..., d], weight [d] -> [..., d]."""
    x = flush(x)
    width = x.shape[-1]
    with np.errstate(all="ignore"):
        total = sum16(mul_normal(x, x))
        variance = add_normal(mul_normal(total, np.float32(1.0 / width)), flush(np.float32(epsilon)))
        return one_nan(mul_normal(mul_normal(x, rsqrt(variance)[..., None]), flush(weight)))


def silu_mul(gate, up) -> np.ndarray:
    """``(g * sigmoid(g)) * u`` element by element."""
    gate = flush(gate)
    with np.errstate(all="ignore"):
        sigmoid = recip(add_normal(exp(neg(gate)), _ONE))
        return one_nan(mul_normal(mul_normal(gate, sigmoid), flush(up)))


def rope_tables(positions, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, float32 [len(positions), head_dim / 2], computed in float64: angle = t * theta**(-2i/d)."""
    positions = np.asarray(positions, np.float64)
    inverse = np.float64(theta) ** (-2.0 * np.arange(head_dim // 2, dtype=np.float64) / head_dim)
    angle = positions[:, None] * inverse[None, :]
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope(x, cos, sin) -> np.ndarray:
    """Rotary embedding, half-split. x [..., d], cos and sin broadcastable to [..., d/2]."""
    x, cos, sin = flush(x), flush(cos), flush(sin)
    half = x.shape[-1] // 2
    x0, x1 = x[..., :half], x[..., half:]
    with np.errstate(all="ignore"):
        y0 = add_normal(mul_normal(x0, cos), mul_normal(neg(x1), sin))
        y1 = add_normal(mul_normal(x1, cos), mul_normal(x0, sin))
    return one_nan(np.concatenate([y0, y1], axis=-1))


def quantise(x) -> tuple[np.ndarray, np.ndarray]:
    """Last axis to INT8 with one scale. x float32 [..., n] -> (q int8 [..., n] within +-127, s float32 [...]).

    Raises `f32.UnorderedError` on a NaN in x, and on one that an infinite x makes at the clip.
    """
    x = np.asarray(x, np.float32)
    m = absmax_last(x)
    big = ~less(m, c.QMIN)
    zero = np.float32(0.0)
    with np.errstate(all="ignore"):
        m = np.where(big, m, zero)
        inverse = np.where(big, mul_normal(_INT8_MAX, recip(m)), zero)
        # A product that a flush would change is below 1/2 and rounds to zero all the same.
        scaled = np.rint(np.multiply(flush(x), inverse[..., None]))
        require_ordered(scaled, "operand of quantise")
        return np.clip(scaled, -c.INT8_MAX, c.INT8_MAX).astype(np.int8), mul_normal(m, c.ONE_OVER_127)


def softmax_quantised(scores, value_scales, valid=None) -> tuple[np.ndarray, np.ndarray]:
    """Unnormalised attention weights in INT8 and the scale of the attention output.

    scores float32 [..., T]; value_scales float32 broadcastable to it; valid: boolean, likewise, True for the rows
    within the length (all when None). What masked rows hold has no effect, NaN included.
    Returns (q int8 [..., T] in 0..127, zero where masked; s_out float32 [...]): ``out = f32(sum q*v8) (*) s_out``.
    """
    scores = np.asarray(scores, np.float32)
    if valid is None:
        m = max_last(scores)
        e = exp(add(scores, neg(m)[..., None]))
    else:
        m = max_last(np.where(valid, scores, np.float32(-np.inf)))
        # A masked row takes the maximum's place, where exp is defined, and is then dropped.
        safe = np.where(valid, scores, m[..., None])
        e = np.where(valid, exp(add(safe, neg(m)[..., None])), np.float32(0.0))
        value_scales = np.where(valid, value_scales, np.float32(0.0))
    z = sum16(e)
    with np.errstate(all="ignore"):
        q, s_p = quantise(mul_normal(e, flush(value_scales)))
        return q, one_nan(mul_normal(s_p, recip(z)))


def scale(accumulator, s_a, s_w=_ONE) -> np.ndarray:
    """``f32(acc) (*) (s_a (*) s_w)``: an int32 accumulator to float32 units."""
    with np.errstate(all="ignore"):
        return one_nan(mul_normal(from_int32(accumulator), mul_normal(flush(s_a), flush(s_w))))


def score_scale(s_q, factor: float) -> np.ndarray:
    """``s_q (*) f32(factor)``: the query's scale as the scores use it. Llama's factor is 1/sqrt(head_dim), in float64."""
    return mul(s_q, np.float32(factor))


def embed(row, s_row) -> np.ndarray:
    """Embedding rows: ``f32(q) (*) s_row``. row int8 [..., d], s_row float32 [...]."""
    return mul(np.asarray(row, np.int8).astype(np.float32), np.asarray(s_row, np.float32)[..., None])


def argmax(logits) -> np.ndarray:
    """The lowest index among the largest of the last axis."""
    return argmax_last(logits)
