"""Elementwise operators of a tensor graph, reductions, and tensors from numbers alone, in numpy. Sums run in float64."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf

from headrace.sim.tensors.tensor_registry import NUMPY_TYPES, REGISTERED, Function, bounded, broadcast_bounded, operator
from headrace.sim.tensors.tensor_shapes import slice_

# Elementwise.


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_UNARY: dict[str, Function] = {
    "abs": np.abs, "bitwise_not": np.invert, "ceil": np.ceil, "cos": np.cos, "erf": erf, "exp": np.exp, "expm1": np.expm1,
    "floor": np.floor, "isinf": np.isinf,
    "isnan": np.isnan, "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "trunc": np.trunc, "logical_not": np.logical_not, "neg": np.negative, "relu": lambda x: np.maximum(x, 0),
    "round": np.rint,
    "sign": np.sign, "sin": np.sin, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "sigmoid": _sigmoid,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "log_sigmoid": lambda x: -np.logaddexp(-x, 0),
}
_BINARY: dict[str, Function] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "eq": np.equal,
    "floor_divide": np.floor_divide, "fmod": np.fmod,
    "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "lt": np.less, "maximum": np.maximum, "minimum": np.minimum, "mul": np.multiply, "ne": np.not_equal, "remainder": np.remainder,
    "atan2": np.arctan2,
}


def _binary(function: Function) -> Function:
    def checked(input, other):
        broadcast_bounded(input, other)
        return function(input, other)

    return checked


def _unary(function: Function) -> Function:
    return lambda input: function(input)


REGISTERED |= {name: _unary(function) for name, function in _UNARY.items()}
REGISTERED |= {name: _binary(function) for name, function in _BINARY.items()}


@operator
def add(input, other, alpha):
    broadcast_bounded(input, other)
    return np.add(input, other if alpha == 1 else np.multiply(other, alpha))


@operator
def sub(input, other, alpha):
    broadcast_bounded(input, other)
    return np.subtract(input, other if alpha == 1 else np.multiply(other, alpha))


@operator
def div(input, other, rounding_mode):
    broadcast_bounded(input, other)
    if rounding_mode == "floor":
        return np.floor_divide(input, other)
    quotient = np.true_divide(input, other)
    return np.trunc(quotient) if rounding_mode == "trunc" else quotient


@operator
def pow_(input, exponent):
    broadcast_bounded(input, exponent)
    return np.power(input, exponent)


@operator
def where(condition, input, other):
    broadcast_bounded(condition, input, other)
    return np.where(condition, input, other)


@operator
def masked_fill(input, mask, value):
    broadcast_bounded(input, mask)
    return np.where(mask, value, input)


@operator
def clamp(input, min, max):
    broadcast_bounded(input, 0 if min is None else min, 0 if max is None else max)
    low = input if min is None else np.maximum(input, min)
    return low if max is None else np.minimum(low, max)


@operator
def gelu(input, approximate):
    if approximate == "tanh":
        return 0.5 * input * (1 + np.tanh(math.sqrt(2 / math.pi) * (input + 0.044715 * input**3)))
    return 0.5 * input * (1 + erf(input * math.sqrt(0.5)))


@operator
def softplus(input, beta, threshold):
    return np.where(input * beta > threshold, input, np.logaddexp(input * beta, 0) / beta)


@operator
def leaky_relu(input, negative_slope):
    return np.where(input > 0, input, input * negative_slope)


@operator
def elu(input, alpha, scale, input_scale):
    return scale * np.where(input > 0, input, alpha * np.expm1(input * input_scale))


@operator
def tril(input, diagonal):
    return np.tril(input, diagonal)


@operator
def triu(input, diagonal):
    return np.triu(input, diagonal)


@operator
def cast(input, dtype):
    return input.astype(NUMPY_TYPES[dtype])


# New tensors.


@operator
def arange(start, end, step, dtype):
    (count,) = bounded((max(0, math.ceil((end - start) / step)),))
    return start + step * np.arange(count)


@operator
def full(size, fill_value, dtype):
    return np.full(bounded(size), fill_value, NUMPY_TYPES[dtype])


@operator
def full_like(input, fill_value, dtype):
    return np.full(input.shape, fill_value, NUMPY_TYPES[dtype])


@operator
def one_hot(input, num_classes):
    bounded((*input.shape, num_classes))
    return input[..., None] == np.arange(num_classes)


# Reductions.


def _wide(x: np.ndarray) -> type | None:
    return np.float64 if x.dtype == np.float32 else None


def _reduction(function: Function, *, wide: bool = False) -> Function:
    if wide:
        return lambda input, dim, keepdim: function(input, axis=dim, keepdims=keepdim, dtype=_wide(input))
    return lambda input, dim, keepdim: function(input, axis=dim, keepdims=keepdim)


REGISTERED |= {
    "sum": _reduction(np.sum, wide=True), "mean": _reduction(np.mean, wide=True), "prod": _reduction(np.prod, wide=True),
    "amax": _reduction(np.max),
    "amin": _reduction(np.min), "any": _reduction(np.any), "all": _reduction(np.all), "argmax": _reduction(np.argmax),
    "argmin": _reduction(np.argmin),
}


@operator
def var(input, dim, correction, keepdim):
    return np.var(input, axis=dim, ddof=1 if correction is None else correction, keepdims=keepdim, dtype=np.float64)


@operator
def std(input, dim, correction, keepdim):
    return np.sqrt(var(input, dim, correction, keepdim))


@operator
def logsumexp(input, dim, keepdim):
    highest = input.max(axis=dim, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0)
    total = np.log(np.exp(input - highest).sum(axis=dim, keepdims=True, dtype=np.float64)) + highest
    return total if keepdim else np.squeeze(total, axis=dim)


@operator
def vector_norm(input, ord, dim, keepdim):
    size = np.abs(input)
    if math.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axis=dim, keepdims=keepdim)
    if ord == 0:
        return np.sum(size != 0, axis=dim, keepdims=keepdim)
    return np.sum(size.astype(np.float64) ** ord, axis=dim, keepdims=keepdim) ** (1 / ord)


@operator
def histc(input, bins, min, max):
    """Counts of equal bins from min to max; the last takes max too. Values outside are not counted; min = max = 0 takes the values' own range."""
    bounded((bins,))
    low, high = (float(input.min()), float(input.max())) if min == max == 0 and input.size else (min, max)
    return np.histogram(input, bins=bins, range=(low - 1, high + 1) if low == high else (low, high))[0]


@operator
def cumsum(input, dim):
    return np.cumsum(input, axis=dim, dtype=_wide(input))


@operator
def cumprod(input, dim):
    return np.cumprod(input, axis=dim, dtype=_wide(input))


def _with_index(pick: Function) -> Function:
    def picked(input, dim, keepdim):
        index = pick(input, axis=dim, keepdims=True)
        values = np.take_along_axis(input, index, axis=dim)
        return (values, index) if keepdim else (np.squeeze(values, axis=dim), np.squeeze(index, axis=dim))

    return picked


REGISTERED |= {"max_and_index": _with_index(np.argmax), "min_and_index": _with_index(np.argmin)}


@operator
def sort(input, dim, descending):
    """Equal values keep their order."""
    if descending:
        order = input.shape[dim] - 1 - np.flip(np.argsort(np.flip(input, dim), axis=dim, kind="stable"), dim)
    else:
        order = np.argsort(input, axis=dim, kind="stable")
    return np.take_along_axis(input, order, axis=dim), order


@operator
def topk(input, k, dim, largest, sorted):
    """Of equal values the first ones; the order is that of `sort` whether it is asked for or not."""
    values, order = sort(input, dim, largest)
    return tuple(slice_(x, dim, 0, k, 1) for x in (values, order))
