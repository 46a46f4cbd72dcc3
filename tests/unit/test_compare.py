"""`headrace compare`: machine rows are those of `estimate`, GPU rows those of `sim.gpu`, and mistakes are one line."""

import json

import pytest

from headrace import cli

KEYS = (
    "name", "kind", "dtype", "stack", "tokens_per_s", "energy_j_per_token", "energy_j_per_token_range", "energy_scope", "usd_per_mtok",
)  # fmt: skip
SHORT = ("--prefill", "16", "--decode", "4")


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_rows(capsys):
    status, out, _ = run(capsys, "compare", "smollm2-135m", "--machine", "nano", "--gpu", "A100/vLLM", "--gpu", "V100", *SHORT, "--json")
    document = json.loads(out)
    assert status == 0 and set(document["stamp"]) == {"headrace", "config_sha256", "seed"}
    rows = document["rows"]
    assert all(set(KEYS) <= set(row) for row in rows)
    assert [row["name"] for row in rows if row["kind"] == "estimated"] == ["nano"]
    assert {row["name"] for row in rows} == {"nano", "A100-SXM-80", "V100-SXM2-32"}
    assert {row["kind"] for row in rows} == {"estimated", "bound", "measured"}
    _, out, _ = run(capsys, "estimate", "smollm2-135m", "nano", *SHORT, "--json")
    decode = json.loads(out)["decode"]
    for key in ("tokens_per_s", "energy_j_per_token", "energy_j_per_token_range"):
        assert rows[0][key] == decode[key]
    assert [item["tokens_per_s_batch"] for item in document["break_even"]] == [1, 1]


def test_overrides_and_scheme_reach_the_machine(capsys):
    def rate(*more):
        return json.loads(run(capsys, "compare", "smollm2-135m", "--machine", "nano", *SHORT, "--json", *more)[1])["rows"][0]["tokens_per_s"]

    base = rate()
    assert rate("--set", "clock_hz=112500000") < base
    assert rate("--scheme", "w8a8kv8") < base


def test_gpu_alone_needs_no_machine(capsys):
    status, out, _ = run(capsys, "compare", "llama2-7b", "--gpu", "H100", "--gpu", "L4", "--batch", "64", "--json")
    rows = json.loads(out)["rows"]
    assert status == 0 and {row["name"] for row in rows} == {"H100-SXM-80", "L4"}
    assert any(row["kind"] == "measured" and row["batch"] == 64 for row in rows)


@pytest.mark.parametrize("transforms", [(), ("--transform", "gqa:kv_heads=40")])
def test_rows_that_do_not_fit_are_named(capsys, transforms):
    """By the schedule and by the graph; the transform changes nothing."""
    how = ("compare", "llama2-13b", "--gpu", "L4", "--gpu", "A100", *SHORT, *transforms)
    document = json.loads(run(capsys, *how, "--json")[1])
    (item,) = document["left_out"]
    assert (item["name"], item["dtype"], item["stacks"][0], item["memory_bytes"]) == ("L4", "fp16", "roofline", 24_000_000_000)
    assert (item["weight_bytes"], item["cache_bytes"]) == (2 * 13_015_864_320, 20 * 40 * 2 * 5120 * 2)
    assert [row["name"] for row in document["rows"] if row["kind"] == "bound" and row["dtype"] == "fp16"][:1] == ["A100-SXM-80"]
    line = next(line for line in run(capsys, *how)[1].splitlines() if "left out" in line)
    assert line.startswith("L4 fp16, left out (roofline") and line.endswith("26.05 GB needed (weights 26.03 GB, cache 0.01638 GB), memory of 24 GB")
    assert json.loads(run(capsys, "compare", "embedded", "--gpu", "L4", *SHORT, "--json")[1])["left_out"] == []


def test_table(capsys):
    status, out, _ = run(capsys, "compare", "smollm2-135m", "--machine", "nano", "--gpu", "V100", *SHORT)
    assert status == 0 and "nano against V100-SXM2-32" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "smollm2-135m"], "nothing to compare"),
        (["compare", "nosuch", "--gpu", "A100"], "'nosuch'"),
        (["compare", "smollm2-135m", "--gpu", "A100/nosuch"], "nothing is known of stack 'nosuch'"),
        (["compare", "smollm2-135m", "--gpu", "A100", "--set", "clock_hz=1"], "no --machine is given"),
        (["compare", "smollm2-135m", "--machine", "nosuch"], "'nosuch' is not known"),
        (["compare", "smollm2-135m", "--machine", "nano", "--batch", "0"], "--batch"),
    ],
)
def test_mistakes(capsys, arguments, words):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and err.count("\n") == 1 and words in err


def test_a_sparse_scheme_is_refused_rather_than_ignored(capsys):
    status, out, err = run(capsys, "compare", "embedded", "--gpu", "A100", "--set", "scheme.sparsity={n: 2}", "--json")
    assert (status, out) == (2, "") and "sparsity.n = 2" in err
