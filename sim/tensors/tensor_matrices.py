"""Operators of a tensor graph that contract or normalise: matrix products, attention, convolutions, pooling, norms, in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.sim.tensors.tensor_registry import bounded, broadcast_bounded, operator
from headrace.sim.tensors.tensor_shapes import pad

# Matrices.


@operator
def matmul(input, other):
    batch = np.broadcast_shapes(input.shape[:-2], other.shape[:-2])
    bounded((*batch, *input.shape[-2:-1], *other.shape[-1:]))
    return np.matmul(input, other)


@operator
def linear(input, weight, bias):
    product = matmul(input, weight.T)
    return product if bias is None else product + bias


@operator
def addmm(input, mat1, mat2, beta, alpha):
    product = matmul(mat1, mat2)
    broadcast_bounded(input, product)
    return beta * input + alpha * product


@operator
def scaled_dot_product_attention(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    """A query that sees no key gives 0, as PyTorch's does. `is_causal` aligns the first query with the first key."""
    if enable_gqa:
        key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scores = matmul(query, np.swapaxes(key, -1, -2)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        broadcast_bounded(scores, attn_mask)
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    highest = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = p.sum(axis=-1, keepdims=True, dtype=np.float64)
    return matmul((p / np.where(total == 0, 1, total)).astype(np.float32), value)


@operator
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


@operator
def max_pool(input, kernel_size, stride, padding, dilation):
    return _windows(input, kernel_size, stride, padding, dilation, -np.inf).max(axis=tuple(range(-len(kernel_size), 0)))


@operator
def avg_pool(input, kernel_size, stride, padding):
    windows = _windows(input, kernel_size, stride, padding, [1] * len(kernel_size), 0)
    return windows.mean(axis=tuple(range(-len(kernel_size), 0)), dtype=np.float64)


@operator
def grouped_matmul(input, weight, offsets):
    """Rows past the last offset give 0."""
    ends = [int(end) for end in offsets]
    if len(ends) != len(weight) or any(low > high for low, high in zip([0, *ends], [*ends, len(input)])):
        raise ValueError(f"offsets {ends[:8]} do not rise from 0 to {len(input)}, one for each of {len(weight)} groups")
    result = np.zeros(bounded((len(input), weight.shape[-1])), np.float32)
    for start, end, matrix in zip([0, *ends], ends, weight):
        result[start:end] = input[start:end] @ matrix
    return result


@operator
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


@operator
def layer_norm(input, normalized_shape, weight, bias, eps):
    return _scaled(_normalised(input, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)


@operator
def rms_norm(input, normalized_shape, weight, eps):
    mean = np.square(input).mean(axis=tuple(range(-len(normalized_shape), 0)), keepdims=True, dtype=np.float64)
    return _scaled(input * (1 / np.sqrt(mean + (np.finfo(np.float32).eps if eps is None else eps))).astype(np.float32), weight, None)


@operator
def group_norm(input, num_groups, weight, bias, eps):
    grouped = _normalised(input.reshape(input.shape[0], num_groups, -1), (-1,), eps).reshape(input.shape)
    return _scaled(grouped, *(None if x is None else x.reshape(-1, *[1] * (input.ndim - 2)) for x in (weight, bias)))


@operator
def batch_norm(input, weight, bias, running_mean, running_var, eps):
    mean, variance, weight, bias = (None if x is None else x.reshape(-1, *[1] * (input.ndim - 2)) for x in (running_mean,
        running_var, weight, bias))
    return _scaled((input - mean) / np.sqrt(variance + np.float32(eps)), weight, bias)


@operator
def softmax(input, dim):
    p = np.exp(input - input.max(axis=dim, keepdims=True))
    return p / p.sum(axis=dim, keepdims=True, dtype=np.float64)


@operator
def log_softmax(input, dim):
    shifted = input - input.max(axis=dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True, dtype=np.float64))
