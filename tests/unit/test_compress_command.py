"""`headrace compress`, and the other commands on what it writes."""

import json

import numpy as np
import pytest

from headrace import cli
from headrace.hw.machine import load_machine
from headrace.mapping.compiler import compile_model
from headrace.models.errors import UserError
from headrace.models.packed import load_packed
from headrace.models.quantise import quantise_model
from headrace.models.registry import load_model
from headrace.models.scheme import load_scheme, weight_bytes
from headrace.sim.golden import GoldenExecutor
from headrace.sim.loop_session import LoopSession

QUICK = ("--texts", "4", "--length", "24")
TEXT = "the cat sat on the mat and the dog ran in the sun. " * 6


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def text_file(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def compress(capsys, path, *options):
    """The command's document."""
    assert cli.main(["compress", "embedded", "-o", str(path), *QUICK, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """The one line of a mistake."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("headrace: error: ")]
    assert not out and len(lines) == 1 and err.splitlines()[-1] == lines[0]
    return lines[0]


@pytest.mark.parametrize(
    ("options", "made", "bits"),
    [
        ((), {"rounding": "gptq", "scaling": "none", "pruning": None, "seed": 0}, {4}),
        (("--rounding", "nearest"), {"rounding": "nearest", "calibration": None}, {4}),
        (("--rounding", "fitted", "--scaling", "awq", "--set", "scheme.group=64", "--seed", "3"), {"scaling": "awq", "seed": 3}, {4}),
        (("--scheme", "w8a8kv8", "--scaling", "smoothquant"), {"scaling": "smoothquant"}, {8}),
        (("--set", "scheme.sparsity={n: 8, m: 16, index_share: 2}", "--mixed"), {"pruning": "sparsegpt"}, {4}),
        (("--scheme", "w4a8kv8-n8", "--rounding", "nearest", "--pruning", "magnitude"), {"pruning": "magnitude", "calibration": None}, {4}),
        (("--bytes-per-weight", "0.66"), {"rounding": "gptq"}, {3, 4, 5, 6, 8}),
        (("--bytes-per-weight", "0.66", "--set", "scheme.tensor_bits={layers.0.q: 2}"), {"rounding": "gptq"}, {2, 3, 4, 5, 6, 8}),
    ],
)
def test_every_method_writes_a_file_that_runs(options, made, bits, tmp_path, capsys):
    path = tmp_path / "m.headrace"
    document = compress(capsys, path, *options)
    packed = load_packed(path)
    config = packed.model.config
    assert packed.made.model_dump() == document["made"] and document["made"].items() >= made.items()
    assert document["file_bytes"] == path.stat().st_size and document["weight_bytes"] == packed.model.required_bytes
    assert document["bytes_per_weight"] == packed.model.required_bytes / config.parameters
    assert {layer[name].bits for layer in packed.model.layers for name in config.linear_names} <= bits
    if "--bytes-per-weight" in options:
        assert packed.model.layers[0]["q"].bits == 2 or len(options) == 2
        assert document["bytes_per_weight"] <= 0.66 and document["widths"] == packed.model.scheme.tensor_bits and len(set(document["widths"].values())) > 1
    else:
        assert document["widths"] is None
    if packed.model.scheme.sparsity is None:
        assert packed.model.required_bytes == weight_bytes(config, packed.model.scheme)
    if "pruning" in made and made["pruning"]:
        assert all((layer["q"].int8()[~layer["q"].kept] == 0).all() for layer in packed.model.layers)
    assert np.isfinite(GoldenExecutor(packed.model).prefill([1, 2, 3])).all()
    assert [one.name for one in tmp_path.iterdir()] == ["m.headrace"]


def test_the_same_command_gives_the_same_file_and_texts_come_from_the_cache(tmp_path, capsys, monkeypatch):
    first, second = tmp_path / "a.headrace", tmp_path / "b.headrace"
    compress(capsys, first)
    monkeypatch.setattr("headrace.sim.calibration_text.write_texts", lambda *rest: pytest.fail("written anew"))
    compress(capsys, second)
    assert first.read_bytes() == second.read_bytes()


def test_a_file_of_text_calibrates(tmp_path, capsys, text_file, monkeypatch):
    monkeypatch.setattr("headrace.sim.calibration_text.write_texts", lambda *rest: pytest.fail("the model wrote texts"))
    document = compress(capsys, tmp_path / "m.headrace", "--calibrate", str(text_file))
    assert document["made"]["calibration"] == "text.txt"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "m.bin"), "-o .*m.bin: allowed is a name that ends with .headrace"), (("-o", "no/m.headrace"), "folder .*no does not exist"),
        (("--rounding", "best"), "'best' is not one of 'nearest', 'fitted', 'gptq'"), (("--scaling", "x"), "'x' is not one of"), (("--pruning", "x"), "'x' is not one of"),
        (("--mixed",), "--mixed: the scheme is dense"), (("--pruning", "wanda"), "--pruning: the scheme is dense; give --scheme w4a8kv8-n8"),
        (("--bytes-per-weight", "0.1"), "0.1 is not in the range"), (("--bytes-per-weight", "0.3"), "--bytes-per-weight 0.3: with 3 bits for every linear of embedded"),
        (("--bytes-per-weight", "0.7", "--scaling", "awq"), "--scaling awq: widths are chosen from weights that are not scaled"),
        (("--bytes-per-weight", "0.7", "--scheme", "w4a8kv8-n8"), "widths are chosen for dense schemes; scheme w4a8kv8-n8 is sparse"),
        (("--calibrate", "none.txt"), "--calibrate none.txt: cannot be read"), (("--calibrate", "TEXT", "--rounding", "nearest"), "rounding nearest reads no texts"),
        (("--calibrate", "TEXT", "--length", "400"), "allowed is at least one window of 400"), (("--length", "4"), "4 is not in the range"), (("--texts", "0"), "0 is not in the range"),
        (("--length", "4096"), r"--length 4096: model embedded has max_positions = \d+"), (("--calibrate", "TEXT", "--length", "4096"), "--length 4096: model embedded has"),
        (("--set", "scheme.kv_bits=16"), "kv_bits = 16; allowed by the numeric contract is 4 or 8"), (("--set", "memory.ports=4"), "no machine and no board takes part"),
        (("--scheme", "w9"), "'w9' is not known"), (("--set", "scheme.group=48"), "field 'group' = 48"), (("--set", "scheme.tensor_bits={layers.9.q: 8}"), "tensor_bits.layers.9.q: model embedded has no such linear"),
        (("--seed", "-1"), "-1 is not in the range"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(options, message, tmp_path, capsys, text_file, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    options = [str(text_file) if option == "TEXT" else option for option in options]
    output = () if "-o" in options else ("-o", "m.headrace")
    line = refused(capsys, "compress", "embedded", *output, "--texts", "4", *([] if "--length" in options else ["--length", "24"]), *options)
    assert re.search(message, line), line
    assert sorted(one.name for one in tmp_path.iterdir()) == ["text.txt"]


def test_mistakes_are_told_before_long_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("headrace.sim.calibrate.collect", lambda *rest: pytest.fail("calibrated first"))
    for options in (("--bytes-per-weight", "0.3"), ("--bytes-per-weight", "0.7", "--scaling", "awq"), ("--set", "scheme.kv_bits=16"), ("--set", "scheme.tensor_bits={layers.9.q: 8}")):
        refused(capsys, "compress", "embedded", "-o", tmp_path / "m.headrace", *QUICK, *options)


def test_models_that_blocks_do_not_fill_are_refused_before_calibration(tmp_path, capsys, monkeypatch):
    from dataclasses import replace

    from float_families import family

    from headrace.sim.calibrate import check_scheme

    odd = family("llama", width=24, head_dim=6, ffn=48).config
    with pytest.raises(UserError, match=r"tensor q: has shape \(24, 24\); N:16 sparse ones have a multiple of 16 inputs"):
        check_scheme(odd, load_scheme("w4a8kv8-n8"))
    check_scheme(odd, load_scheme("w4a8kv8"))
    check_scheme(replace(odd, width=32, head_dim=8), load_scheme("w4a8kv8-n8"))


# In place of a model.


@pytest.fixture(scope="module")
def nearest(tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "nearest.headrace"
    assert cli.main(["compress", "embedded", "-o", str(path), "--rounding", "nearest"]) == 0
    return path


def test_other_commands_give_the_same_as_for_the_model_under_that_scheme(nearest, capsys, text_file, tmp_path):
    capsys.readouterr()
    for arguments in (
        ["generate", "MODEL", "--prompt", "the cat", "--tokens", "8", "--json"], ["perplexity", "MODEL", "--text", str(text_file), "--json"],
        ["perplexity", "MODEL", "--text", str(text_file), "--backend", "float", "--json"], ["estimate", "MODEL", "nano", "--json"],
        ["compare", "MODEL", "--machine", "nano", "--gpu", "H100-SXM-80", "--json"], ["models", "show", "MODEL", "--json"],
    ):  # fmt: skip
        documents = []
        for model in ("embedded", str(nearest)):
            own = ["--scheme", "w4a8kv8"] if model == "embedded" and "float" in arguments else []
            status = cli.main([model if argument == "MODEL" else argument for argument in arguments] + own)
            out, err = capsys.readouterr()
            assert status == 0, err
            documents.append(json.loads(out))
            documents[-1].pop("stamp")
            for measured in ("tokens_per_s", "seconds", "s"):
                documents[-1].pop(measured, None)
        assert documents[0] == documents[1], arguments
    modules = []
    for number, model in enumerate(("embedded", str(nearest))):
        assert cli.main(["kernels", "generate", model, "-o", str(tmp_path / f"k{number}.py")]) == 0
        modules.append((tmp_path / f"k{number}.py").read_text())
    assert modules[0] == modules[1]


def test_a_machine_s_image_is_that_of_the_model(nearest):
    loop = LoopSession.open(str(nearest), "nano", None)
    machine = load_machine("nano")
    expected = compile_model(quantise_model(load_model("embedded"), load_scheme(machine.scheme)), machine, [1, 2, 3], outputs=2)
    assert np.array_equal(compile_model(loop.compressed, machine, [1, 2, 3], outputs=2).bytes(), expected.bytes())


def test_wider_groups_run_on_a_machine_of_groups_of_32(tmp_path, capsys):
    """The image's codes decode to the grid that golden runs."""
    path = tmp_path / "m.headrace"
    compress(capsys, path, "--set", "scheme.group=128", "--rounding", "nearest")
    model, machine = load_packed(path).model, load_machine("nano")
    narrow = [{name: value.in_groups_of_32() if hasattr(value, "bits") else value for name, value in layer.items()} for layer in model.layers]
    from dataclasses import replace

    images = [compile_model(one, machine, [1], outputs=1).bytes() for one in (model, replace(model, layers=tuple(narrow)))]
    assert np.array_equal(*images)
    assert all(np.array_equal(a["down"].int8(), b["down"].int8()) and b["down"].group == 32 for a, b in zip(model.layers, narrow, strict=True))


@pytest.mark.parametrize("options", [("--scheme", "w8a8kv8"), ("--set", "scheme.group=64")])
@pytest.mark.parametrize("command", ["generate", "perplexity", "estimate", "compare", "models show", "kernels generate", "cosim", "rtl"])
def test_another_scheme_for_a_packed_file_is_refused(command, options, nearest, capsys, text_file, tmp_path):
    capsys.readouterr()
    rest = {
        "generate": [nearest, "--prompt", "a", "--tokens", "2"], "perplexity": [nearest, "--text", text_file], "estimate": [nearest, "nano"], "compare": [nearest, "--machine", "nano"],
        "models show": [nearest], "kernels generate": [nearest, "-o", tmp_path / "k.py"], "cosim": [nearest], "rtl": ["nano", "--model", nearest, "-o", tmp_path / "rtl"],
    }[command]  # fmt: skip
    line = refused(capsys, *command.split(), *rest, *options)
    assert f"{' '.join(options)}: {nearest} is compressed already; allowed is its own scheme" in line
    assert sorted(one.name for one in tmp_path.iterdir()) == ["text.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scheme", "w4a8kv8-n8", "--pruning", "magnitude"), "sparsity.n = 8; machines of version 1 allow 16 (dense)"),
        (("--set", "scheme.weight_bits=3"), "3 bits for q; machines of version 1 decode 4 and 8 bits"),
        (("--set", "scheme.tensor_bits={layers.1.q: 8}"), "tensor_bits.layers.1.q = 8; a machine of version 1 has one width for a linear of all layers"),
    ],
)
def test_a_machine_refuses_what_it_does_not_decode(options, message, tmp_path, capsys):
    path = tmp_path / "m.headrace"
    compress(capsys, path, "--rounding", "nearest", *options)
    for arguments in (["estimate", path, "nano"], ["cosim", path], ["rtl", "nano", "--model", path, "-o", tmp_path / "rtl"], ["compare", path, "--machine", "nano"]):
        assert message in refused(capsys, *arguments)
    assert "kernel" in refused(capsys, "kernels", "generate", path, "-o", tmp_path / "k.py")
    assert cli.main(["models", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weight_bytes"] == load_packed(path).model.required_bytes
    assert cli.main(["generate", str(path), "--prompt", "the cat", "--tokens", "2"]) == 0


def test_a_sweep_takes_models_alone(nearest):
    from headrace.mapping.sweep import load_sweep
    from headrace.sim.sweep_point import check_names

    sweep = load_sweep("example").model_copy(update={"models": (str(nearest),)})
    with pytest.raises(UserError, match="nearest.headrace has a scheme of its own; allowed are models, and their schemes in the field 'schemes'"):
        check_names(sweep)


def test_what_is_compressed_is_not_compressed_again(nearest, capsys, text_file, tmp_path):
    capsys.readouterr()
    assert "holds codes, no weights" in refused(capsys, "compress", nearest, "-o", tmp_path / "m.headrace")
    assert "holds codes, no weights" in refused(capsys, "accuracy", nearest, "--text", text_file, "-o", tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["text.txt"]
