"""Functions of decoders other than Llama (contract section 5): built from float32 add and multiply and from integer operations.

Vectors lie along the last axis; every other axis is a batch, on which no result depends.
"""

from collections.abc import Callable

import numpy as np

from headrace.kernels.contract import constants as c
from headrace.kernels.contract.f32 import add, add_normal, flush, from_bits, maximum, mul, mul_normal, neg, one_nan, sum16
from headrace.kernels.contract.functions import exp, recip, rsqrt

_ONE = from_bits(c.ONE_BITS)
_GELU_CUBE = from_bits(c.GELU_CUBE_BITS)
_GELU_LINEAR = from_bits(c.GELU_LINEAR_BITS)
_ZERO = np.float32(0.0)


def _sigmoid_of_minus(x) -> np.ndarray:
    """``recip(exp(x) (+) 1.0)``. exp gives 2**-126 .. 2**116, so that recip stays within its range."""
    return recip(add_normal(exp(x), _ONE))


def layernorm(x, weight, bias, epsilon: float) -> np.ndarray:
    """Mean and variance norm of the last axis. x [..., d]; weight, bias [d] -> [..., d]."""
    x = flush(x)
    share = np.float32(1.0 / x.shape[-1])
    with np.errstate(all="ignore"):
        mean = mul_normal(sum16(x), share)
        centred = add_normal(x, neg(mean)[..., None])
        variance = add_normal(mul_normal(sum16(mul_normal(centred, centred)), share), flush(np.float32(epsilon)))
        scaled = mul_normal(mul_normal(centred, rsqrt(variance)[..., None]), flush(weight))
        return one_nan(add_normal(scaled, flush(bias)))


def silu(x) -> np.ndarray:
    """``x (*) recip(exp(-x) (+) 1.0)`` element by element."""
    x = flush(x)
    with np.errstate(all="ignore"):
        return one_nan(mul_normal(x, _sigmoid_of_minus(neg(x))))


def gelu_tanh(x) -> np.ndarray:
    """GELU in its tanh form, x (1 + tanh u) / 2, as x / (1 + exp(-2u)), element by element."""
    x = flush(x)
    with np.errstate(all="ignore"):
        factor = add_normal(mul_normal(mul_normal(x, x), _GELU_CUBE), _GELU_LINEAR)
        return one_nan(mul_normal(x, _sigmoid_of_minus(mul_normal(x, factor))))


def relu(x) -> np.ndarray:
    """``max(x, +0)`` element by element; a NaN raises the flag where the result is quantised."""
    return maximum(x, _ZERO)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"silu": silu, "gelu_tanh": gelu_tanh, "relu": relu}
"""Name (models.graph.DecoderConfig.activation) -> function. A gated MLP multiplies its result by `up`."""


def softcap(x, cap: float) -> np.ndarray:
    """cap * tanh(x / cap), element by element, as 2 cap / (1 + exp(-2x / cap)) - cap."""
    cap = np.float64(cap)
    with np.errstate(all="ignore"):
        s = _sigmoid_of_minus(mul_normal(flush(x), flush(np.float32(-2.0 / cap))))
    return add(mul(s, np.float32(2.0 * cap)), -np.float32(cap))


def embedding_scale(s_row, factor: float) -> np.ndarray:
    """``s_row (*) f32(factor)``: scales of embedding rows whose values the model multiplies by `factor`."""
    return mul(s_row, np.float32(factor))
