"""A cache of 4 bits and static masks outside the executors: bytes, schemes, packed files, commands, what machines refuse."""

import dataclasses
import json

import models_for_tests
import numpy as np
import pytest

from headrace.cli import main
from headrace.hw.machine import load_machine
from headrace.kernels.contract import kv4
from headrace.mapping.compiler import compile_model
from headrace.models.architectures.base import KvCache
from headrace.models.cache_size import META_BITS, cache_bytes, code_bits
from headrace.models.errors import UserError
from headrace.models.masks import Mask
from headrace.models.operators import key_bytes
from headrace.models.packed import Made, load_packed, save_packed
from headrace.models.registry import load_model, model_config
from headrace.models.scheme import load_scheme
from headrace.sim.accuracy import Way
from headrace.sim.calibrate import Method, calibrated, collect
from headrace.sim.estimate import check_scheme
from headrace.sim.golden import GoldenExecutor

TEXT = "Once upon a time there was a little girl. She liked to play with her dog in the park. One day she saw a big bird."


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("head_dim", [1, 16, 32, 40, 64, 80, 128])
def test_bytes_are_those_of_what_encode_gives(head_dim):
    codes, mult, off = kv4.encode(np.arange(head_dim) - 5)
    bits = 4 * codes.size + 8 * mult.size + 12 * off.size
    assert META_BITS == 20 and code_bits(head_dim, 4) == bits
    assert code_bits(head_dim, 8) == 8 * head_dim and code_bits(head_dim, 16) == 16 * head_dim
    assert cache_bytes(3, 5, head_dim, 4) == 3 * 5 * 2 * (bits + 32) // 8
    assert key_bytes(head_dim, 4) == (bits + 32) / 8
    config = dataclasses.replace(model_config("embedded"), head_dim=2 * head_dim)
    assert config.kv_bytes_per_token(4) == KvCache(layers=config.layers, kv_heads=config.kv_heads, head_dim=2 * head_dim).bytes_per_token(4)


def test_bytes_of_a_token_by_hand():
    """A key of SmolLM2 has 64 values: 32 bytes of codes, 5 of mult and off, 4 of scale; 30 layers, 3 KV heads."""
    config = model_config("smollm2-135m")
    assert config.kv_bytes_per_token(4) == 30 * 3 * 2 * (32 + 5 + 4)
    assert config.kv_bytes_per_token(8) == 30 * 3 * 2 * (64 + 4)
    assert config.kv_bytes_per_token(16) == 30 * 3 * 2 * 128


def test_masks_of_a_scheme():
    def mask(text: str) -> Mask | None:
        return load_scheme("w8a8kv8", [f"attention={text}"]).mask

    assert load_scheme("w8a8kv8").mask is None is mask("null")
    assert mask("{window: 64}") == Mask(window=64)
    assert mask("{window: 64, sinks: 4, stride: 8}") == Mask(window=64, sinks=4, stride=8)
    assert mask("{block: 16, blocks: 3}") == Mask(block=16, blocks=3)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("{}", "one of window and block must be given"), ("{sinks: 2}", "one of window and block"), ("{window: 2, block: 2}", "not both"),
        ("{block: 2, stride: 2}", "stride goes with window"), ("{window: 2, blocks: 2}", "blocks goes with block"), ("{window: 0}", "window"),
        ("{window: 2, sinks: -1}", "sinks"), ("{window: 1e9}", "window"), ("{width: 2}", "width"), ("[1]", "attention"), ("local", "attention"),
        ("{window: 1048577}", "window"),
    ],
)
def test_rules_that_do_not_go_together_are_refused_in_one_line(text, capsys, rules, message):
    status = main(["perplexity", "embedded", "--text", str(text), "--set", f"scheme.attention={rules}"])
    error = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and "attention" in error[-1] and message in error[-1] and "Traceback" not in "".join(error)


@pytest.mark.parametrize("change", ["kv_bits=4", "attention={window: 8, sinks: 2}"])
def test_machines_of_version_1_refuse_them(capsys, change):
    scheme = load_scheme("w4a8kv8", [change])
    wanted = {"kv_bits=4": "kv_bits = 4; a machine of version 1 allows 8"}.get(
        change, "attention = window 8, sinks 2; a machine of version 1 allows null: every earlier key is seen"
    )
    with pytest.raises(UserError, match=wanted):
        check_scheme(scheme)
    for command in (["estimate", "embedded", "nano"], ["cosim", "embedded", "nano", "--prompt", "a", "--tokens", "1"]):
        assert main([*command, "--set", f"scheme.{change}"]) == 2
        assert wanted in capsys.readouterr().err
    model = models_for_tests.random_model(1)
    with pytest.raises(UserError, match=f"{change[:4]}.*machine nano allows"):
        compile_model(dataclasses.replace(model, scheme=scheme), load_machine("nano"), [1, 2], outputs=1)


@pytest.mark.parametrize("changes", [["kv_bits=4"], ["attention={window: 3, stride: 2, sinks: 1}"], ["kv_bits=4", "attention={block: 4, blocks: 2}"]])
def test_a_packed_file_keeps_cache_and_mask(tmp_path, changes):
    model = load_model("embedded")
    scheme = load_scheme("w4a8kv8", changes)
    made = calibrated(model, scheme, Method(rounding="nearest"), None)
    save_packed(tmp_path / "m.headrace", made, Made(model="embedded", rounding="nearest", scaling="none"))
    read = load_packed(tmp_path / "m.headrace").model
    assert read.scheme == scheme == made.scheme
    tokens = list(range(40, 60))
    logits = GoldenExecutor(read).prefill(tokens, all_positions=True)
    assert np.array_equal(logits, GoldenExecutor(made).prefill(tokens, all_positions=True))
    plain = dataclasses.replace(read, scheme=load_scheme("w4a8kv8"))
    assert not np.array_equal(logits, GoldenExecutor(plain).prefill(tokens, all_positions=True))


def test_a_packed_file_of_other_bits_is_refused(tmp_path):
    made = calibrated(load_model("embedded"), load_scheme("w8a8kv8"), Method(rounding="nearest"), None)
    wrong = dataclasses.replace(made, scheme=load_scheme("w8a8kv8", ["kv_bits=16"]))
    save_packed(tmp_path / "m.headrace", wrong, Made(model="embedded", rounding="nearest", scaling="none"))
    with pytest.raises(UserError, match="m.headrace: scheme: kv_bits = 16; allowed by the numeric contract is 4 or 8"):
        load_packed(tmp_path / "m.headrace")


def test_calibration_sees_the_mask():
    model = load_model("embedded")
    tokens = np.arange(60).reshape(2, 30)
    dense, masked, wide = (collect(model, tokens, mask=mask) for mask in (None, Mask(window=2), Mask(window=30)))
    # The first layer's attention output differs; its input does not.
    assert np.array_equal(dense["layers.0.q"].gram, masked["layers.0.q"].gram)
    assert not np.array_equal(dense["layers.0.o"].gram, masked["layers.0.o"].gram)
    assert np.array_equal(dense["layers.0.o"].gram, wide["layers.0.o"].gram)


def test_perplexity_of_a_wide_window_is_the_dense_one_and_of_a_narrow_one_is_not(text, capsys):
    def value(*extra: str) -> float:
        assert main(["perplexity", "embedded", "--text", str(text), "--json", *extra]) == 0
        return json.loads(capsys.readouterr().out)["perplexity"]

    dense = value()
    assert value("--set", "scheme.attention={window: 512}") == dense
    assert value("--set", "scheme.attention={window: 4}") != dense != value("--set", "scheme.kv_bits=4")


def test_accuracy_takes_caches_and_compresses_once_for_both(text, tmp_path, capsys, monkeypatch):
    from headrace.sim import accuracy

    folder = tmp_path / "curve"
    command = ["accuracy", "embedded", "--text", str(text), "--bits", "8,4", "--rounding", "nearest", "--kv-bits", "8,4", "-o", str(folder), "--json"]
    calls = []
    monkeypatch.setattr(accuracy, "calibrated", lambda *given: calls.append(given) or calibrated(*given))
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["rounding"], row["bits"], row["kv_bits"]) for row in rows] == [
        ("float", 8, 8), ("nearest", 8, 8), ("nearest", 8, 4), ("nearest", 4, 8), ("nearest", 4, 4),
    ]  # fmt: skip
    assert len(calls) == 2
    assert len({row["log_perplexity"] for row in rows}) == 5 and rows[1]["weight_bytes"] == rows[2]["weight_bytes"]
    assert "kv_bits" in (folder / "accuracy.csv").read_text().splitlines()[0]
    assert main([*command, "--resume"]) == 0 and len(calls) == 2
    assert json.loads(capsys.readouterr().out)["rows"] == rows
    way = ("nearest", "none", None)
    found = accuracy.row_of_scheme(rows, load_scheme("w8a8kv8", ["kv_bits=4"]), *way)
    assert found == rows[2] and accuracy.row_of_scheme(rows, load_scheme("w8a8kv8"), *way) == rows[1]
    assert accuracy.row_of_scheme(rows, load_scheme("w8a8kv8", ["attention={window: 64}"]), *way) is None
    # The command's row is what `perplexity` gives.
    assert main(["perplexity", "embedded", "--text", str(text), "--json", "--scheme", "w8a8kv8", "--set", "scheme.kv_bits=4"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == rows[2]["perplexity"]["text"]
    assert main([*command[:-5], "--kv-bits", "2", "-o", str(folder)]) == 2
    assert "8, 4" in capsys.readouterr().err
    assert Way(kv_bits=4, rounding="nearest").label.endswith("KV 4")
