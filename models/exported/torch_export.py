"""A tensor graph of any `torch.nn.Module`, through `torch.export`.

    module = transformers.AutoModelForCausalLM.from_pretrained(..., use_cache=False).eval()
    tokens = torch.export.Dim("tokens", min=2, max=2048)
    graph = export_module(module, (torch.zeros(1, 8, dtype=torch.long),), dynamic_shapes=({1: tokens},))

The graph keeps the operators that `torch.export` leaves: a linear is a linear and attention is attention, as a cost model wants to see
them. Only operators that the vocabulary lacks are decomposed, by PyTorch's own rules (`run_decompositions` with a table of those alone,
which also makes in-place operators functional), until all are known; one that no rule takes apart is named with the line of the module
that asked for it. How an operator is said in the vocabulary stands in `headrace.models.exported.torch_operators`.

torch is imported in this file's functions alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.models.errors import UserError
from headrace.models.exported.symbolic_lengths import names_of
from headrace.models.exported.tensor_graph import Argument, GraphTensor, Node, Ref, TensorGraph, TensorType, unknown_tensor
from headrace.models.exported.tensor_operators import GIVES_NUMBER, NUMBER, SEVERAL_RESULTS
from headrace.models.exported.torch_operators import (
    ALIASES, CHECKS_ONLY, FIRST_RESULT, LENGTH_FUNCTIONS, SAME_VALUES, Arguments, Unknown, in_vocabulary,
)

if TYPE_CHECKING:
    import torch

MAX_DECOMPOSITIONS = 8
"""Rounds of taking apart what is not known. PyTorch's rules are a few operators deep."""

_IN_PLACE = " (it changes its input)"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def export_module(
    module: torch.nn.Module, example_inputs: Sequence[Any], dynamic_shapes: Any = None, *, name: str | None = None
) -> TensorGraph:
    """The graph of `module(*example_inputs)`, which runs under `torch.no_grad`.

    `dynamic_shapes` is torch.export's: for each input a dimension -> `torch.export.Dim`; the Dims' names become the graph's symbols.
    Lengths without a Dim are fixed to those of the example. Raises UserError where torch is missing or cannot export the module, and what
    `from_exported` raises.
    """
    torch = _torch()
    name = name or type(module).__name__
    if not isinstance(example_inputs, (tuple, list)):
        raise UserError(f"module {name}: example_inputs is a {type(example_inputs).__name__}; allowed is a tuple of the module's inputs")
    if module.training:
        raise UserError(f"module {name}: is in training mode; allowed is one after module.eval()")
    try:
        with torch.no_grad():
            program = torch.export.export(module, tuple(example_inputs), dynamic_shapes=dynamic_shapes)
    except Exception as error:  # what stops an export is the module's own code, so any exception is possible
        raise UserError(f"module {name}: torch.export: {_in_short(error)}") from error
    return from_exported(program, name=name, names=_dim_names(program, module, example_inputs, dynamic_shapes))


def from_exported(program: torch.export.ExportedProgram, *, name: str = "module", names: Mapping[str, str] | None = None) -> TensorGraph:
    """The graph of an exported program. `names` maps torch's symbols (`s70`) to names of lengths; others are named INPUT_DIMENSION.

    Raises UserError, one line: for an operator that is not known, with its source line; for a module that changes its buffers or inputs,
    or has tensors of complex or quantised type; for lengths that depend on data.
    """
    torch = _torch()
    unknown: dict[Any, tuple[Any, str]] = {}
    asked = {node.name: node for node in program.graph.nodes}
    for _ in range(MAX_DECOMPOSITIONS):
        reader = _Reader(program, name, names or {})
        if not reader.unknown:
            return reader.graph()
        if reader.unknown.keys() == unknown.keys():
            break
        unknown = reader.unknown
        targets = [target for target in unknown if isinstance(target, torch._ops.OpOverload)]
        default = torch.export.default_decompositions()
        table = {target: default[target] for target in targets if target in default}
        try:
            with torch.no_grad():
                program = program.run_decompositions(table)
        except Exception as error:  # the rules are functions of PyTorch's that say nowhere what they raise; what was not known stays so
            reason = f"; PyTorch's rules to take it apart: {_in_short(error)}"
            raise UserError(f"module {name}: {_what_is_unknown(list(unknown.values()), asked)}{reason}") from error
    raise UserError(f"module {name}: {_what_is_unknown(list(unknown.values()), asked)}")


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:400]}"


def _what_is_unknown(found: Sequence[tuple[Any, str]], asked: Mapping[str, Any]) -> str:
    """The first operator that is not known, with its source line, and the names of the others. What merely works in place stands behind."""
    node, reason = min(found, key=lambda item: _IN_PLACE in item[1])
    origin = _origin(node, asked)
    part = "" if origin.target == node.target else f" (nor is {_target_name(node.target)}, which it is made of)"
    source = _source(origin, full_path=True) or "by the module itself"
    others = dict.fromkeys(_target_name(_origin(other, asked).target) for other, why in found if _IN_PLACE not in why)
    others.pop(_target_name(origin.target), None)
    more = f"; nor are {', '.join(others)}"[:200] if others else ""
    return f"operator {_target_name(origin.target)} is not known{part}{reason}, asked for {source}{more}"


def _torch():
    try:
        import torch
    except ImportError:
        raise UserError("torch is not installed, which the export of a module needs; allowed is `pip install 'headrace[gpu]'`") from None
    return torch


def _target_name(target: Any) -> str:
    return str(target) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))


def _origin(node: Any, asked: Mapping[str, Any]) -> Any:
    """The node of the first program that a node of a decomposed one was made of; the node itself where torch does not say."""
    name, sources = node.name, node.meta.get("from_node")
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return asked.get(name, node)


def _source(node: Any, *, full_path: bool = False) -> str:
    """The last line of the module's own code that led to a node, torch's lines left out: "at FILE:LINE in FUNCTION", or nothing."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if "torch" not in Path(frame[0]).parts] or (frames if full_path else [])
    if not own:
        return ""
    file, line, function = own[-1]
    return f"at {file if full_path else Path(file).name}:{line} in {function}"


def _module_path(node: Any) -> str:
    stack = node.meta.get("nn_module_stack")
    return next(reversed(stack.values()))[0] if stack else ""


def _dim_names(program: Any, module: Any, example_inputs: Sequence[Any], dynamic_shapes: Any) -> dict[str, str]:
    """torch's symbol -> the name of the Dim that the user gave; Dims without a name of their own (AUTO, DYNAMIC) are left out."""
    if isinstance(dynamic_shapes, Mapping):
        bound = inspect.signature(module.forward).bind(*example_inputs).arguments
        dynamic_shapes = [dynamic_shapes.get(argument) for argument in bound]
    specs: list[Any] = []
    _collect_specs(list(example_inputs), dynamic_shapes, specs)
    user = set(program.graph_signature.user_inputs)
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in user]
    names: dict[str, str] = {}
    for value, spec in zip((value for value in values if hasattr(value, "shape")), specs):
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for index, dim in dims:
            dim_name, length = getattr(dim, "__name__", None), value.shape[index]
            if isinstance(dim_name, str) and dim_name.isidentifier() and not isinstance(length, int):
                names[str(length)] = dim_name
    return names


def _collect_specs(value: Any, spec: Any, specs: list[Any]) -> None:
    """Append the dynamic shape of every tensor in a tree of inputs, in order."""
    if hasattr(value, "shape"):
        specs.append(spec)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect_specs(item, spec.get(key) if isinstance(spec, Mapping) else None, specs)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _collect_specs(item, spec[index] if isinstance(spec, (list, tuple)) and index < len(spec) else None, specs)


class _Reader:
    """One walk over an exported program. `unknown` holds, by target, the first node that the vocabulary cannot say, and why."""

    def __init__(self, program: Any, name: str, names: Mapping[str, str]):
        self.torch = _torch()
        self.program, self.name, self.names = program, name, dict(names)
        self.values: dict[str, Argument] = {}  # name of a torch node -> what refers to it
        self.types: dict[str, TensorType] = {}
        self.inputs: dict[str, TensorType] = {}
        self.tensors: dict[str, GraphTensor] = {}
        self.nodes: list[Node] = []
        self.unknown: dict[Any, tuple[Any, str]] = {}
        self._read_inputs()
        for node in program.graph.nodes:
            if node.op == "call_function":
                try:
                    self._read(node)
                except Unknown as error:
                    self.unknown.setdefault(node.target, (node, str(error)))
                    self._assume(node)
            elif node.op == "get_attr":  # a subgraph, of control flow that depends on data
                self._assume(node)

    def graph(self) -> TensorGraph:
        kind = self.torch.export.graph_signature.OutputKind.USER_OUTPUT
        outputs: list[str] = []
        for spec in self.program.graph_signature.output_specs:
            if spec.kind != kind:
                raise UserError(f"module {self.name}: changes {spec.target or spec.arg.name}; allowed is a module that changes neither buffers nor inputs")
            value = self.values.get(getattr(spec.arg, "name", ""))
            if isinstance(value, Ref) and self.types[value.name].dtype != NUMBER:
                outputs.append(value.name)
        if not outputs:
            raise UserError(f"module {self.name}: gives no tensor")
        return TensorGraph(
            name=self.name, symbols=self._symbols(), inputs=self.inputs, tensors=self.tensors, nodes=self._needed(outputs),
            outputs=tuple(outputs)
        )

    def _needed(self, outputs: Sequence[str]) -> tuple[Node, ...]:
        """The nodes that the outputs depend on. PyTorch's functional pass leaves the others out, and a graph should not depend on whether it ran."""
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if node.name in needed:
                kept.append(node)
                needed.update(node.references())
        return tuple(reversed(kept))

    def _assume(self, node: Any) -> None:
        """Take what torch says of a node's result, so that the walk goes on and finds what else is not known."""
        value = node.meta.get("val")
        several = value if isinstance(value, (list, tuple)) else (value,)
        types = []
        for one in several:
            try:
                types.append(self._type(one, node) if isinstance(one, self.torch.Tensor) else TensorType(NUMBER, ()))
            except Unknown:
                types.append(TensorType("float32", tuple(1 for _ in one.shape)))
        self.types[node.name] = tuple(types) if isinstance(value, (list, tuple)) else types[0]
        self.values[node.name] = Ref(node.name)

    def _symbols(self) -> dict[str, tuple[int, int | None]]:
        ranges = {self._renamed(str(symbol)): ends for symbol, ends in self.program.range_constraints.items()}
        used = sorted({name for result in self.inputs.values() for length in result.shape for name in names_of(length)})
        symbols = {}
        for name in used:
            ends = ranges.get(name)
            low = max(int(ends.lower), 0) if ends is not None else 0
            symbols[name] = (low, int(ends.upper) if ends is not None and ends.upper.is_Integer and ends.upper < 1 << 48 else None)
        return symbols

    def _read_inputs(self) -> None:
        kinds = self.torch.export.graph_signature.InputKind
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        taken = {node.name for node in self.program.graph.nodes}
        shared: dict[tuple, str] = {}
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            value = node.meta.get("val")
            if spec.kind == kinds.USER_INPUT:
                if not isinstance(value, self.torch.Tensor):
                    if isinstance(value, self.torch.SymInt):
                        raise UserError(f"module {self.name}: input {node.name} is a number that changes; allowed are tensors and fixed values")
                    self.values[node.name] = value
                    continue
                for index, length in enumerate(value.shape):
                    if not isinstance(length, int) and str(length).isidentifier() and str(length) not in self.names:
                        length_name = f"{node.name}_{index}"
                        while length_name in self.names.values():
                            length_name += "_"
                        self.names[str(length)] = length_name
                self.inputs[node.name] = self.types[node.name] = self._type(value, node)
                self.values[node.name] = Ref(node.name)
                continue
            if spec.kind not in (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR):
                raise UserError(f"module {self.name}: {spec.target or node.name} is a {spec.kind.name.lower()}; allowed are tensors")
            tensor = self.program.state_dict.get(spec.target, self.program.constants.get(spec.target))
            # Tied parameters are one: the same memory read in the same way.
            if tensor.is_meta or not tensor.numel():  # no memory to compare
                key = (id(tensor),)
            else:
                key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if key not in shared:
                shared[key] = spec.target if spec.target not in taken else node.name
                kind = {kinds.PARAMETER: "parameter", kinds.BUFFER: "buffer"}.get(spec.kind, "constant")
                self.tensors[shared[key]] = self._stored(tensor, kind, spec.target)
                self.types[shared[key]] = self.tensors[shared[key]].type
            self.values[node.name] = Ref(shared[key])

    def _stored(self, tensor: Any, kind: str, target: str) -> GraphTensor:
        torch = self.torch
        if tensor.is_quantized or tensor.is_complex() or tensor.layout != torch.strided:
            raise UserError(f"module {self.name}: tensor {target} is {tensor.dtype} in layout {tensor.layout}; allowed are plain tensors of real numbers")
        if tensor.is_floating_point():
            dtype = torch.float16 if tensor.dtype == torch.float16 else torch.float32  # numpy has no bfloat16
        else:
            dtype = torch.bool if tensor.dtype == torch.bool else torch.int64
        if tensor.is_meta:
            return unknown_tensor(kind, str(dtype).removeprefix("torch."), tuple(tensor.shape))
        return GraphTensor(kind=kind, values=tensor.detach().cpu().to(dtype).contiguous().numpy().copy())

    def _renamed(self, text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda match: self.names.get(match[0], match[0]), text)

    def _type(self, value: Any, node: Any) -> TensorType:
        shape = tuple(length if isinstance(length, int) else self._renamed(str(length)) for length in value.shape)
        for length in shape:
            if any(re.fullmatch(r"u\d+", name) for name in names_of(length)):
                raise Unknown(f" (its length {length} depends on data)")
        return TensorType(self._dtype(value.dtype), shape)

    def _dtype(self, dtype: Any) -> str:
        if dtype == self.torch.bool:
            return "bool"
        if dtype.is_complex:
            raise Unknown(" (complex numbers)")
        return "float32" if dtype.is_floating_point else "int64"

    def _value(self, value: Any) -> Argument:
        torch = self.torch
        if isinstance(value, torch.fx.Node):
            return self.values[value.name]
        if isinstance(value, (list, tuple)):
            return tuple(self._value(item) for item in value)
        if isinstance(value, torch.dtype):
            return self._dtype(value)
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise Unknown(f" (an argument of type {type(value).__name__})")

    def _read(self, node: Any) -> None:
        torch, target, value = self.torch, node.target, node.meta.get("val")
        if not isinstance(target, torch._ops.OpOverload):
            self._read_python(node)
            return
        if target.namespace != "aten" and target._schema.name.replace("::", ".") not in ALIASES:
            raise Unknown("")
        packet, full = target._schema.name.removeprefix("aten::").replace("::", "."), str(target).removeprefix("aten.")
        if packet in CHECKS_ONLY:
            return
        if target._schema.is_mutable and packet not in SAME_VALUES:
            raise Unknown(_IN_PLACE)
        arguments = self._bound(node)
        if packet in SAME_VALUES or packet == "dropout" and (not arguments["train"] or arguments["p"] == 0):
            self.values[node.name] = arguments["input"]
            return
        if isinstance(value, torch.Tensor):
            result = self._type(value, node)
        elif packet in FIRST_RESULT:
            result = self._type(value[0], node)
        elif isinstance(value, (list, tuple)) and all(isinstance(one, torch.Tensor) for one in value):
            result = tuple(self._type(one, node) for one in value)
        elif isinstance(value, (int, torch.SymInt)) and packet == "sym_size":
            result = TensorType(NUMBER, ())
        else:
            raise Unknown("")
        operator, arguments = in_vocabulary(packet, full, arguments, target._schema, result, self.types)
        if operator == "cast" and self.types[arguments["input"].name].dtype == result.dtype:
            self.values[node.name] = arguments["input"]
            return
        if isinstance(result, tuple) != (operator in SEVERAL_RESULTS) or (operator in GIVES_NUMBER) != (result == TensorType(NUMBER, ())):
            raise Unknown("")
        self._append(node, operator, arguments, result)

    def _read_python(self, node: Any) -> None:
        """Arithmetic on lengths, and one of several results."""
        name = _target_name(node.target)
        arguments = [self._value(argument) for argument in node.args]
        if name == "getitem" and isinstance(arguments[0], Ref) and type(arguments[1]) is int:
            several = self.types.get(arguments[0].name)
            if isinstance(several, TensorType) and arguments[1] == 0 and several.dtype != NUMBER:  # of FIRST_RESULT
                self.values[node.name] = arguments[0]
                return
            if isinstance(several, tuple):
                self._append(node, "part", {"input": arguments[0], "index": arguments[1]}, several[arguments[1]])
                return
        number = isinstance(node.meta.get("val"), (int, self.torch.SymInt))
        if name == "neg" and number:
            self._append(node, "length_neg", {"input": arguments[0]}, TensorType(NUMBER, ()))
        elif name in LENGTH_FUNCTIONS and number and len(arguments) == 2:
            self._append(node, f"length_{LENGTH_FUNCTIONS[name]}", {"input": arguments[0], "other": arguments[1]}, TensorType(NUMBER, ()))
        elif not _only_checked(node):
            raise Unknown("")

    def _append(self, node: Any, operator: str, arguments: Arguments, result: TensorType | tuple[TensorType, ...]) -> None:
        self.nodes.append(Node(
            name=node.name, operator=operator, arguments=arguments, result=result, source=_source(node).removeprefix("at "),
            module=_module_path(node)
        ))
        self.types[node.name] = result
        self.values[node.name] = Ref(node.name)

    def _bound(self, node: Any) -> Arguments:
        """Arguments by name, defaults filled in; the first is always `input`."""
        bound: Arguments = {}
        for index, argument in enumerate(node.target._schema.arguments):
            if index < len(node.args):
                value = node.args[index]
            else:
                value = node.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
            bound["input" if argument.name == "self" else argument.name] = self._value(value)
        return bound


def _only_checked(node: Any) -> bool:
    """Nothing but assertions depends on the node."""
    return all(
        _target_name(user.target).startswith("aten._assert") or user.op == "call_function" and user.users and _only_checked(user)
        for user in node.users
    )
