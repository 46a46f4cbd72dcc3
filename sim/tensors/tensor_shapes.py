"""Operators of a tensor graph that move, cut, join and index tensors, and arithmetic on lengths, in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.sim.tensors.tensor_registry import REGISTERED, bounded, operator

MAX_PARTS = 1 << 16
"""That one tensor is taken apart into."""

# Shapes.


@operator
def reshape(input, shape):
    return np.reshape(input, shape)


@operator
def flatten(input, start_dim, end_dim):
    """The dimensions from start_dim to end_dim, itself included, as one."""
    if not input.ndim:
        return input.reshape(1)
    start, end = start_dim % input.ndim, end_dim % input.ndim
    return input.reshape(*input.shape[:start], math.prod(input.shape[start : end + 1]), *input.shape[end + 1 :])


@operator
def permute(input, dims):
    return np.transpose(input, dims)


@operator
def transpose(input, dim0, dim1):
    return np.swapaxes(input, dim0, dim1) if input.ndim else input


@operator
def unsqueeze(input, dim):
    return np.expand_dims(input, dim)


@operator
def squeeze(input, dim):
    axes = range(input.ndim) if dim is None else {axis % input.ndim for axis in dim if input.ndim}
    return np.squeeze(input, axis=tuple(axis for axis in axes if input.shape[axis] == 1))


@operator
def expand(input, size):
    """A length of -1 stays as it is."""
    old = (1,) * (len(size) - input.ndim) + input.shape
    return np.broadcast_to(input, bounded([kept if length == -1 else length for length, kept in zip(size, old, strict=True)]))


@operator
def repeat(input, repeats):
    old = (1,) * (len(repeats) - input.ndim) + input.shape
    bounded([count * length for count, length in zip(repeats, old, strict=True)])
    return np.tile(input, repeats)


@operator
def repeat_interleave(input, repeats, dim):
    bounded((input.size, repeats))
    return np.repeat(input, repeats, axis=dim)


def _along(input: np.ndarray, dim: int, part: Any) -> np.ndarray:
    dim = np.lib.array_utils.normalize_axis_index(dim, input.ndim)
    return input[(slice(None),) * dim + (part,)]


@operator
def slice_(input, dim, start, end, step):
    return _along(input, dim, slice(start, end, step))


@operator
def select(input, dim, index):
    return _along(input, dim, index)


@operator
def cat(tensors, dim):
    """Tensors of shape [0] are left out, as PyTorch does."""
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    bounded((sum(x.size for x in kept),))
    return np.concatenate(kept, axis=dim)


@operator
def stack(tensors, dim):
    bounded((sum(x.size for x in tensors),))
    return np.stack(tensors, axis=dim)


@operator
def split(input, split_size, dim):
    if sum(split_size) != input.shape[dim] or min(split_size, default=0) < 0:
        raise ValueError(f"sizes {list(split_size)[:8]} do not add up to the length {input.shape[dim]}")
    ends = [sum(split_size[: index + 1]) for index in range(len(split_size))]
    return tuple(_along(input, dim, slice(end - size, end)) for size, end in zip(split_size, ends))


@operator
def split_equal(input, split_size, dim):
    """The last part holds the rest."""
    length = input.shape[dim]
    if split_size < 1 and length or length > MAX_PARTS * split_size:
        raise ValueError(f"parts of {split_size} of a length of {length}; allowed are 1 to {MAX_PARTS} parts")
    return tuple(_along(input, dim, slice(start, start + split_size)) for start in range(0, max(length, 1), max(split_size, 1)))


@operator
def unbind(input, dim):
    if input.shape[dim] > MAX_PARTS:
        raise ValueError(f"{input.shape[dim]} parts; allowed are {MAX_PARTS}")
    return tuple(np.moveaxis(input, dim, 0))


@operator
def flip(input, dims):
    return np.flip(input, dims)


@operator
def roll(input, shifts, dims):
    if dims:
        return np.roll(input, shifts, axis=dims)
    (shift,) = shifts
    return np.roll(input, shift)


@operator
def unfold(input, dimension, size, step):
    """Windows of `size`, every `step`-th, as a new last dimension."""
    if step < 1:
        raise ValueError(f"a step of {step}; allowed is 1 and above")
    return _along(np.lib.stride_tricks.sliding_window_view(input, size, axis=dimension),
        dimension if dimension >= 0 else dimension - 1, slice(None, None, step))


@operator
def pad(input, pad, value):
    """`pad` holds (before, after) of the last dimension first; a negative amount cuts off."""
    amounts = [(0, 0)] * input.ndim
    for index in range(len(pad) // 2):
        amounts[-1 - index] = (pad[2 * index], pad[2 * index + 1])
    bounded([max(length + before + after, 0) for length, (before, after) in zip(input.shape, amounts)])
    cut = input[tuple(slice(max(-before, 0), max(length - max(-after, 0), 0)) for length, (before, after) in zip(input.shape, amounts))]
    return np.pad(cut, [(max(before, 0), max(after, 0)) for before, after in amounts], constant_values=value)


@operator
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


@operator
def index(input, indices):
    _index_bounded(input, indices)
    return input[_key(indices)]


@operator
def index_put(input, indices, values, accumulate):
    _index_bounded(input, indices)
    result = input.copy()
    if accumulate:
        np.add.at(result, _key(indices), values)
    else:
        result[_key(indices)] = values
    return result


@operator
def index_select(input, dim, index):
    bounded((input.size // max(input.shape[dim], 1), index.size))
    return np.take(input, index, axis=dim)


def _corner(input: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    """The part of `input` that an index of that shape reaches: everything along `dim`, elsewhere as much as the index is long."""
    dim = np.lib.array_utils.normalize_axis_index(dim, input.ndim)
    return input[tuple(slice(None) if axis == dim else slice(length) for axis, length in enumerate(index.shape))]


@operator
def gather(input, dim, index):
    return np.take_along_axis(_corner(input, dim, index), index, axis=dim)


@operator
def scatter(input, dim, index, src):
    result = input.copy()
    if isinstance(src, np.ndarray):
        src = src[tuple(slice(length) for length in index.shape)]
    np.put_along_axis(_corner(result, dim, index), index, src, axis=dim)
    return result


@operator
def scatter_add(input, dim, index, src):
    result = input.copy()
    place = list(np.indices(index.shape, sparse=True))
    place[dim] = index
    np.add.at(result, tuple(place), src[tuple(slice(length) for length in index.shape)])
    return result


@operator
def copy(input, src):
    return np.broadcast_to(src, input.shape)


@operator
def slice_scatter(input, src, dim, start, end, step):
    result = input.copy()
    _along(result, dim, slice(start, end, step))[...] = src
    return result


@operator
def select_scatter(input, src, dim, index):
    result = input.copy()
    np.moveaxis(result, dim, 0)[index] = src
    return result


# Numbers, and one of several results.


@operator
def size(input, dim):
    return input.shape[dim]


REGISTERED |= {
    "length_add": lambda input, other: input + other,
    "length_sub": lambda input, other: input - other,
    "length_mul": lambda input, other: input * other,
    "length_floordiv": lambda input, other: input // other,
    "length_mod": lambda input, other: input % other,
    "length_max": lambda input, other: max(input, other),
    "length_min": lambda input, other: min(input, other),
    "length_neg": lambda input: -input,
}


@operator
def part(input, index):
    return input[index]
