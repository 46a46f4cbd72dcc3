"""Sweeps: the grid, chunks that survive an interruption, refusals; and the Pareto front of their points."""

import csv
import json

import numpy as np
import pytest

from headrace import cli
from headrace.mapping import sweep as sweep_module
from headrace.mapping.sweep import Sweep, load_sweep, points, run_sweep
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError
from headrace.reports.pareto import choose_cost, front, plot_png
from headrace.sim.sweep_point import RESULTS, check_names, evaluate_point

SMALL = """
name: small
models: [embedded]
machines: [nano]
schemes: [w4a8kv8, w8a8kv8]
grid:
  clock_hz: [100_000_000, 200_000_000]
  array.macs_per_cycle: [64, 128, 256]
workload: {prefill: 4, decode: 2}
"""


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def chunks_of_four(monkeypatch):
    monkeypatch.setattr(sweep_module, "CHUNK_POINTS", 4)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", list_configs("sweeps"))
def test_shipped_sweeps_name_what_exists(name):
    sweep = load_sweep(name)
    check_names(sweep)
    assert sweep.points == len(list(points(sweep)))


def test_the_example_is_mostly_legal_and_says_what_is_not(capsys, tmp_path):
    status, out, _ = run(capsys, "sweep", "example", "-o", str(tmp_path / "out"))
    first, reason = out.splitlines()
    assert (status, first.partition(": ")[2]) == (0, "72 points (estimated), 18 of them not legal")
    assert reason.strip().startswith("18 like point ") and reason.endswith("the array must not be narrower than the ports.")


def test_points_are_in_order_and_can_be_cut(small):
    sweep = load_sweep(small)
    every = list(points(sweep))
    assert len(every) == sweep.points == 12 and [point.index for point in every] == list(range(12))
    assert [point.grid["array.macs_per_cycle"] for point in every[:4]] == [64, 128, 256, 64]
    assert every[0].scheme == "w4a8kv8" and every[6].scheme == "w8a8kv8"
    assert list(points(sweep, 5, 9)) == every[5:9]


def test_a_sweep_through_the_command(capsys, small, tmp_path):
    status, out, _ = run(capsys, "sweep", str(small), "-o", str(tmp_path / "out"), "--json")
    document = json.loads(out)
    rows = read(document["file"])
    assert (status, document["points"], len(rows)) == (0, 12, 12)
    legal = [row for row in rows if not row["error"]]
    assert document["refused"] == 12 - len(legal) == 4 and all(row["array.macs_per_cycle"] == "64" for row in rows if row["error"])
    (reason,) = document["reasons"]
    assert (reason["points"], reason["first"]) == (4, 0) and reason["error"].startswith("sfu.lanes")
    assert all("array.macs_per_cycle" in row["error"] for row in rows if row["error"])
    by = {(row["used_scheme"], row["clock_hz"], row["array.macs_per_cycle"]): row for row in legal}
    slow, fast = (float(by["w4a8kv8", clock, "128"]["tokens_per_s"]) for clock in ("100000000", "200000000"))
    assert slow < fast <= 2.01 * slow  # twice the clock: memory times are in cycles, but refresh is in ns
    estimate = ["estimate", "embedded", "nano", "--scheme", "w8a8kv8", "--prefill", "4", "--decode", "2", "--set", "clock_hz=200e6", "--json"]
    _, out, _ = run(capsys, *estimate)
    assert float(by["w8a8kv8", "200000000", "128"]["tokens_per_s"]) == json.loads(out)["decode"]["tokens_per_s"]
    assert {row["kind"] for row in legal} == {"estimated"}


def test_resume_evaluates_only_what_is_missing(small, tmp_path, chunks_of_four):
    sweep = load_sweep(small)
    calls = []

    def evaluate(point):
        calls.append(point.index)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return {"value": point.index * 2}

    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, folder, evaluate, ("value",), stamp={"v": 1})
    assert calls == list(range(7)) and not (folder / "points.csv").exists()
    with pytest.raises(UserError, match="give --resume"):
        run_sweep(sweep, folder, evaluate, ("value",), stamp={"v": 1})
    calls[:] = [0] * 10  # past the interruption
    advanced = []
    path = run_sweep(sweep, folder, evaluate, ("value",), stamp={"v": 1}, resume=True, advance=advanced.append)
    assert calls[10:] == list(range(4, 12)) and advanced == [4, 4, 4]
    assert [row["value"] for row in read(path)] == [str(2 * i) for i in range(12)]
    assert not [file for file in folder.rglob(".*")]


def test_another_sweep_is_not_resumed(small, tmp_path):
    folder = tmp_path / "out"
    run_sweep(load_sweep(small), folder, lambda point: {"value": 1}, ("value",), stamp={"v": 1})
    with pytest.raises(UserError, match=r"\(v differ\)"):
        run_sweep(load_sweep(small), folder, lambda point: {"value": 1}, ("value",), stamp={"v": 2}, resume=True)
    small.write_text(SMALL.replace("decode: 2", "decode: 3"))
    with pytest.raises(UserError, match=r"\(sweep_sha256 differ\)"):
        run_sweep(load_sweep(small), folder, lambda point: {"value": 1}, ("value",), stamp={"v": 1}, resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no sweep.json"):
        run_sweep(load_sweep(small), tmp_path / "full", lambda point: {"value": 1}, ("value",), stamp={"v": 1}, resume=True)


def test_processes_change_nothing(small, tmp_path, chunks_of_four):
    sweep = load_sweep(small)
    one = run_sweep(sweep, tmp_path / "one", evaluate_point, RESULTS, stamp={})
    two = run_sweep(sweep, tmp_path / "two", evaluate_point, RESULTS, stamp={}, workers=2)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("clock_hz:", "clock_mhz:", "unknown path 'clock_mhz'"),
        ("clock_hz:", "scheme.nosuch:", "unknown path 'nosuch'"),
        ("clock_hz:", "board.nosuch:", "unknown path 'nosuch'"),
        ("name: small", "name: small\nnosuch: 1", "field 'nosuch' = 1 is unknown"),
        ("[64, 128, 256]", "[]", "has no values"),
        ("[64, 128, 256]", "[64, 64]", "64 is given twice"),
        ("[64, 128, 256]", "[64, 64.0]", "64.0 is given twice"),
        ("[nano]", "[nano, micro, Nano]", "'nano' is given twice"),
        ("[embedded]", "[embedded, EMBEDDED]", "'embedded' is given twice"),
        ("[64, 128, 256]", "64", "grid.array.macs_per_cycle"),
        ("[embedded]", "[nosuch]", "'nosuch'"),
        ("[embedded]", "[]", "models"),
        ("[nano]", "[nosuch]", "'nosuch' is not known"),
        ("[64, 128, 256]", "[16, 17]", "none of 8 points is legal"),
        ("decode: 2", "decode: 0", "workload.decode"),
    ],
)
def test_mistakes(capsys, small, tmp_path, old, new, words):
    small.write_text(SMALL.replace(old, new))
    status, _, err = run(capsys, "sweep", str(small), "-o", str(tmp_path / "out"))
    lines = [line for line in err.splitlines() if not line.startswith("headrace: sweep small")]
    assert status == 2 and len(lines) == 1 and words in lines[0]


def test_too_many_points(tmp_path):
    path = tmp_path / "huge.yaml"
    path.write_text("name: huge\nmodels: [embedded]\nmachines: [nano]\ngrid:\n" + "".join(f"  {p}: {list(range(1, 102))}\n" for p in ("a", "b", "c", "d")))
    with pytest.raises(UserError, match="104060401 points; allowed are 1000000"):
        load_sweep(path)


def test_an_evaluator_must_give_what_it_declares(small, tmp_path):
    with pytest.raises(ValueError, match="an evaluator gave"):
        run_sweep(load_sweep(small), tmp_path / "out", lambda point: {"other": 1}, ("value",), stamp={})


def test_front_against_brute_force():
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(50):
        gain, cost = rng.integers(0, 8, (2, 20)).astype(float)
        beaten = [
            any((gain[j] >= gain[i] and cost[j] <= cost[i]) and (gain[j] > gain[i] or cost[j] < cost[i]) for j in range(20)) for i in range(20)
        ]
        expected = {(gain[i], cost[i]) for i in range(20) if not beaten[i]}
        found = front(gain, cost)
        assert {(gain[i], cost[i]) for i in found} == expected and len(found) == len(expected)
        assert (np.diff(cost[found]) > 0).all() and (np.diff(gain[found]) > 0).all()


def test_pareto_command(capsys, small, tmp_path):
    folder = tmp_path / "out"
    run(capsys, "sweep", str(small), "-o", str(folder))
    status, out, _ = run(capsys, "pareto", str(folder), "--cost", "dsp", "--json")
    document = json.loads(out)
    assert status == 0 and document["points"] == 8
    rates = [point["tokens_per_s"] for point in document["front"]]
    assert rates == sorted(rates) and all(point["set"]["clock_hz"] == "200000000" for point in document["front"])
    assert [int(row["index"]) for row in read(folder / "pareto.csv")] == [point["index"] for point in document["front"]]
    assert (folder / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert run(capsys, "pareto", str(folder), "--cost", "dsp")[0] == 0


def test_pareto_refuses(capsys, tmp_path):
    assert "no sweep" in run(capsys, "pareto", str(tmp_path))[2]
    (tmp_path / "sweep.json").write_text("{}")
    assert "finish it with" in run(capsys, "pareto", str(tmp_path))[2]
    (tmp_path / "points.csv").write_text("a,b\n1,2\n")
    assert "has no column 'index'" in run(capsys, "pareto", str(tmp_path))[2]
    header = "index,model,scheme,machine,used_scheme,tokens_per_s,dsp,fits,error\n"
    (tmp_path / "points.csv").write_text(header + "0,m,s,n,s,-3,5,True,\n")
    assert "tokens_per_s = '-3'" in run(capsys, "pareto", str(tmp_path))[2]
    (tmp_path / "points.csv").write_text(header + "0,m,s,n,s,3,5,False,\n")
    assert "none of its 1 points is legal and fits" in run(capsys, "pareto", str(tmp_path))[2]
    with pytest.raises(UserError, match="--cost lut: 1 of 2 points do not know it; known of all: dsp"):
        choose_cost([{"lut": "", "dsp": "1"}, {"lut": "4", "dsp": "1"}], "lut")
    with pytest.raises(UserError, match="--cost watts is unknown"):
        choose_cost([], "watts")


def test_strict_models_are_not_coerced():
    with pytest.raises(ValueError):
        Sweep.model_validate({"name": "x", "models": ["a"], "machines": ["b"], "grid": {"c": [[1]]}})


def test_one_field_under_two_names_is_refused(small):
    small.write_text(SMALL.replace("  clock_hz:", "  machine.clock_hz: [100_000_000]\n  clock_hz:"))
    with pytest.raises(UserError, match="'clock_hz' is given twice"):
        load_sweep(small)


@pytest.mark.parametrize("content", [b"garbage\n", b"", b"\xff\n", b"4,embedded,w4a8kv8,nano,200000000,128,8,\n"])
def test_a_chunk_that_is_not_its_points_is_evaluated_again(small, tmp_path, chunks_of_four, content):
    sweep, folder = load_sweep(small), tmp_path / "out"
    calls = []

    def evaluate(point):
        calls.append(point.index)
        return {"value": point.index * 2}

    whole = run_sweep(sweep, folder, evaluate, ("value",), stamp={"v": 1}).read_text()
    (folder / "chunks" / "000001.csv").write_bytes(content)
    calls.clear()
    assert run_sweep(sweep, folder, evaluate, ("value",), stamp={"v": 1}, resume=True).read_text() == whole
    assert calls == [4, 5, 6, 7]


def test_a_plot_takes_any_name():
    rows = [{"index": "0", "model": "$\\frac$", "tokens_per_s": "5", "dsp": "1"}]
    assert plot_png(rows, {"$\\frac$": rows}, "dsp", "front").startswith(b"\x89PNG")


def test_null_takes_a_dram_preset_away(capsys, tmp_path):
    path = tmp_path / "banks.yaml"
    path.write_text("name: banks\nmodels: [embedded]\nmachines: [nano]\ngrid: {memory.dram: [null, u280-hbm2]}\nworkload: {prefill: 4, decode: 2}\n")
    status, _, _ = run(capsys, "sweep", str(path), "-o", str(tmp_path / "out"))
    fixed, banks = read(tmp_path / "out" / "points.csv")
    assert status == 0 and not fixed["error"] and not banks["error"]
    assert (fixed["memory.dram"], banks["memory.dram"]) == ("", "u280-hbm2")
    assert float(fixed["tokens_per_s"]) != float(banks["tokens_per_s"])
