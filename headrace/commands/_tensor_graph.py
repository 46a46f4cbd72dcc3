"""What `headrace models show` prints of a saved tensor graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.models.errors import UserError
from headrace.output import emit_json, print_table


def show_graph(path: Path, given: Sequence[str], as_json: bool, seed: int) -> None:
    """Parameters, bytes of all tensors, multiply-accumulates of a pass and operators by kind. `given` holds NAME=N for symbolic lengths; where one is
    missing, counts that depend on lengths are null and the lengths that are needed are named."""
    from headrace.models.exported.tensor_graph_file import load_graph

    graph = load_graph(path)
    lengths = dict(_length(text) for text in given)
    missing = [name for name in graph.symbols if name not in lengths]
    for name in lengths:
        if name not in graph.symbols:
            raise UserError(f"--length {name}: {path} has no such length; allowed: {', '.join(graph.symbols) or 'none'}")
    macs = None if missing else graph.macs_by_operator(lengths)
    operators = [
        {"operator": name, "nodes": count, "macs": None if macs is None else macs.get(name, 0)} for name, count in graph.operators().most_common()
    ]
    document = {
        "model": graph.name,
        "parameters": graph.parameters,
        "tensor_bytes": graph.tensor_bytes,
        "lengths": {name: lengths.get(name) for name in graph.symbols},
        "macs_per_pass": None if macs is None else sum(macs.values()),
        "inputs": {name: {"dtype": result.dtype, "shape": list(result.shape)} for name, result in graph.inputs.items()},
        "operators": operators,
    }
    if as_json:
        emit_json(document, {"graph": graph.name, "lengths": lengths}, seed)
        return
    rows = [(name, document[name]) for name in ("model", "parameters", "tensor_bytes", "macs_per_pass")]
    rows += [(f"input {name}", f"{result.dtype} {list(result.shape)}") for name, result in graph.inputs.items()]
    for name, (low, high) in graph.symbols.items():
        needed = f"give --length {name}=N, from {low}" + ("" if high is None else f" to {high}")
        rows.append((f"length {name}", lengths.get(name, needed)))
    print_table(["field", "value"], rows)
    print_table(["operator", "nodes", "macs"], [list(row.values()) for row in operators])


def _length(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals or not number.strip().isdecimal() or len(number) > 18:
        raise UserError(f"--length {text[:60]!r}: must read NAME=N with a whole number, for example tokens=128")
    return name.strip(), int(number)
