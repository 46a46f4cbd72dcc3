"""A tensor graph in a folder: graph.json and tensors.safetensors. No pickle, no code; everything read is checked.

graph.json:

    {"format": "headrace tensor graph", "version": 1, "name": ..., "symbols": {name: [low, high or null]}, "inputs": [{"name", "dtype", "shape"}],
     "tensors": [{"name", "kind"} or, of one without values, {"name", "kind", "dtype", "shape"}], "outputs": [name],
     "nodes": [{"name", "operator", "arguments": {...}, "result": {"dtype", "shape"} or a list of them, "source", "module"}]}

An argument is a JSON value; {"ref": name} is a reference and {"number": "inf" | "-inf" | "nan"} a float that JSON has no text for.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np

from headrace.models.errors import UserError
from headrace.models.formats.safetensors_file import open_safetensors, read_json
from headrace.models.exported.tensor_graph import MAX_LIST, Argument, GraphTensor, Node, Ref, TensorGraph, TensorType, unknown_tensor

FORMAT, VERSION = "headrace tensor graph", 1
SUFFIX = ".tgraph"
GRAPH_FILE, TENSORS_FILE = "graph.json", "tensors.safetensors"
MAX_JSON_BYTES = 1 << 27
MAX_TEXT = 1000
MAX_NODES = 1 << 20
MAX_DEPTH = 3
_SAFE_DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL"}
_ITEM_BYTES = {"F32": 4, "F16": 2, "I64": 8, "BOOL": 1}
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def is_graph_folder(path: Path) -> bool:
    """A folder that claims to be a saved graph: by its suffix, or by what lies in it."""
    return path.suffix == SUFFIX or (path / GRAPH_FILE).is_file()


def save_graph(graph: TensorGraph, path: str | Path) -> Path:
    """Write `graph` into the new folder `path`, whose name ends in `.tgraph`. Written beside it first, so that no half folder is left."""
    path = Path(path)
    if path.suffix != SUFFIX:
        raise UserError(f"graph {graph.name}: {str(path)!r}; allowed is a folder that ends in {SUFFIX}")
    if path.exists():
        raise UserError(f"graph {graph.name}: {path} is there already")
    document = {
        "format": FORMAT, "version": VERSION, "name": graph.name, "symbols": {name: list(ends) for name, ends in graph.symbols.items()},
        "inputs": [{"name": name, **_type_out(result)} for name, result in graph.inputs.items()],
        "tensors": [_tensor_out(name, tensor) for name, tensor in graph.tensors.items()],
        "outputs": list(graph.outputs),
        "nodes": [
            {
                "name": node.name, "operator": node.operator,
                "arguments": {name: _argument_out(value) for name, value in node.arguments.items()},
                "result": [_type_out(one) for one in node.result] if isinstance(node.result, tuple) else _type_out(node.result),
                "source": node.source, "module": node.module,
            }
            for node in graph.nodes
        ],
    }
    try:
        temporary = Path(tempfile.mkdtemp(prefix=path.name, dir=path.parent))
        try:
            (temporary / GRAPH_FILE).write_text(_json_text(document), encoding="utf-8")
            _write_tensors(temporary / TENSORS_FILE, {name: tensor for name, tensor in graph.tensors.items() if tensor.known})
            temporary.chmod(0o755)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(f"graph {graph.name}: {path} cannot be written: {error.strerror}") from None
    return path


def load_graph(path: str | Path) -> TensorGraph:
    """The graph in a folder. Raises UserError, naming file and field, for anything that is not as `save_graph` writes it.

    Tensors are views of the mapped file (booleans are copied), so that counting a large graph reads no weights.
    """
    path = Path(path)
    file = path / GRAPH_FILE
    document = read_json(file, MAX_JSON_BYTES)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise UserError(f"{file}: format {str(document.get('format'))[:40]!r} version {str(document.get('version'))[:10]}; allowed is {FORMAT!r} {VERSION}")
    fields = {"format", "version", "name", "symbols", "inputs", "tensors", "outputs", "nodes"}
    if document.keys() != fields:
        raise UserError(f"{file}: has the fields {', '.join(sorted(document))[:200]}; needed are exactly {', '.join(sorted(fields))}")
    symbols = document["symbols"]
    if not isinstance(symbols, dict):
        raise UserError(f"{file}: field symbols must be an object of name to [low, high]")
    for name, ends in symbols.items():
        if not isinstance(ends, list) or len(ends) != 2 or type(ends[0]) is not int or not (ends[1] is None or type(ends[1]) is int):
            raise UserError(f"{file}: symbol {name[:60]!r}: {str(ends)[:60]}; allowed is [low, high or null]")
    stored = open_safetensors(path / TENSORS_FILE, _ITEM_BYTES)
    inputs: dict[str, TensorType] = {}
    for item in _objects(document["inputs"], {"name", "dtype", "shape"}, f"{file}: inputs"):
        inputs[_new_name(item, inputs, f"{file}: inputs")] = _type_in(item, f"{file}: input {item['name']!r}")
    tensors: dict[str, GraphTensor] = {}
    for item in _objects(document["tensors"], {"name", "kind"}, f"{file}: tensors", {"dtype", "shape"}):
        name = _new_name(item, tensors, f"{file}: tensors")
        kind = _text(item["kind"], f"{file}: tensor {name!r}: kind")
        if "dtype" in item:
            result = _type_in(item, f"{file}: tensor {name!r}")
            tensors[name] = unknown_tensor(kind, result.dtype, result.shape)
            continue
        if name not in stored:
            raise UserError(f"{path / TENSORS_FILE}: tensor {name!r} is missing, though {GRAPH_FILE} names it")
        tensors[name] = GraphTensor(kind=kind, values=_values(stored[name]))
    nodes = []
    for item in _objects(document["nodes"], {"name", "operator", "arguments", "result", "source", "module"}, f"{file}: nodes"):
        texts = {name: _text(item[name], f"{file}: nodes[{len(nodes)}].{name}") for name in ("name", "operator", "source", "module")}
        place = f"{file}: node {texts['name']!r}"
        if not isinstance(item["arguments"], dict):
            raise UserError(f"{place}: arguments must be an object")
        arguments = {name: _argument_in(value, f"{place}: argument {name[:60]!r}") for name, value in item["arguments"].items()}
        result = item["result"]
        if isinstance(result, list):
            found = tuple(_type_in(one, place) for one in _objects(result, {"dtype", "shape"}, f"{place}: result"))
        else:
            found = _type_in(_objects([result], {"dtype", "shape"}, f"{place}: result")[0], place)
        nodes.append(Node(arguments=arguments, result=found, **texts))
    outputs = document["outputs"]
    if not isinstance(outputs, list) or len(outputs) > MAX_LIST or not all(isinstance(name, str) for name in outputs):
        raise UserError(f"{file}: field outputs must be a list of names")
    try:
        return TensorGraph(
            name=_text(document["name"], f"{file}: name"), symbols={name: tuple(ends) for name, ends in symbols.items()}, inputs=inputs,
            tensors=tensors, nodes=tuple(nodes), outputs=tuple(outputs),
        )
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _json_text(document: dict[str, object]) -> str:
    """One node a line, so that two graphs can be compared by eye and by diff."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            items = ",\n".join(f"  {json.dumps(item, allow_nan=False)}" for item in value)
            lines.append(f"{json.dumps(key)}: [\n{items}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{" + ",\n".join(lines) + "}\n"


def _tensor_out(name: str, tensor: GraphTensor) -> dict[str, object]:
    named = {"name": name, "kind": tensor.kind}
    return named if tensor.known else {**named, "dtype": str(tensor.values.dtype), "shape": list(tensor.values.shape)}


def _type_out(result: TensorType) -> dict[str, object]:
    return {"dtype": result.dtype, "shape": list(result.shape)}


def _type_in(item: dict[str, object], place: str) -> TensorType:
    dtype, shape = _text(item["dtype"], f"{place}: dtype"), item["shape"]
    if not isinstance(shape, list) or not all(type(length) in (int, str) for length in shape):
        raise UserError(f"{place}: shape {str(shape)[:60]}; allowed is a list of whole numbers and expressions")
    return TensorType(dtype, tuple(shape))


def _argument_out(value: Argument) -> object:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, tuple):
        return [_argument_out(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def _argument_in(value: object, place: str, depth: int = 0) -> Argument:
    if isinstance(value, list) and len(value) <= MAX_LIST and depth < MAX_DEPTH:
        return tuple(_argument_in(item, place, depth + 1) for item in value)
    if isinstance(value, dict) and value.keys() == {"ref"} and isinstance(value["ref"], str):
        return Ref(value["ref"])
    if isinstance(value, dict) and value.keys() == {"number"} and isinstance(value["number"], str) and value["number"] in _NON_FINITE:
        return _NON_FINITE[value["number"]]
    if isinstance(value, float) and not math.isfinite(value) or isinstance(value, (list, dict)):
        raise UserError(f"{place} is {str(value)[:60]}; allowed is a JSON value, a list, {{\"ref\": name}} or {{\"number\": \"inf\"}}")
    return _text(value, place) if isinstance(value, str) else value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise UserError(f"{place} is {str(value)[:60]!r}; allowed is printable text of up to {MAX_TEXT} characters")
    return value


def _objects(value: object, keys: set[str], place: str, more: set[str] = frozenset()) -> list[dict[str, object]]:
    """A list of objects with exactly `keys`, or with these and `more`."""
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise UserError(f"{place} must be a list of up to {MAX_NODES} objects")
    for item in value:
        if not isinstance(item, dict) or item.keys() not in (keys, keys | more):
            raise UserError(f"{place}: {str(item)[:60]}; needed is an object with exactly {', '.join(sorted(keys))}")
    return value


def _new_name(item: dict[str, object], known: dict[str, object], place: str) -> str:
    name = _text(item["name"], f"{place}: name")
    if name in known:
        raise UserError(f"{place}: the name {name!r} is given twice")
    return name


def _write_tensors(path: Path, tensors: dict[str, GraphTensor]) -> None:
    """A safetensors file: header length, JSON header, data in the header's order."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.values.nbytes
        header[name] = {
            "dtype": _SAFE_DTYPES[str(tensor.values.dtype)], "shape": list(tensor.values.shape), "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of 8, as the format asks of writers
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.values).tobytes())


def _values(stored) -> np.ndarray:
    raw = np.frombuffer(stored.data, np.uint8, stored.end - stored.start, stored.start)
    if stored.dtype == "BOOL":
        return (raw != 0).reshape(stored.shape)
    return raw.view({"F32": "<f4", "F16": "<f2", "I64": "<i8"}[stored.dtype]).reshape(stored.shape)
