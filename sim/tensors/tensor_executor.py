"""Runs a tensor graph in numpy: float32, int64 and bool. A float reference, no part of the numeric contract; its last bits depend on the BLAS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.models.errors import UserError
from headrace.models.exported.symbolic_lengths import evaluate
from headrace.models.exported.tensor_graph import Argument, Node, Ref, TensorGraph, TensorType
from headrace.models.exported.tensor_operators import NUMBER
from headrace.sim.tensors.tensor_functions import FUNCTIONS
from headrace.sim.tensors.tensor_registry import bounded

_COMPUTED = (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError)
"""What numpy raises for arguments that do not fit together; the graph came from a file, so that is the file's mistake."""
_MAX_NUMBER = 1 << 63


def run(graph: TensorGraph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs, in order, for one array of each input's name.

    Symbolic lengths are read off the inputs. Every result is checked against the recorded shape and freed after its last use. Raises
    UserError for inputs that are not as the graph says, and for a node whose arguments do not fit together.
    """
    if inputs.keys() != graph.inputs.keys():
        raise UserError(f"graph {graph.name}: inputs {', '.join(inputs) or 'none'} are given; needed are exactly {', '.join(graph.inputs) or 'none'}")
    empty = next((name for name, tensor in graph.tensors.items() if not tensor.known), None)
    if empty is not None:
        raise UserError(f"graph {graph.name}: tensor {empty} has no values, so the graph can be counted but not run")
    values: dict[str, Any] = {name: _input(graph, name, array) for name, array in inputs.items()}
    lengths = bind_lengths(graph, {name: value.shape for name, value in values.items()})
    last_use = {name: index for index, node in enumerate(graph.nodes) for name in node.references()}
    for index, node in enumerate(graph.nodes):
        place = f"graph {graph.name}: node {node.name!r} ({node.operator})" + (f" of {node.source}" if node.source else "")
        for name in node.references():
            if name not in values:
                values[name] = graph.tensors[name].values.astype(graph.tensors[name].type.dtype, copy=False)
        try:
            with np.errstate(all="ignore"):
                values[node.name] = _computed(node, values, lengths)
        except _COMPUTED as error:
            raise UserError(f"{place}: {str(error)[:200] or type(error).__name__}") from None
        for name in {*node.references(), node.name}:
            if last_use.get(name, -1) <= index and name not in graph.outputs:
                del values[name]
    kept = {name: graph.tensors[name].values.astype(graph.tensors[name].type.dtype) for name in graph.outputs if name in graph.tensors}
    return [np.array(kept[name] if name in kept else values[name]) for name in graph.outputs]


def bind_lengths(graph: TensorGraph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Symbol -> the length that the inputs' shapes give it. Raises UserError where they contradict the graph, each other or a symbol's range."""
    lengths: dict[str, int] = {}
    for name, result in graph.inputs.items():
        if len(shapes[name]) != len(result.shape):
            raise UserError(f"graph {graph.name}: input {name} has shape {list(shapes[name])}; allowed is {list(result.shape)}")
        for length, found in zip(result.shape, shapes[name]):
            if isinstance(length, str) and length.isidentifier():
                lengths.setdefault(length, found)
    lengths = graph.checked_lengths(lengths)
    for name, result in graph.inputs.items():
        if result.numbers(lengths) != shapes[name]:
            raise UserError(f"graph {graph.name}: input {name} has shape {list(shapes[name])}; allowed is {list(result.shape)} with {lengths}")
    return lengths


def _input(graph: TensorGraph, name: str, array: np.ndarray) -> np.ndarray:
    array, dtype = np.asarray(array), graph.inputs[name].dtype
    fits = {"float32": array.dtype.kind == "f", "int64": array.dtype.kind in "iu", "bool": array.dtype.kind == "b"}[dtype]
    if not fits:
        raise UserError(f"graph {graph.name}: input {name} has dtype {array.dtype}; allowed is {dtype}")
    return array.astype(dtype, copy=False)


def _computed(node: Node, values: Mapping[str, Any], lengths: Mapping[str, int]) -> Any:
    several = node.result if isinstance(node.result, tuple) else (node.result,)
    shapes = [bounded([evaluate(length, lengths) for length in result.shape]) for result in several]
    found = FUNCTIONS[node.operator](**{name: _value(argument, values) for name, argument in node.arguments.items()})
    if not isinstance(node.result, tuple):
        return _recorded(found, node.result, shapes[0])
    if len(found) != len(several):
        raise ValueError(f"gives {len(found)} results, but the graph says {len(several)}")
    return tuple(_recorded(one, result, shape) for one, result, shape in zip(found, several, shapes))


def _recorded(found: Any, result: TensorType, shape: tuple[int, ...]) -> Any:
    if result.dtype == NUMBER:
        if abs(found) > _MAX_NUMBER:
            raise ValueError(f"the number {found} is beyond 2**63")
        return int(found)
    array = np.asarray(found)
    if array.shape != shape:
        raise ValueError(f"gives shape {list(array.shape)}, but the graph says {list(shape)}")
    return array.astype(result.dtype, copy=False)


def _value(argument: Argument, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, tuple):
        return tuple(_value(item, values) for item in argument)
    return argument
