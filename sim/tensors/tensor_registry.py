"""Where the functions of a tensor graph's operators register, and the bound on what they may make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAX_ELEMENTS = 1 << 30
"""Of one tensor: 4 GiB of float32."""

NUMPY_TYPES = {"float32": np.float32, "int64": np.int64, "bool": np.bool_}
Function = Callable[..., Any]
REGISTERED: dict[str, Function] = {}


def operator(function: Function) -> Function:
    """Register a function under its name; a trailing underscore, which keeps it apart from a name of Python's, is no part of it."""
    REGISTERED[function.__name__.removesuffix("_")] = function
    return function


def bounded(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape`, unless it has too many elements: ValueError."""
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"a tensor of shape {list(shape)} is larger than the {MAX_ELEMENTS} elements allowed")
    return tuple(shape)


def broadcast_bounded(*values: Any) -> None:
    """ValueError where the arrays and numbers do not broadcast together, or to too many elements."""
    bounded(np.broadcast_shapes(*(np.shape(value) for value in values)))
