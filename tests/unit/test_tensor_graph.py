"""Tensor graphs without torch: the executor against stored outputs of PyTorch and against formulas, counts, files and their mistakes."""

import json
import math
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headrace.cli import main
from headrace.models.errors import UserError
from headrace.models.exported.symbolic_lengths import evaluate, names_of
from headrace.models.exported.tensor_graph import GraphTensor, Node, Ref, TensorGraph, TensorType, unknown_tensor
from headrace.models.exported.tensor_graph_file import load_graph, save_graph
from headrace.models.exported.tensor_operators import OPERATORS
from headrace.models.exported.torch_export import export_module
from headrace.sim.tensors.tensor_executor import run
from headrace.sim.tensors.tensor_functions import FUNCTIONS

DATA = Path(__file__).parents[1] / "data" / "tensor_graphs"
NAMES = ("block", "operators")


def stored_runs(name: str, graph: TensorGraph):
    """(inputs, PyTorch's outputs) of each run that tests/tensor_graph_fixture.py stored."""
    arrays = load_file(DATA / f"{name}_runs.safetensors")
    for index in range(len({key.partition(".")[0] for key in arrays})):
        outputs = [arrays[f"run{index}.output.{number}"] for number in range(len(graph.outputs))]
        yield {key: arrays[f"run{index}.input.{key}"] for key in graph.inputs}, outputs


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_pytorch_at_every_stored_length(name):
    graph = load_graph(DATA / f"{name}.tgraph")
    runs = list(stored_runs(name, graph))
    assert len({tuple(array.shape for array in inputs.values()) for inputs, _ in runs}) == len(runs) > 1
    for inputs, expected in runs:
        for output, found, wanted in zip(graph.outputs, run(graph, inputs), expected, strict=True):
            assert found.dtype == (np.float32 if wanted.dtype.kind == "f" else wanted.dtype), output
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=f"{name}: {output}")


def test_the_stored_graphs_use_every_operator():
    used = {operator for name in NAMES for operator in load_graph(DATA / f"{name}.tgraph").operators()}
    assert used | {"flatten"} == OPERATORS.keys() == FUNCTIONS.keys()  # where anything is decomposed, torch makes flatten a view


def test_flatten():
    x = np.arange(24).reshape(2, 3, 4, 1)
    assert [FUNCTIONS["flatten"](x, *ends).shape for ends in ((0, -1), (1, 2), (-2, -1), (2, 2))] == [(24,), (2, 12, 1), (2, 3, 4),
        (2, 3, 4, 1)]
    assert FUNCTIONS["flatten"](np.float32(3), 0, -1).shape == (1,) and FUNCTIONS["flatten"](x, 1, 2).ravel().tolist() == list(range(24))


def test_a_changed_weight_is_seen():
    graph = load_graph(DATA / "block.tgraph")
    inputs, expected = next(stored_runs("block", graph))
    values = graph.tensors["down.weight"].values.copy()
    values[0, 0] += 0.5
    changed = {**graph.tensors, "down.weight": GraphTensor(kind="parameter", values=values)}
    other = TensorGraph(name="x", symbols=graph.symbols, inputs=graph.inputs, tensors=changed, nodes=graph.nodes, outputs=graph.outputs)
    assert np.abs(run(other, inputs)[0] - expected[0]).max() > 1e-3


def test_counts_of_the_stored_block():
    """Formulas from the module's sizes: width 8, vocabulary 11, two heads of 4, convolution of 3 taps per channel with padding 2."""
    graph, width, vocab = load_graph(DATA / "block.tgraph"), 8, 11
    norms = 3 * width
    assert graph.parameters == vocab * width + norms + 3 * width * (width + 1) + width * (3 + 1) + 4 * width * width + width * (2 * width + 1)
    for batch, tokens in ((1, 1), (2, 5), (3, 64)):
        linears = batch * tokens * (3 * width * width + 4 * width * width + 2 * width * width + vocab * width)
        attention, convolution = 2 * batch * tokens * tokens * width, batch * (tokens + 2) * width * 3
        lengths = {"batch": batch, "tokens": tokens}
        assert graph.macs(lengths) == linears + attention + convolution
        assert graph.macs_by_operator(lengths) == {"linear": linears, "scaled_dot_product_attention": attention, "convolution": convolution}


# Functions against formulas written with loops.


def test_attention_by_loops():
    rng = np.random.default_rng(1)
    query, key, value = (rng.standard_normal((4, length, 3), np.float32) for length in (3, 5, 5))
    mask = rng.random((4, 3, 5)) < 0.6
    mask[:, 0] = False  # a query that sees nothing gives zeros
    found = FUNCTIONS["scaled_dot_product_attention"](query, key[:2], value[:2], mask, True, 0.7, True)
    for head in range(4):
        for i in range(3):
            seen = [j for j in range(5) if mask[head, i, j] and j <= i]
            weights = {j: math.exp(0.7 * sum(float(query[head, i, d]) * float(key[head // 2, j, d]) for d in range(3))) for j in seen}
            for d in range(3):
                expected = sum(weights[j] * float(value[head // 2, j, d]) for j in seen) / sum(weights.values()) if seen else 0.0
                assert found[head, i, d] == pytest.approx(expected, abs=1e-6)


def test_convolution_by_loops():
    rng = np.random.default_rng(2)
    x, weight, bias = rng.standard_normal((2, 4, 7)), rng.standard_normal((6, 2, 3)), rng.standard_normal(6)
    found = FUNCTIONS["convolution"](x, weight, bias, (2,), (3,), (2,), 2)
    assert found.shape == (2, 6, (7 + 6 - 4 - 1) // 2 + 1)
    for batch, channel, position in np.ndindex(found.shape):
        total = bias[channel]
        for c in range(2):
            for tap in range(3):
                at = position * 2 + tap * 2 - 3
                total += weight[channel, c, tap] * x[batch, channel // 3 * 2 + c, at] if 0 <= at < 7 else 0
        assert found[batch, channel, position] == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(("name", "arguments", "formula"), [
    ("gelu", ("none",), lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))),
    ("silu", (), lambda x: x * 0.5 * (1 + math.tanh(x / 2))),
    ("sigmoid", (), lambda x: 0.5 * (1 + math.tanh(x / 2))),
    ("softplus", (1, 20), lambda x: max(x, 0) + math.log1p(math.exp(-abs(x)))),
    ("mish", (), lambda x: x * (1 - 2 / (1 + (1 + math.exp(x)) ** 2))),
    ("log_sigmoid", (), lambda x: -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))),
])
def test_activation_by_formula(name, arguments, formula):
    x = np.linspace(-30, 30, 241, dtype=np.float32)
    np.testing.assert_allclose(FUNCTIONS[name](x, *arguments), [formula(float(value)) for value in x], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("name", "arguments"), [
    ("expand", (np.zeros(1), (1 << 20, 1 << 20))), ("full", ((1 << 40,), 0, "bool")), ("repeat", (np.zeros(4), (1 << 30,))),
    ("arange", (0, 1e12, 1, "int64")),
    ("add", (np.broadcast_to(np.zeros(1), (1 << 20, 1)), np.broadcast_to(np.zeros(1), 1 << 20), 1)),
    ("one_hot", (np.zeros(1 << 10, np.int64), 1 << 30)),
    ("matmul", (np.broadcast_to(np.zeros(1), (1 << 20, 1)), np.broadcast_to(np.zeros(1), (1, 1 << 20)))),
    ("pad", (np.zeros(4), (0, 1 << 40), 0)),
    ("clamp", (np.zeros(1), np.broadcast_to(np.zeros(1), (1 << 16, 1)), np.broadcast_to(np.zeros(1), 1 << 16))),
    ("embedding", (np.broadcast_to(np.zeros(1), (1, 1 << 20)), np.broadcast_to(np.zeros(1, np.int64), 1 << 20))),
    ("index", (np.broadcast_to(np.zeros(1), (1, 1 << 20)), (np.broadcast_to(np.zeros(1, np.int64), 1 << 20),))),
    ("repeat_interleave", (np.zeros(4), 1 << 40, 0)),
])
def test_a_result_that_is_too_large_is_refused_before_it_is_made(name, arguments):
    with pytest.raises(ValueError, match="larger than"):
        FUNCTIONS[name](*arguments)


# Lengths.


def test_lengths_are_evaluated():
    lengths = {"s": 7, "t": 3}
    for text, expected in {
        "s": 7, "2*s - t": 11, "s**2 // t": 16, "Mod(s, t) + FloorDiv(s, 2)": 4, "Max(s, t, 9) * Min(s, t)": 27, "-(s)": -7,
        "(s + 1) % 5": 3,
    }.items():
        assert evaluate(text, lengths) == expected, text
        assert names_of(text) <= lengths.keys()
    assert evaluate(5, {}) == 5 and names_of("Max(s, t*u)") == {"s", "t", "u"}


@pytest.mark.parametrize("text", [
    "", "s +", "s / 2", "__import__('os')", "s.real", "s if t else 2", "s ** s", "2 ** 9", "Max(s)", "Max(s, t=1)", "1.5", "True",
    "[s]", "s" * 500, "(" * 300, "s < t", "lambda: 1", "exec(s, t)",
])
def test_what_is_not_a_length_is_refused(text):
    with pytest.raises(UserError):
        names_of(text)
        evaluate(text, {"s": 2, "t": 3})


@pytest.mark.parametrize("text", ["s // (t - t)", "s % 0", "(((s**8)**8)**8)**8", "u"])
def test_a_length_without_a_value_is_refused(text):
    with pytest.raises(UserError):
        evaluate(text, {"s": 1000, "t": 3})


# Graphs and files.


def small(nodes=None, **changes) -> TensorGraph:
    """y = x @ weight.T, then a sum, with x [n, 2]."""
    parts = {
        "name": "small", "symbols": {"n": (1, 8)}, "inputs": {"x": TensorType("float32", ("n", 2))},
        "tensors": {"weight": GraphTensor(kind="parameter", values=np.float32([[1, 2], [3, 4], [5, 6]]))}, "outputs": ("total",),
        "nodes": nodes or (
            Node(name="y", operator="linear", arguments={"input": Ref("x"), "weight": Ref("weight"), "bias": None},
                result=TensorType("float32", ("n", 3)), source="a.py:7"),
            Node(name="total", operator="sum", arguments={"input": Ref("y"), "dim": (-1,), "keepdim": False},
                result=TensorType("float32", ("n",))),
        ),
    }
    return TensorGraph(**{**parts, **changes})


def test_a_graph_by_hand():
    graph = small()
    assert run(graph, {"x": np.float32([[1, 1], [2, 0]])})[0].tolist() == [21, 18]
    assert graph.macs({"n": 4}) == 4 * 2 * 3 and graph.parameters == 6


@pytest.mark.parametrize(("inputs", "words"), [
    ({}, "needed are exactly x"), ({"x": np.zeros((2, 2)), "z": 1}, "needed are exactly x"),
    ({"x": np.zeros((2, 2), int)}, "dtype int64; allowed is float32"),
    ({"x": np.zeros(2)}, "shape [2]"), ({"x": np.zeros((2, 3))}, "shape [2, 3]"),
    ({"x": np.zeros((9, 2))}, "n = 9; allowed is a whole number from 1 to 8"),
])
def test_inputs_that_do_not_fit(inputs, words):
    with pytest.raises(UserError) as error:
        run(small(), inputs)
    assert words in str(error.value)


def node(**changes) -> Node:
    return Node(**{"name": "y", "operator": "neg", "arguments": {"input": Ref("x")}, "result": TensorType("float32", ("n", 2)), **changes})


@pytest.mark.parametrize(("wrong", "words"), [
    (node(operator="eval", source="m.py:3 in forward"), "operator 'eval' is not known, at m.py:3"),
    (node(arguments={}), "allowed are exactly input"), (node(arguments={"input": Ref("y")}), "'y'"),
    (node(arguments={"input": 3}), "needed is tensor"), (node(name="x"), "given twice"),
    (node(result=TensorType("float64", (2,))), "dtype 'float64'"),
    (node(result=TensorType("number", ())), "dtype 'number'"), (node(result=(TensorType("bool", ()),)), "several results"),
    (node(result=TensorType("float32", ("m",))), "uses 'm'"),
    (node(result=TensorType("float32", (-1,))), "length -1"), (node(result=TensorType("float32", (1,) * 13)), "13 dimensions"),
    (node(result=TensorType("bool", (True,))), "length True"),
    (node(operator="part", arguments={"input": Ref("x"), "index": 0}), "needed is parts"),
    (node(operator="gelu", arguments={"input": Ref("x"), "approximate": "fast"}), "none|tanh"),
    (node(operator="cat", arguments={"tensors": (), "dim": 0}), "needed is tensors"),
    (node(operator="reshape", arguments={"input": Ref("x"), "shape": (2.0,)}), "needed is ints"),
    (node(operator="softmax", arguments={"input": Ref("x"), "dim": True}), "needed is int"),
    (node(operator="cast", arguments={"input": Ref("x"), "dtype": "object"}), "needed is dtype"),
])
def test_a_wrong_node_is_refused(wrong, words):
    with pytest.raises(UserError) as error:
        small(nodes=(wrong,), outputs=("y",))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_node_that_does_not_fit_its_inputs_is_named():
    wrong = node(operator="reshape", arguments={"input": Ref("x"), "shape": (5,)}, result=TensorType("float32", (5,)),
        source="m.py:3 in forward")
    with pytest.raises(UserError, match=r"node 'y' \(reshape\) of m.py:3 in forward: cannot reshape"):
        run(small(nodes=(wrong,), outputs=("y",)), {"x": np.zeros((2, 2))})
    lying = node(result=TensorType("float32", ("n", 3)))
    with pytest.raises(UserError, match=r"gives shape \[2, 2\], but the graph says \[2, 3\]"):
        run(small(nodes=(lying,), outputs=("y",)), {"x": np.zeros((2, 2))})


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_is_the_same(name, tmp_path):
    graph = load_graph(DATA / f"{name}.tgraph")
    path = save_graph(graph, tmp_path / "again.tgraph")
    again = load_graph(path)
    assert (again.nodes, again.symbols, again.inputs, again.outputs, again.types) == (graph.nodes, graph.symbols, graph.inputs,
        graph.outputs, graph.types)
    assert all(np.array_equal(again.tensors[key].values, tensor.values) and again.tensors[key].kind == tensor.kind for key,
        tensor in graph.tensors.items())
    assert (path / "graph.json").read_bytes() == (DATA / f"{name}.tgraph" / "graph.json").read_bytes()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["again.tgraph"]
    with pytest.raises(UserError, match="there already"):
        save_graph(graph, path)
    with pytest.raises(UserError, match=".tgraph"):
        save_graph(graph, tmp_path / "other")


def test_every_dtype_and_number_is_kept(tmp_path):
    tensors = {
        "half": np.float16([1.5]), "bit": np.array([True, False, True]), "one": np.array(3.25, np.float32),
        "none": np.zeros((0, 4), np.float32), "whole": np.array([-(1 << 62)]),
    }
    fills = tuple(
        node(name=f"f{index}", operator="full", arguments={"size": (), "fill_value": value, "dtype": "float32"},
            result=TensorType("float32", ()))
        for index, value in enumerate((math.inf, -math.inf, math.nan, 0.1, True, 1 << 62))
    )
    graph = small(
        nodes=fills, tensors={name: GraphTensor(kind="buffer", values=values) for name, values in tensors.items()},
        outputs=(*(one.name for one in fills), *tensors)
    )
    again = load_graph(save_graph(graph, tmp_path / "x.tgraph"))
    for found, expected in zip(run(again, {"x": np.zeros((1, 2))}), run(graph, {"x": np.zeros((1, 2))}), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert {name: tensor.values.dtype for name, tensor in again.tensors.items()} == {name: values.dtype for name, values in tensors.items()}


def test_a_graph_without_values_is_counted_and_not_run(tmp_path):
    graph = small(tensors={"weight": unknown_tensor("parameter", "float16", (3, 2))})
    path = save_graph(graph, tmp_path / "x.tgraph")
    again = load_graph(path)
    for one in (graph, again):
        assert (one.parameters, one.tensor_bytes, one.macs({"n": 2}), one.tensors["weight"].known) == (6, 12, 12, False)
        with pytest.raises(UserError, match="weight has no values"):
            run(one, {"x": np.zeros((1, 2))})
    for wrong in ({"shape": [1 << 40, 1 << 40]}, {"shape": [-3, 2]}, {"shape": ["n", 2]}, {"dtype": "object"}, {"shape": [1] * 13}):
        document = json.loads((path / "graph.json").read_text())
        document["tensors"][0].update(wrong)
        other = shutil.copytree(path, tmp_path / "y.tgraph", dirs_exist_ok=True)
        (other / "graph.json").write_text(json.dumps(document))
        with pytest.raises(UserError, match="a tensor of"):
            load_graph(other)


def changed(tmp_path: Path, change) -> Path:
    """A copy of the stored block with `change` applied to its graph.json."""
    path = tmp_path / "block.tgraph"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(DATA / "block.tgraph", path)
    document = json.loads((path / "graph.json").read_text())
    change(document)
    (path / "graph.json").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("change", "words"), [
    (lambda d: d.update(version=2), "version 2"), (lambda d: d.pop("nodes"), "needed are exactly"),
    (lambda d: d.update(code="x"), "needed are exactly"), (lambda d: d.update(nodes={}), "nodes must be a list"),
    (lambda d: d.update(symbols=[]), "symbols must be an object"),
    (lambda d: d["symbols"].update(batch=[0, "x"]), "allowed is [low, high or null]"),
    (lambda d: d["symbols"].update(batch=[5, 2]), "symbol 'batch'"),
    (lambda d: d["tensors"].append({"name": "w", "kind": "parameter"}), "tensor 'w' is missing"),
    (lambda d: d["tensors"][0].update(kind="pickle"), "pickle"), (lambda d: d["outputs"].append("gone"), "output 'gone'"),
    (lambda d: d.update(outputs=[[]]), "list of names"), (lambda d: d["nodes"].reverse(), "earlier nodes only"),
    (lambda d: d["nodes"].append(d["nodes"][0]), "given twice"),
    (lambda d: d["nodes"][0].update(operator="os.system"), "operator 'os.system' is not known"),
    (lambda d: d["nodes"][0]["arguments"].update(dim={"eval": "1"}), "allowed is a JSON value"),
    (lambda d: d["nodes"][0]["arguments"].update(dim=float("inf")), "allowed is a JSON value"),
    (lambda d: d["nodes"][0]["arguments"].update(dim=[[[[[1]]]]]), "allowed is a JSON value"),
    (lambda d: d["nodes"][2]["result"].update(shape=["batch*__import__('os')"]), "length"),
    (lambda d: d["nodes"][2]["result"].update(shape=[1.5]), "shape [1.5]"),
    (lambda d: d["nodes"][2].update(source="a\nb"), "printable text"), (lambda d: d.update(name="n" * 2000), "printable text"),
    (lambda d: d["inputs"].append(5), "needed is an object"),
])
def test_a_file_with_a_mistake_is_refused(change, words, tmp_path):
    with pytest.raises(UserError) as error:
        load_graph(changed(tmp_path, change))
    assert words in str(error.value) and "graph.json" in str(error.value) or "tensors.safetensors" in str(error.value)


def test_cut_and_missing_files_are_refused(tmp_path):
    for name in ("graph.json", "tensors.safetensors"):
        path = changed(tmp_path, lambda document: None)
        data = (path / name).read_bytes()
        for length in (0, 7, len(data) // 2, len(data) - 2):
            (path / name).write_bytes(data[:length])
            with pytest.raises(UserError, match=name):
                load_graph(path)
        (path / name).unlink()
        with pytest.raises(UserError, match=name):
            load_graph(path)


def test_random_damage_ends_in_one_line(tmp_path):
    """Random values anywhere in graph.json: the graph is refused, or it runs, or a node is named; never another exception."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    graph = load_graph(DATA / "operators.tgraph")
    inputs, _ = next(stored_runs("operators", graph))
    shutil.copytree(DATA / "operators.tgraph", tmp_path / "x.tgraph")
    file = tmp_path / "x.tgraph" / "graph.json"
    text, refused = file.read_text(), 0
    values = [-1, 0, 1, 2, 1 << 40, -(1 << 63), 1.5, -0.0, "rows", "x", "rows*rows", "bool", None, True, [], {}, [0], [-1, 1],
        {"ref": "x"}, {"ref": "n"}, {"number": "nan"}]
    for _ in range(150):
        document = json.loads(text)
        for _ in range(rng.choice((1, 1, 3))):
            place = rng.choice(document["nodes"])
            while True:
                key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
                if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.2:
                    break
                place = place[key]
            place[key] = rng.choice(values)
        file.write_text(json.dumps(document))
        try:
            run(load_graph(file.parent), inputs)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 800
    assert 50 < refused < 150


def test_without_torch_the_export_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="torch is not installed"):
        export_module(None, ())


# The command.


def test_models_show_of_a_graph(capsys):
    path = str(DATA / "block.tgraph")
    assert main(["models", "show", path, "--json", "--length", "batch=2", "--length", "tokens=5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["parameters"], document["macs_per_pass"], document["lengths"]) == (752, 7776, {"batch": 2, "tokens": 5})
    assert sum(row["macs"] for row in document["operators"]) == 7776 and {"operator": "linear", "nodes": 4,
        "macs": 6640} in document["operators"]
    assert main(["models", "show", path, "--json", "--length", "batch=2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["macs_per_pass"] is None and document["lengths"] == {"batch": 2, "tokens": None}
    assert main(["models", "show", path]) == 0
    assert "--length tokens=N, from 0 to 64" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "words"), [
    ([str(DATA / "block.tgraph"), "--length", "rows=2"], "allowed: batch, tokens"),
    ([str(DATA / "block.tgraph"), "--length", "tokens"], "NAME=N"),
    ([str(DATA / "block.tgraph"), "--length", "batch=1", "--length", "tokens=65"], "from 0 to 64"),
    ([str(DATA / "block.tgraph"), "--scheme", "w4a8kv8"], "--scheme"),
    ([str(DATA / "block.tgraph"), "--set", "scheme.kv_bits=8"], "--set"), (["gone.tgraph"], "gone.tgraph/graph.json"),
    (["embedded", "--length", "tokens=2"], "--length tokens=2"),
])
def test_models_show_refuses(arguments, words, capsys):
    assert main(["models", "show", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
