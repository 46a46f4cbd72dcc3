"""What the operators of a tensor graph compute, in numpy: one function for each name of `headrace.models.tensor_operators.OPERATORS`.

Meanings are those of PyTorch's documentation of the ATen operator of that name. Arguments come by the vocabulary's names: arrays of
float32, int64 or bool, numbers, tuples, None. The executor turns every result into its recorded dtype, so a function may return a wider
one. Sums run in float64. A function that could make a result larger than its inputs checks the size first and raises ValueError above
`MAX_ELEMENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import erf

from headrace.models.tensor_operators import OPERATORS

MAX_ELEMENTS = 1 << 30
"""Of one tensor: 4 GiB of float32."""
MAX_PARTS = 1 << 16
"""That one tensor is taken apart into."""

_TYPES = {"float32": np.float32, "int64": np.int64, "bool": np.bool_}
Function = Callable[..., Any]
_FUNCTIONS: dict[str, Function] = {}


def _operator(function: Function) -> Function:
    _FUNCTIONS[function.__name__.removesuffix("_")] = function
    return function


def bounded(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape`, unless it has too many elements: ValueError."""
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"a tensor of shape {list(shape)} is larger than the {MAX_ELEMENTS} elements allowed")
    return tuple(shape)


def _broadcast_bounded(*values: Any) -> None:
    bounded(np.broadcast_shapes(*(np.shape(value) for value in values)))


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
        _broadcast_bounded(input, other)
        return function(input, other)

    return checked


def _unary(function: Function) -> Function:
    return lambda input: function(input)


_FUNCTIONS |= {name: _unary(function) for name, function in _UNARY.items()}
_FUNCTIONS |= {name: _binary(function) for name, function in _BINARY.items()}


@_operator
def add(input, other, alpha):
    _broadcast_bounded(input, other)
    return np.add(input, other if alpha == 1 else np.multiply(other, alpha))


@_operator
def sub(input, other, alpha):
    _broadcast_bounded(input, other)
    return np.subtract(input, other if alpha == 1 else np.multiply(other, alpha))


@_operator
def div(input, other, rounding_mode):
    _broadcast_bounded(input, other)
    if rounding_mode == "floor":
        return np.floor_divide(input, other)
    quotient = np.true_divide(input, other)
    return np.trunc(quotient) if rounding_mode == "trunc" else quotient


@_operator
def pow_(input, exponent):
    _broadcast_bounded(input, exponent)
    return np.power(input, exponent)


@_operator
def where(condition, input, other):
    _broadcast_bounded(condition, input, other)
    return np.where(condition, input, other)


@_operator
def masked_fill(input, mask, value):
    _broadcast_bounded(input, mask)
    return np.where(mask, value, input)


@_operator
def clamp(input, min, max):
    _broadcast_bounded(input, 0 if min is None else min, 0 if max is None else max)
    low = input if min is None else np.maximum(input, min)
    return low if max is None else np.minimum(low, max)


@_operator
def gelu(input, approximate):
    if approximate == "tanh":
        return 0.5 * input * (1 + np.tanh(math.sqrt(2 / math.pi) * (input + 0.044715 * input**3)))
    return 0.5 * input * (1 + erf(input * math.sqrt(0.5)))


@_operator
def softplus(input, beta, threshold):
    return np.where(input * beta > threshold, input, np.logaddexp(input * beta, 0) / beta)


@_operator
def leaky_relu(input, negative_slope):
    return np.where(input > 0, input, input * negative_slope)


@_operator
def elu(input, alpha, scale, input_scale):
    return scale * np.where(input > 0, input, alpha * np.expm1(input * input_scale))


@_operator
def tril(input, diagonal):
    return np.tril(input, diagonal)


@_operator
def triu(input, diagonal):
    return np.triu(input, diagonal)


@_operator
def cast(input, dtype):
    return input.astype(_TYPES[dtype])


# Matrices.


@_operator
def matmul(input, other):
    batch = np.broadcast_shapes(input.shape[:-2], other.shape[:-2])
    bounded((*batch, *input.shape[-2:-1], *other.shape[-1:]))
    return np.matmul(input, other)


@_operator
def linear(input, weight, bias):
    product = matmul(input, weight.T)
    return product if bias is None else product + bias


@_operator
def addmm(input, mat1, mat2, beta, alpha):
    product = matmul(mat1, mat2)
    _broadcast_bounded(input, product)
    return beta * input + alpha * product


@_operator
def scaled_dot_product_attention(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    """A query that sees no key gives 0, as PyTorch's does. `is_causal` aligns the first query with the first key."""
    if enable_gqa:
        key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scores = matmul(query, np.swapaxes(key, -1, -2)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        _broadcast_bounded(scores, attn_mask)
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    highest = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = p.sum(axis=-1, keepdims=True, dtype=np.float64)
    return matmul((p / np.where(total == 0, 1, total)).astype(np.float32), value)


@_operator
def convolution(input, weight, bias, stride, padding, dilation, groups):
    spatial = weight.ndim - 2
    if groups < 1 or weight.shape[0] % groups or input.shape[-1 - spatial] != weight.shape[1] * groups:
        raise ValueError(f"{groups} groups of a weight of shape {list(weight.shape)} do not fit an input of shape {list(input.shape)}")
    unbatched = input.ndim == spatial + 1
    windows = _windows(input[None] if unbatched else input, weight.shape[2:], stride, padding, dilation, 0)
    axes, kernel_axes = tuple(range(2, 2 + spatial)), tuple(range(2 + spatial, 2 + 2 * spatial))
    bounded(windows.shape)
    bounded((len(windows), weight.shape[0], *windows.shape[2 : 2 + spatial]))
    inputs, outputs = weight.shape[1], weight.shape[0] // groups
    parts = [
        np.tensordot(windows[:, g * inputs : (g + 1) * inputs], weight[g * outputs : (g + 1) * outputs],
            axes=((1, *kernel_axes), (1, *axes)))
        for g in range(groups)
    ]
    result = np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * spatial)
    return result[0] if unbatched else result


def _windows(x: np.ndarray, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    fill: float) -> np.ndarray:
    """[..., positions, kernel]: what the kernel sees at every position of the last dimensions, as a view of the padded input."""
    spatial = len(kernel)
    if not len(stride) == len(padding) == len(dilation) == spatial < x.ndim or min(*stride, *dilation, *kernel) < 1 or min(padding) < 0:
        raise ValueError("kernel, stride, padding and dilation need a number for each spatial dimension, 1 and above (padding 0)")
    x = pad(x, [side for amount in reversed(padding) for side in (amount, amount)], fill)
    reach = [step * (length - 1) + 1 for step, length in zip(dilation, kernel)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(-spatial, 0)))
    return windows[(..., *(slice(None, None, s) for s in stride), *(slice(None, None, d) for d in dilation))]


@_operator
def max_pool(input, kernel_size, stride, padding, dilation):
    return _windows(input, kernel_size, stride, padding, dilation, -np.inf).max(axis=tuple(range(-len(kernel_size), 0)))


@_operator
def avg_pool(input, kernel_size, stride, padding):
    windows = _windows(input, kernel_size, stride, padding, [1] * len(kernel_size), 0)
    return windows.mean(axis=tuple(range(-len(kernel_size), 0)), dtype=np.float64)


@_operator
def grouped_matmul(input, weight, offsets):
    """Rows past the last offset give 0."""
    ends = [int(end) for end in offsets]
    if len(ends) != len(weight) or any(low > high for low, high in zip([0, *ends], [*ends, len(input)])):
        raise ValueError(f"offsets {ends[:8]} do not rise from 0 to {len(input)}, one for each of {len(weight)} groups")
    result = np.zeros(bounded((len(input), weight.shape[-1])), np.float32)
    for start, end, matrix in zip([0, *ends], ends, weight):
        result[start:end] = input[start:end] @ matrix
    return result


@_operator
def embedding(weight, indices):
    if indices.size and not (0 <= indices.min() and indices.max() < weight.shape[0]):
        raise ValueError(f"an index of {indices.min()} to {indices.max()}; allowed are 0 to {weight.shape[0] - 1}")
    bounded((*indices.shape, *weight.shape[1:]))
    return weight[indices]


# Norms.


def _scaled(x: np.ndarray, weight, bias) -> np.ndarray:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _normalised(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    centred = x - x.mean(axis=axes, keepdims=True, dtype=np.float64).astype(np.float32)
    variance = np.square(centred).mean(axis=axes, keepdims=True, dtype=np.float64)
    return centred * (1 / np.sqrt(variance + eps)).astype(np.float32)


@_operator
def layer_norm(input, normalized_shape, weight, bias, eps):
    return _scaled(_normalised(input, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)


@_operator
def rms_norm(input, normalized_shape, weight, eps):
    mean = np.square(input).mean(axis=tuple(range(-len(normalized_shape), 0)), keepdims=True, dtype=np.float64)
    return _scaled(input * (1 / np.sqrt(mean + (np.finfo(np.float32).eps if eps is None else eps))).astype(np.float32), weight, None)


@_operator
def group_norm(input, num_groups, weight, bias, eps):
    grouped = _normalised(input.reshape(input.shape[0], num_groups, -1), (-1,), eps).reshape(input.shape)
    return _scaled(grouped, *(None if x is None else x.reshape(-1, *[1] * (input.ndim - 2)) for x in (weight, bias)))


@_operator
def batch_norm(input, weight, bias, running_mean, running_var, eps):
    mean, variance, weight, bias = (None if x is None else x.reshape(-1, *[1] * (input.ndim - 2)) for x in (running_mean,
        running_var, weight, bias))
    return _scaled((input - mean) / np.sqrt(variance + np.float32(eps)), weight, bias)


@_operator
def softmax(input, dim):
    p = np.exp(input - input.max(axis=dim, keepdims=True))
    return p / p.sum(axis=dim, keepdims=True, dtype=np.float64)


@_operator
def log_softmax(input, dim):
    shifted = input - input.max(axis=dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True, dtype=np.float64))


# New tensors.


@_operator
def arange(start, end, step, dtype):
    (count,) = bounded((max(0, math.ceil((end - start) / step)),))
    return start + step * np.arange(count)


@_operator
def full(size, fill_value, dtype):
    return np.full(bounded(size), fill_value, _TYPES[dtype])


@_operator
def full_like(input, fill_value, dtype):
    return np.full(input.shape, fill_value, _TYPES[dtype])


@_operator
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


_FUNCTIONS |= {
    "sum": _reduction(np.sum, wide=True), "mean": _reduction(np.mean, wide=True), "prod": _reduction(np.prod, wide=True),
    "amax": _reduction(np.max),
    "amin": _reduction(np.min), "any": _reduction(np.any), "all": _reduction(np.all), "argmax": _reduction(np.argmax),
    "argmin": _reduction(np.argmin),
}


@_operator
def var(input, dim, correction, keepdim):
    return np.var(input, axis=dim, ddof=1 if correction is None else correction, keepdims=keepdim, dtype=np.float64)


@_operator
def std(input, dim, correction, keepdim):
    return np.sqrt(var(input, dim, correction, keepdim))


@_operator
def logsumexp(input, dim, keepdim):
    highest = input.max(axis=dim, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0)
    total = np.log(np.exp(input - highest).sum(axis=dim, keepdims=True, dtype=np.float64)) + highest
    return total if keepdim else np.squeeze(total, axis=dim)


@_operator
def vector_norm(input, ord, dim, keepdim):
    size = np.abs(input)
    if math.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axis=dim, keepdims=keepdim)
    if ord == 0:
        return np.sum(size != 0, axis=dim, keepdims=keepdim)
    return np.sum(size.astype(np.float64) ** ord, axis=dim, keepdims=keepdim) ** (1 / ord)


@_operator
def histc(input, bins, min, max):
    """Counts of equal bins from min to max; the last takes max too. Values outside are not counted; min = max = 0 takes the values' own range."""
    bounded((bins,))
    low, high = (float(input.min()), float(input.max())) if min == max == 0 and input.size else (min, max)
    return np.histogram(input, bins=bins, range=(low - 1, high + 1) if low == high else (low, high))[0]


@_operator
def cumsum(input, dim):
    return np.cumsum(input, axis=dim, dtype=_wide(input))


@_operator
def cumprod(input, dim):
    return np.cumprod(input, axis=dim, dtype=_wide(input))


def _with_index(pick: Function) -> Function:
    def picked(input, dim, keepdim):
        index = pick(input, axis=dim, keepdims=True)
        values = np.take_along_axis(input, index, axis=dim)
        return (values, index) if keepdim else (np.squeeze(values, axis=dim), np.squeeze(index, axis=dim))

    return picked


_FUNCTIONS |= {"max_and_index": _with_index(np.argmax), "min_and_index": _with_index(np.argmin)}


@_operator
def sort(input, dim, descending):
    """Equal values keep their order."""
    if descending:
        order = input.shape[dim] - 1 - np.flip(np.argsort(np.flip(input, dim), axis=dim, kind="stable"), dim)
    else:
        order = np.argsort(input, axis=dim, kind="stable")
    return np.take_along_axis(input, order, axis=dim), order


@_operator
def topk(input, k, dim, largest, sorted):
    """Of equal values the first ones; the order is that of `sort` whether it is asked for or not."""
    values, order = sort(input, dim, largest)
    return tuple(slice_(x, dim, 0, k, 1) for x in (values, order))


# Shapes.


@_operator
def reshape(input, shape):
    return np.reshape(input, shape)


@_operator
def flatten(input, start_dim, end_dim):
    """The dimensions from start_dim to end_dim, itself included, as one."""
    if not input.ndim:
        return input.reshape(1)
    start, end = start_dim % input.ndim, end_dim % input.ndim
    return input.reshape(*input.shape[:start], math.prod(input.shape[start : end + 1]), *input.shape[end + 1 :])


@_operator
def permute(input, dims):
    return np.transpose(input, dims)


@_operator
def transpose(input, dim0, dim1):
    return np.swapaxes(input, dim0, dim1) if input.ndim else input


@_operator
def unsqueeze(input, dim):
    return np.expand_dims(input, dim)


@_operator
def squeeze(input, dim):
    axes = range(input.ndim) if dim is None else {axis % input.ndim for axis in dim if input.ndim}
    return np.squeeze(input, axis=tuple(axis for axis in axes if input.shape[axis] == 1))


@_operator
def expand(input, size):
    """A length of -1 stays as it is."""
    old = (1,) * (len(size) - input.ndim) + input.shape
    return np.broadcast_to(input, bounded([kept if length == -1 else length for length, kept in zip(size, old, strict=True)]))


@_operator
def repeat(input, repeats):
    old = (1,) * (len(repeats) - input.ndim) + input.shape
    bounded([count * length for count, length in zip(repeats, old, strict=True)])
    return np.tile(input, repeats)


@_operator
def repeat_interleave(input, repeats, dim):
    bounded((input.size, repeats))
    return np.repeat(input, repeats, axis=dim)


def _along(input: np.ndarray, dim: int, part: Any) -> np.ndarray:
    dim = np.lib.array_utils.normalize_axis_index(dim, input.ndim)
    return input[(slice(None),) * dim + (part,)]


@_operator
def slice_(input, dim, start, end, step):
    return _along(input, dim, slice(start, end, step))


@_operator
def select(input, dim, index):
    return _along(input, dim, index)


@_operator
def cat(tensors, dim):
    """Tensors of shape [0] are left out, as PyTorch does."""
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    bounded((sum(x.size for x in kept),))
    return np.concatenate(kept, axis=dim)


@_operator
def stack(tensors, dim):
    bounded((sum(x.size for x in tensors),))
    return np.stack(tensors, axis=dim)


@_operator
def split(input, split_size, dim):
    if sum(split_size) != input.shape[dim] or min(split_size, default=0) < 0:
        raise ValueError(f"sizes {list(split_size)[:8]} do not add up to the length {input.shape[dim]}")
    ends = [sum(split_size[: index + 1]) for index in range(len(split_size))]
    return tuple(_along(input, dim, slice(end - size, end)) for size, end in zip(split_size, ends))


@_operator
def split_equal(input, split_size, dim):
    """The last part holds the rest."""
    length = input.shape[dim]
    if split_size < 1 and length or length > MAX_PARTS * split_size:
        raise ValueError(f"parts of {split_size} of a length of {length}; allowed are 1 to {MAX_PARTS} parts")
    return tuple(_along(input, dim, slice(start, start + split_size)) for start in range(0, max(length, 1), max(split_size, 1)))


@_operator
def unbind(input, dim):
    if input.shape[dim] > MAX_PARTS:
        raise ValueError(f"{input.shape[dim]} parts; allowed are {MAX_PARTS}")
    return tuple(np.moveaxis(input, dim, 0))


@_operator
def flip(input, dims):
    return np.flip(input, dims)


@_operator
def roll(input, shifts, dims):
    if dims:
        return np.roll(input, shifts, axis=dims)
    (shift,) = shifts
    return np.roll(input, shift)


@_operator
def unfold(input, dimension, size, step):
    """Windows of `size`, every `step`-th, as a new last dimension."""
    if step < 1:
        raise ValueError(f"a step of {step}; allowed is 1 and above")
    return _along(np.lib.stride_tricks.sliding_window_view(input, size, axis=dimension),
        dimension if dimension >= 0 else dimension - 1, slice(None, None, step))


@_operator
def pad(input, pad, value):
    """`pad` holds (before, after) of the last dimension first; a negative amount cuts off."""
    amounts = [(0, 0)] * input.ndim
    for index in range(len(pad) // 2):
        amounts[-1 - index] = (pad[2 * index], pad[2 * index + 1])
    bounded([max(length + before + after, 0) for length, (before, after) in zip(input.shape, amounts)])
    cut = input[tuple(slice(max(-before, 0), max(length - max(-after, 0), 0)) for length, (before, after) in zip(input.shape, amounts))]
    return np.pad(cut, [(max(before, 0), max(after, 0)) for before, after in amounts], constant_values=value)


@_operator
def diff(input, n, dim, prepend, append):
    if not 0 <= n <= 64:
        raise ValueError(f"a difference of order {n}; allowed are 0 to 64")
    sides = {name: side for name, side in (("prepend", prepend), ("append", append)) if side is not None}
    return np.diff(input, n=n, axis=dim, **sides)


# Indexing.


def _key(indices: Sequence[np.ndarray | None]) -> tuple:
    return tuple(slice(None) if index is None else index for index in indices)


def _index_bounded(input: np.ndarray, indices: Sequence[np.ndarray | None]) -> None:
    """Every index tensor may be broadcast against the others, in front of what is left of the input."""
    lists = [index for index in indices if index is not None and index.dtype != bool]
    left = [length for axis, length in enumerate(input.shape) if axis >= len(indices) or indices[axis] is None]
    bounded((*np.broadcast_shapes(*(index.shape for index in lists)), *left))


@_operator
def index(input, indices):
    _index_bounded(input, indices)
    return input[_key(indices)]


@_operator
def index_put(input, indices, values, accumulate):
    _index_bounded(input, indices)
    result = input.copy()
    if accumulate:
        np.add.at(result, _key(indices), values)
    else:
        result[_key(indices)] = values
    return result


@_operator
def index_select(input, dim, index):
    bounded((input.size // max(input.shape[dim], 1), index.size))
    return np.take(input, index, axis=dim)


def _corner(input: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    """The part of `input` that an index of that shape reaches: everything along `dim`, elsewhere as much as the index is long."""
    dim = np.lib.array_utils.normalize_axis_index(dim, input.ndim)
    return input[tuple(slice(None) if axis == dim else slice(length) for axis, length in enumerate(index.shape))]


@_operator
def gather(input, dim, index):
    return np.take_along_axis(_corner(input, dim, index), index, axis=dim)


@_operator
def scatter(input, dim, index, src):
    result = input.copy()
    if isinstance(src, np.ndarray):
        src = src[tuple(slice(length) for length in index.shape)]
    np.put_along_axis(_corner(result, dim, index), index, src, axis=dim)
    return result


@_operator
def scatter_add(input, dim, index, src):
    result = input.copy()
    place = list(np.indices(index.shape, sparse=True))
    place[dim] = index
    np.add.at(result, tuple(place), src[tuple(slice(length) for length in index.shape)])
    return result


@_operator
def copy(input, src):
    return np.broadcast_to(src, input.shape)


@_operator
def slice_scatter(input, src, dim, start, end, step):
    result = input.copy()
    _along(result, dim, slice(start, end, step))[...] = src
    return result


@_operator
def select_scatter(input, src, dim, index):
    result = input.copy()
    np.moveaxis(result, dim, 0)[index] = src
    return result


# Numbers, and one of several results.


@_operator
def size(input, dim):
    return input.shape[dim]


_FUNCTIONS |= {
    "length_add": lambda input, other: input + other, "length_sub": lambda input, other: input - other, "length_mul": lambda input,
    other: input * other,
    "length_floordiv": lambda input, other: input // other, "length_mod": lambda input, other: input % other,
    "length_max": lambda input, other: max(input, other), "length_min": lambda input, other: min(input, other),
    "length_neg": lambda input: -input,
}


@_operator
def part(input, index):
    return input[index]


FUNCTIONS: dict[str, Function] = {name: _FUNCTIONS[name] for name in OPERATORS}
"""Operator -> its function; the vocabulary is complete, or this import fails."""
