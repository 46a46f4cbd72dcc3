"""`headrace accuracy`: rows against compressions made by hand, resuming, and mistakes."""

import csv
import json
import math
import re

import pytest

from headrace import cli
from headrace.models.errors import UserError
from headrace.models.quantise import quantise_model
from headrace.models.registry import load_model
from headrace.models.scheme import load_scheme, weight_bytes
from headrace.reports.accuracy import write_curve
from headrace.sim.accuracy import Way, row_of, run_ways
from headrace.sim.float_model import FloatExecutor
from headrace.sim.golden import GoldenExecutor
from headrace.sim.perplexity import perplexity

WORDS = {"a": "the cat sat on the mat. " * 3, "b": "a dog ran in the sun and the rain. " * 2}
NEAREST = ("--bits", "4,8", "--rounding", "nearest")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def texts(tmp_path):
    for name, text in WORDS.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return ["--text", str(tmp_path / "a.txt"), "--text", str(tmp_path / "b.txt")]


def run(capsys, folder, texts, *options):
    assert cli.main(["accuracy", "embedded", *texts, "-o", str(folder), "--texts", "4", "--length", "24", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert cli.main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("headrace: error: ")]
    assert not out and len(lines) == 1 and err.splitlines()[-1] == lines[0]
    return lines[0]


def test_rows_are_perplexities_of_the_golden_executor(tmp_path, capsys, texts):
    document = run(capsys, tmp_path / "out", texts, *NEAREST)
    model = load_model("embedded")
    tokens = {name: model.tokenizer.encode(text) for name, text in WORDS.items()}
    assert document["texts"] == {name: len(ids) for name, ids in tokens.items()}
    assert [(row["rounding"], row["bits"]) for row in document["rows"]] == [("float", 8), ("nearest", 4), ("nearest", 8)]
    for row, scheme in zip(document["rows"], (None, "w4a8kv8", "w8a8kv8"), strict=True):
        executor = FloatExecutor.from_model(model) if scheme is None else GoldenExecutor(quantise_model(model, load_scheme(scheme)))
        expected = {name: perplexity(executor, ids).perplexity for name, ids in tokens.items()}
        assert row["perplexity"] == expected
        assert math.isclose(row["log_perplexity"], sum(map(math.log, expected.values())) / 2, rel_tol=1e-12)
        assert model.config.dtype == "float16"
        size = 2 * model.config.parameters if scheme is None else weight_bytes(model.config, load_scheme(scheme))
        assert row["weight_bytes"] == size and row["bytes_of_weight"] == size / model.config.parameters
    lines = list(csv.reader((tmp_path / "out" / "accuracy.csv").open()))
    assert lines[0][-2:] == ["perplexity a", "perplexity b"] and len(lines) == 4
    assert [float(line[-1]) for line in lines[1:]] == [row["perplexity"]["b"] for row in document["rows"]]
    assert (tmp_path / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["accuracy.csv", "accuracy.json", "accuracy.png"]


def test_calibrated_sparse_and_chosen_widths(tmp_path, capsys, texts):
    document = run(
        capsys, tmp_path / "out", texts, "--bits", "4", "--rounding", "gptq", "--keep", "8,16", "--mixed", "yes,no", "--pruning", "wanda", "--bytes-per-weight", "0.66,1",
    )  # fmt: skip
    rows = document["rows"]
    assert [(row["keep"], row["mixed"], row["bytes_per_weight"]) for row in rows] == [(16, False, None), (8, True, None), (8, False, None), (16, False, None), (16, False, 0.66), (16, False, 1.0)]
    assert all(row["bytes_of_weight"] <= row["bytes_per_weight"] for row in rows if row["bytes_per_weight"])
    loss = [abs(row["log_perplexity"] - rows[0]["log_perplexity"]) for row in rows]
    assert loss[5] < loss[1]  # eight bits change less than leaving out half of the weights does
    assert rows[1]["weight_bytes"] < 1.01 * rows[2]["weight_bytes"] < rows[3]["weight_bytes"]  # equal on average, index bits and groups apart


def test_resume_goes_on_after_an_interruption(tmp_path, capsys, texts, monkeypatch):
    folder = tmp_path / "out"
    from headrace.sim import accuracy

    whole, scored = run(capsys, tmp_path / "whole", texts, *NEAREST), []
    original = accuracy.score

    def interrupted(executor, tokens, advance):
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(executor)
        return original(executor, tokens, advance)

    monkeypatch.setattr(accuracy, "score", interrupted)
    assert cli.main(["accuracy", "embedded", *texts, "-o", str(folder), "--texts", "4", "--length", "24", *NEAREST]) == 130
    assert len(json.loads((folder / "accuracy.json").read_text())["rows"]) == 2
    scored.clear()
    capsys.readouterr()
    resumed = run(capsys, folder, texts, *NEAREST, "--resume")
    assert len(scored) == 1  # the third alone
    assert resumed["rows"] == whole["rows"]
    monkeypatch.setattr(accuracy, "score", lambda *rest: pytest.fail("scored again"))
    assert run(capsys, folder, texts, "--bits", "8", "--rounding", "nearest", "--resume")["rows"] == [whole["rows"][i] for i in (0, 2, 1)]
    assert len((folder / "accuracy.csv").read_text().splitlines()) == 4, "rows of the folder that were not asked for stay"
    before = (folder / "accuracy.json").read_bytes()
    for options, message in (
        (texts, "accuracy.json: exists; give --resume"), ([*texts[:2], "--resume"], "is of another model, scheme, calibration or texts"),
        ([*texts, "--resume", "--seed", "1"], "is of another model"), ([*texts, "--resume", "--length", "25"], "is of another model"),
    ):  # fmt: skip
        assert message in refused(capsys, "accuracy", "embedded", "-o", folder, "--texts", "4", *([] if "--length" in options else ["--length", "24"]), *NEAREST, *options)
        assert (folder / "accuracy.json").read_bytes() == before


def test_a_scheme_gives_what_the_lists_leave_open(tmp_path, capsys, texts, monkeypatch):
    from headrace.sim import calibrate

    masks, folder, masked = [], tmp_path / "out", ("--set", "scheme.attention={window: 6, sinks: 1}")
    collect = calibrate.collect
    monkeypatch.setattr(calibrate, "collect", lambda *given, mask: masks.append(mask) or collect(*given, mask=mask))
    how = ("--bits", "4", *masked, "--set", "scheme.group=64", "--set", "scheme.kv_bits=4")
    document = run(capsys, folder, texts, *how)
    scheme = load_scheme("w4a8kv8", ["attention={window: 6, sinks: 1}", "group=64", "kv_bits=4"])
    plain, nearest, gptq = document["rows"]
    assert document["scheme"] == scheme.name and masks == [scheme.mask]
    assert (nearest["group"], nearest["kv_bits"], nearest["keep"], gptq["rounding"]) == (64, 4, 16, "gptq")
    model = load_model("embedded")
    tokens = {name: model.tokenizer.encode(text) for name, text in WORDS.items()}
    assert nearest["perplexity"] == {name: perplexity(GoldenExecutor(quantise_model(model, scheme)), ids).perplexity for name, ids in tokens.items()}
    assert plain["perplexity"] == {name: perplexity(FloatExecutor.from_model(model), ids).perplexity for name, ids in tokens.items()}
    assert run(capsys, folder, texts, *how, "--resume")["rows"] == document["rows"]
    again = ("accuracy", "embedded", *texts, "-o", folder, "--texts", "4", "--length", "24", "--bits", "4", "--resume")
    assert "is of another model, scheme, calibration or texts" in refused(capsys, *again)
    assert "is of attention under a mask (window 6, sinks 1)" in refused(capsys, "compare", "embedded", "--machine", "nano", "--accuracy", folder)
    listed = run(capsys, tmp_path / "listed", texts, "--bits", "4", "--rounding", "nearest", "--scheme", "w4a8kv8-n8", "--group", "32,64", "--index-share", "1")
    assert [(row["group"], row["keep"], row["index_share"], row["kv_bits"]) for row in listed["rows"][1:]] == [(32, 8, 1, 8), (64, 8, 1, 8)]


def test_results_that_are_none_are_refused(tmp_path):
    config = load_model("embedded").config
    row = row_of(Way(rounding="nearest"), 1000, config.parameters, {"a": 2.0})
    from headrace.models.configfile import config_sha256

    for change in ({"perplexity": 3}, {"perplexity": {"a": "2"}}, {"perplexity": {"a": math.inf}}, {"perplexity": {"b": 2.0}}, {"weight_bytes": -1}, {"log_perplexity": None}, {"spare": 1}):
        (tmp_path / "accuracy.json").write_text(json.dumps({"identity_sha256": config_sha256("x"), "rows": [row | change]}))
        with pytest.raises(UserError, match="accuracy.json: field rows does not hold rows of this version"):
            run_ways(load_model("embedded"), [], load_scheme("w4a8kv8"), {"a": [1, 2]}, tmp_path, statistics=dict, losses=lambda s, m: {}, resume=True, note=print, advance=print, identity="x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bits", "7"), "'7' is not allowed; allowed are 2, 3, 4, 5, 6, 8, with commas"), (("--bits", ""), "'' is not allowed"), (("--group", "32,48"), "'48' is not allowed"),
        (("--rounding", "best"), "'best' is not allowed"), (("--scaling", "x"), "'x' is not allowed"), (("--keep", "3"), "'3' is not allowed; allowed are 2, 4, 8, 12, 16"),
        (("--mixed", "maybe"), "'maybe' is not allowed; allowed are no, yes"), (("--index-share", "3"), "'3' is not allowed"), (("--pruning", "x"), "'x' is not allowed"),
        (("--bytes-per-weight", "0.5,x"), "'0.5,x': allowed are numbers from 0.2 to 1.2"), (("--bytes-per-weight", "nan"), "'nan': allowed are numbers"),
        (("--bytes-per-weight", "0.3"), "--bytes-per-weight 0.3: with 3 bits for every linear"), (("--text", "none.txt"), "--text none.txt: cannot be read"),
        (("--text", "other/a.txt"), "--text: two files have the same name"), (("--calibrate", "a.txt"), "--calibrate a.txt: is scored too"), (("--calibrate", "c.txt"), "at least one window of 256"),
        (("--calibrate", "c.txt", "--rounding", "nearest"), "none of these compressions reads texts"), (("--length", "5000"), "5000 is not in the range"),
        (("--length", "4096"), "--length 4096: model embedded has max_positions"), (("--text", "long.txt"), r"--text long.txt: has \d+ tokens; allowed are 2 to"), (("--text", "empty.txt"), "is empty"),
        (("-o", "a.txt/x"), "-o a.txt/x: cannot be made"), (("--scheme", "none"), "'none'"),
        (("--set", "scheme.weight_bits=3"), "--set scheme.weight_bits=3: widths are those of --bits"), (("--set", "clock_hz=1"), "no machine and no board takes part"),
        (("--set", "scheme.linear_bits={down: 8}"), "linear_bits is given, but a row of --bits has one width"), (("--set", "scheme.activation_bits=16"), "activation_bits = 16; allowed"),
        (("--set", "scheme.tensor_bits={layers.0.q: 8}"), "tensor_bits is given"), (("--set", "scheme.kv_bits=16"), "kv_bits = 16; allowed"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(options, message, tmp_path, capsys, texts, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.sim.accuracy.score", lambda *rest: pytest.fail("scored first"))
    monkeypatch.setattr("headrace.sim.calibration_text.write_texts", lambda executor, count, length, *rest: pytest.fail("written first"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("x y z")
    (tmp_path / "c.txt").write_text("too short to calibrate on")
    (tmp_path / "long.txt").write_text("the cat " * 5000)
    (tmp_path / "empty.txt").write_text("")
    there = sorted(tmp_path.rglob("*"))
    if "-o" in options:
        options = (*options, "--rounding", "nearest")
    line = refused(capsys, "accuracy", "embedded", *texts, *([] if "-o" in options else ["-o", "out"]), *options)
    assert re.search(message, line), line
    assert sorted(tmp_path.rglob("*")) == there


def test_labels_and_plots_of_every_kind(tmp_path):
    ways = [
        Way(rounding="float"), Way(bits=4), Way(bits=3, keep=8, mixed=True, pruning="wanda", scaling="awq"), Way(bits=4, bytes_per_weight=0.5, group=64),
    ]
    assert [way.label for way in ways] == [
        "float32, the file's weights", "4 bits, groups of 32, gptq", "3 bits, groups of 32, mean 8:16 wanda, index of 2, gptq, awq", "0.5 B/weight, groups of 64, gptq",
    ]
    assert [way.calibrates for way in (*ways, Way(rounding="nearest"), Way(rounding="nearest", keep=8, pruning="magnitude"))] == [False, True, True, True, False, False]
    rows = [row_of(way, 100 + number, 100, {"a": 3.0}) for number, way in enumerate(ways)]
    paths = write_curve(tmp_path, "m", rows)
    assert set(paths) == {"csv", "plot"} and sorted(one.name for one in tmp_path.iterdir()) == ["accuracy.csv", "accuracy.png"]
