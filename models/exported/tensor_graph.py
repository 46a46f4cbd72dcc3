"""Any model as a graph of tensors: operators in an order that respects their data, with symbolic lengths, and the tensors they read.

Plain data: neither torch nor a simulator is needed to hold, check, count or store one. `headrace.models.exported.torch_export` makes a graph of a
PyTorch module, `headrace.models.exported.tensor_graph_file` stores it, `headrace.sim.tensors.tensor_executor` runs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.models.errors import UserError
from headrace.models.exported.symbolic_lengths import MAX_LENGTH, Length, evaluate, names_of
from headrace.models.exported.tensor_operators import DTYPES, GIVES_NUMBER, NUMBER, OPERATORS, SEVERAL_RESULTS

MAX_DIMENSIONS = 12
MAX_LIST = 65536
KINDS = ("parameter", "buffer", "constant")
STORED_DTYPES = ("float32", "float16", "int64", "bool")


@dataclass(frozen=True)
class TensorType:
    """dtype (one of `DTYPES`, or `NUMBER` with shape ()) and shape, whose lengths may be expressions in the graph's symbols."""

    dtype: str
    shape: tuple[Length, ...]

    def numbers(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with every symbol replaced."""
        return tuple(evaluate(length, lengths) for length in self.shape)


@dataclass(frozen=True)
class Ref:
    """An argument that is the result of an earlier node, an input or a stored tensor."""

    name: str


Argument = None | bool | int | float | str | Ref | tuple["Argument", ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operator. `result` is a tuple for operators with several results, which `part` nodes take apart. `source` is the line of the module
    that asked for it and `module` the path of the submodule it lies in; both are for people and may be empty."""

    name: str
    operator: str
    arguments: dict[str, Argument]
    result: TensorType | tuple[TensorType, ...]
    source: str = ""
    module: str = ""

    def references(self) -> Iterator[str]:
        """Names that the arguments refer to, in order, repeated ones too."""
        yield from (ref for value in self.arguments.values() for ref in _references(value))


def _references(value: Argument) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple):
        for item in value:
            yield from _references(item)


@dataclass(frozen=True, kw_only=True)
class GraphTensor:
    """A parameter, buffer or constant, in the dtype it is kept in (one of `STORED_DTYPES`).

    A tensor whose values are not `known` (of a module on torch's meta device) counts but cannot be run; `unknown_tensor` makes one.
    """

    kind: str
    values: np.ndarray
    known: bool = True

    @property
    def type(self) -> TensorType:
        dtype = str(self.values.dtype)
        return TensorType("float32" if dtype == "float16" else dtype, self.values.shape)


def unknown_tensor(kind: str, dtype: str, shape: tuple[int, ...]) -> GraphTensor:
    """A tensor of which only dtype and shape are known; it takes no memory. Raises UserError for what no tensor can be."""
    whole = len(shape) <= MAX_DIMENSIONS and all(type(length) is int and length >= 0 for length in shape)
    if dtype not in STORED_DTYPES or not whole or math.prod(shape) > MAX_LENGTH:
        allowed = f"{', '.join(STORED_DTYPES)} and up to {MAX_LENGTH} elements"
        raise UserError(f"a tensor of {str(dtype)[:20]} and shape {str(list(shape))[:60]}; allowed are {allowed}")
    return GraphTensor(kind=kind, values=np.broadcast_to(np.zeros((), dtype), shape), known=False)


@dataclass(frozen=True, kw_only=True)
class TensorGraph:
    """A graph. Names of inputs, tensors and nodes are one name space.

    `symbols` gives each symbolic length its allowed range, the upper end None where there is none. Everything is checked on
    construction: known operators, their arguments' kinds, references backwards only, shapes in known symbols. Raises UserError.
    """

    name: str
    symbols: dict[str, tuple[int, int | None]]
    inputs: dict[str, TensorType]
    tensors: dict[str, GraphTensor]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    types: dict[str, TensorType | tuple[TensorType, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", _checked_types(self))

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors in the dtypes they are kept in."""
        return sum(tensor.values.nbytes for tensor in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Elements of all parameters; tied ones are one tensor. Buffers and constants are none."""
        return sum(tensor.values.size for tensor in self.tensors.values() if tensor.kind == "parameter")

    def operators(self) -> Counter[str]:
        """How many nodes of each operator there are."""
        return Counter(node.operator for node in self.nodes)

    def macs(self, lengths: Mapping[str, int] | None = None) -> int:
        """Multiply-accumulates of one pass in matrix products, attention and convolutions at the given symbolic lengths.

        Attention counts every query-key pair, masked or not. Element-wise operators, norms and look-ups count none.
        """
        lengths = self.checked_lengths(lengths or {})
        return sum(self.node_macs(node, lengths) for node in self.nodes)

    def macs_by_operator(self, lengths: Mapping[str, int] | None = None) -> dict[str, int]:
        """`macs`, split by operator; operators without any are left out."""
        lengths = self.checked_lengths(lengths or {})
        counts: Counter[str] = Counter()
        for node in self.nodes:
            counts[node.operator] += self.node_macs(node, lengths)
        return {name: count for name, count in counts.items() if count}

    def node_macs(self, node: Node, lengths: Mapping[str, int]) -> int:
        """Multiply-accumulates of one node."""
        count = _MACS.get(node.operator)
        if count is None:
            return 0
        shapes = {name: self.types[ref.name].numbers(lengths) for name, ref in node.arguments.items() if isinstance(ref, Ref)}
        return count(shapes, node.result.numbers(lengths))

    def checked_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """`lengths`, one whole number within its range for each symbol and none besides. Raises UserError."""
        unknown = [name for name in lengths if name not in self.symbols]
        if unknown:
            raise UserError(f"graph {self.name}: length {unknown[0]!r} is unknown; allowed: {', '.join(self.symbols) or 'none'}")
        for name, (low, high) in self.symbols.items():
            value = lengths.get(name)
            top = MAX_LENGTH if high is None else high
            if type(value) is not int or not low <= value <= top:
                raise UserError(f"graph {self.name}: length {name} = {value}; allowed is a whole number from {low} to {top}")
        return dict(lengths)


def _matmul_macs(shapes: Mapping[str, tuple[int, ...]], result: tuple[int, ...]) -> int:
    return math.prod(result) * shapes["input"][-1]


def _attention_macs(shapes: Mapping[str, tuple[int, ...]], result: tuple[int, ...]) -> int:
    query, key = shapes["query"], shapes["key"]
    return math.prod(result[:-1]) * key[-2] * (query[-1] + result[-1])


_MACS = {
    "linear": _matmul_macs,
    "matmul": _matmul_macs,
    "addmm": lambda shapes, result: math.prod(result) * shapes["mat1"][-1],
    "scaled_dot_product_attention": _attention_macs,
    "grouped_matmul": _matmul_macs,
    "convolution": lambda shapes, result: math.prod(result) * math.prod(shapes["weight"][1:]),
}
_LEAST_DIMENSIONS = {
    "linear": {"input": 1, "weight": 1}, "matmul": {"input": 1, "other": 1}, "addmm": {"mat1": 2, "mat2": 2},
    "scaled_dot_product_attention": {"query": 2, "key": 2, "value": 2}, "convolution": {"input": 2, "weight": 3},
    "grouped_matmul": {"input": 2, "weight": 3},
}


def _checked_types(graph: TensorGraph) -> dict[str, TensorType | tuple[TensorType, ...]]:
    """Name -> type of every value, after all checks."""
    where = f"graph {graph.name}"
    for name, (low, high) in graph.symbols.items():
        if not name.isidentifier() or not 0 <= low <= MAX_LENGTH or not (high is None or low <= high <= MAX_LENGTH):
            raise UserError(f"{where}: symbol {name!r} from {low} to {high}; allowed is a name with a range inside 0 to {MAX_LENGTH}")
    types: dict[str, TensorType | tuple[TensorType, ...]] = {}

    def enter(name: str, result: TensorType | tuple[TensorType, ...]) -> None:
        if name in types:
            raise UserError(f"{where}: the name {name!r} is given twice")
        types[name] = result

    for name, result in graph.inputs.items():
        _check_type(result, graph.symbols, f"{where}: input {name!r}", DTYPES)
        enter(name, result)
    for name, tensor in graph.tensors.items():
        if tensor.kind not in KINDS or str(tensor.values.dtype) not in STORED_DTYPES:
            raise UserError(
                f"{where}: tensor {name!r} is a {tensor.kind} of {tensor.values.dtype}; allowed are {', '.join(KINDS)} of {', '.join(STORED_DTYPES)}"
            )
        _check_type(tensor.type, graph.symbols, f"{where}: tensor {name!r}", DTYPES)
        enter(name, tensor.type)
    for node in graph.nodes:
        place = f"{where}: node {node.name!r} ({node.operator})"
        signature = OPERATORS.get(node.operator)
        if signature is None:
            raise UserError(f"{where}: node {node.name!r}: operator {node.operator!r} is not known" + (f", at {node.source}" if node.source else ""))
        if node.arguments.keys() != signature.keys():
            raise UserError(f"{place}: has the arguments {', '.join(node.arguments) or 'none'}; allowed are exactly {', '.join(signature)}")
        for name, kind in signature.items():
            _check_argument(node.arguments[name], kind, types, f"{place}: argument {name!r}")
        _check_result(node, graph.symbols, place)
        for name, least in _LEAST_DIMENSIONS.get(node.operator, {}).items():
            if len(types[node.arguments[name].name].shape) < least:
                raise UserError(f"{place}: argument {name!r} has {len(types[node.arguments[name].name].shape)} dimensions; needed are {least}")
        enter(node.name, node.result)
    for name in graph.outputs:
        if not isinstance(types.get(name), TensorType):
            raise UserError(f"{where}: output {name!r} is not a tensor of the graph")
    return types


def _check_result(node: Node, symbols: Mapping[str, object], place: str) -> None:
    several = isinstance(node.result, tuple)
    if several != (node.operator in SEVERAL_RESULTS):
        raise UserError(f"{place}: has {'several results' if several else 'one result'}, which this operator does not")
    allowed = (NUMBER,) if node.operator in GIVES_NUMBER else DTYPES
    for result in node.result if several else (node.result,):
        _check_type(result, symbols, place, allowed)


def _check_type(result: TensorType, symbols: Mapping[str, object], place: str, dtypes: tuple[str, ...]) -> None:
    if result.dtype not in dtypes:
        raise UserError(f"{place}: dtype {str(result.dtype)[:20]!r}; allowed: {', '.join(dtypes)}")
    if len(result.shape) > (0 if result.dtype == NUMBER else MAX_DIMENSIONS):
        raise UserError(f"{place}: has {len(result.shape)} dimensions; allowed are up to {MAX_DIMENSIONS}, and none for a number")
    for length in result.shape:
        if isinstance(length, str):
            unknown = names_of(length) - symbols.keys()
            if unknown:
                raise UserError(f"{place}: length {length!r} uses {sorted(unknown)[0]!r}; allowed: {', '.join(symbols) or 'none'}")
        elif type(length) is not int or not 0 <= length <= MAX_LENGTH:
            raise UserError(f"{place}: length {length!r}; allowed is 0 to {MAX_LENGTH}, or an expression")


def _check_argument(value: Argument, kind: str, types: Mapping[str, object], place: str) -> None:
    base, _, words = kind.partition(":")
    optional, base = base.endswith("?"), base.removesuffix("?")
    if value is None and optional:
        return

    def tensor(item: Argument) -> bool:
        found = types.get(item.name) if isinstance(item, Ref) else None
        return isinstance(found, TensorType) and found.dtype != NUMBER

    def whole(item: Argument) -> bool:
        if isinstance(item, Ref):
            found = types.get(item.name)
            return isinstance(found, TensorType) and found.dtype == NUMBER
        return type(item) is int and abs(item) <= 1 << 63  # the last is what slices end at

    def number(item: Argument) -> bool:
        return type(item) in (float, bool) or whole(item)

    def every(check, items: Argument) -> bool:
        return isinstance(items, tuple) and len(items) <= MAX_LIST and all(check(item) for item in items)

    fits = {
        "tensor": lambda: tensor(value),
        "tensors": lambda: every(tensor, value) and len(value) > 0,
        "indices": lambda: every(lambda item: item is None or tensor(item), value) and any(value),
        "operand": lambda: tensor(value) or number(value),
        "number": lambda: number(value),
        "int": lambda: whole(value),
        "ints": lambda: every(whole, value),
        "bool": lambda: type(value) is bool,
        "dtype": lambda: value in DTYPES,
        "parts": lambda: isinstance(value, Ref) and isinstance(types.get(value.name), tuple),
        "text": lambda: value in words.split("|"),
    }[base]()
    if not fits:
        shown = "nothing" if value is None else f"{value.name!r}" if isinstance(value, Ref) else repr(value)[:60]
        raise UserError(f"{place} is {shown}; needed is {base}{' ' + words if words else ''}{' or null' if optional else ''}, of earlier nodes only")
