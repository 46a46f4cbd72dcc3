"""`headrace estimate`: its keys, its bounds, its sums, what it refuses."""

import json

import pytest

from headrace import cli
from headrace.hw.board import load_board
from headrace.hw.machine import load_machine
from headrace.hw.resources import (
    BLOCKS, COLUMNS, COUNTERS_MICRO, COUNTERS_NANO, HOW, Block, Point, block_rams, machine_resources, ultra_rams,
)
from headrace.mapping.compiler import compile_model
from headrace.mapping.required import required_bytes
from headrace.models.configfile import list_configs
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme
from headrace.sim.energy import TERMS, load_energy
from headrace.sim.estimate import (
    Workload, deliverable_bytes_per_cycle, estimate, image_bytes, peak_bytes_per_cycle, utilisation,
)

UTILISATION = {"mac", "bandwidth", "peak_fraction"}


def run(capsys, *arguments):
    status = cli.main(["estimate", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def document(capsys, *arguments) -> dict:
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_keys_of_the_phases(capsys):
    d = document(capsys, "embedded", "nano", "--prefill", "5", "--decode", "4", "--by-op")
    assert {"model", "machine", "scheme", "level", "batch", "prefill", "decode", "total", "energy_scope", "energy_by", "memory",
            "resources", "ops", "stamp"} <= set(d)  # fmt: skip
    assert {"tokens", "latency_s", "cycles", "energy_j", "utilisation", "bound"} == set(d["prefill"])
    assert {"steps", "latency_s", "cycles", "tokens_per_s", "first_step_s", "last_step_s", "energy_j", "energy_j_per_token",
            "energy_j_per_token_range", "utilisation", "bound"} == set(d["decode"])  # fmt: skip
    assert set(d["total"]) == {"latency_s", "energy_j", "power_w"}
    assert set(d["prefill"]["utilisation"]) == set(d["decode"]["utilisation"]) == UTILISATION
    assert {"weight_bytes", "kv_bytes_per_token", "fits"} <= set(d["memory"])
    assert set(COLUMNS) <= set(d["resources"])
    assert (d["model"], d["machine"], d["scheme"], d["level"], d["batch"]) == ("embedded", "nano", "w4a8kv8", "analytic", 1)
    assert "step" not in d
    for op in d["ops"]:
        assert set(op) == {"phase", "name", "count", "cycles", "bytes", "macs", "bound"}
        assert op["bound"] in ("memory", "compute", "sfu", "issue", "control")
        assert min(op["count"], op["cycles"], op["bytes"], op["macs"]) >= 0
    for phase in ("prefill", "decode"):
        ops = [op for op in d["ops"] if op["phase"] == phase]
        assert 0 <= sum(op["cycles"] for op in ops) - d[phase]["cycles"] <= len(ops)  # each is rounded up


def test_latencies_rates_and_bounds_agree(capsys):
    d = document(capsys, "smollm2-135m", "nano", "--prefill", "9", "--decode", "7")
    clock = load_machine("nano").clock_hz
    for phase in ("prefill", "decode"):
        assert d[phase]["latency_s"] == pytest.approx(d[phase]["cycles"] / clock, rel=1e-6)
        assert all(0 < value <= 1 for value in d[phase]["utilisation"].values())
    assert d["decode"]["tokens_per_s"] == pytest.approx(7 / d["decode"]["latency_s"])
    assert 0 < d["decode"]["first_step_s"] <= d["decode"]["last_step_s"]
    assert d["total"]["latency_s"] == pytest.approx(d["prefill"]["latency_s"] + d["decode"]["latency_s"])
    config, scheme = model_config("smollm2-135m"), load_scheme("w4a8kv8")
    required = sum(int(required_bytes(config, scheme, context)) for context in range(10, 17))
    assert d["decode"]["utilisation"]["peak_fraction"] == pytest.approx(required / d["decode"]["cycles"] / 64, rel=1e-6)
    assert d["decode"]["utilisation"]["bandwidth"] > d["decode"]["utilisation"]["peak_fraction"]
    assert d["decode"]["bound"] == "memory"


def test_energies_sum(capsys):
    d = document(capsys, "embedded", "nano", "--prefill", "5", "--decode", "4")
    assert set(d["energy_by"]) == set(TERMS)
    assert sum(d["energy_by"].values()) == pytest.approx(d["total"]["energy_j"])
    assert d["prefill"]["energy_j"] + d["decode"]["energy_j"] == pytest.approx(d["total"]["energy_j"])
    low, high = d["decode"]["energy_j_per_token_range"]
    assert 0 < low < d["decode"]["energy_j_per_token"] < high
    assert d["decode"]["energy_j_per_token"] == pytest.approx(d["decode"]["energy_j"] / 4)
    assert d["total"]["power_w"] == pytest.approx(d["total"]["energy_j"] / d["total"]["latency_s"])
    assert 40 < d["total"]["power_w"] < load_board("u280").tdp_w
    device = document(capsys, "embedded", "nano", "--prefill", "5", "--decode", "4", "--energy-scope", "device")
    assert device["energy_by"]["board"] == 0
    assert device["total"]["power_w"] < d["total"]["power_w"] - 30


def test_one_step_at_a_context(capsys):
    d = document(capsys, "embedded", "nano", "--context", "12", "--by-op")
    assert not {"prefill", "decode", "total"} & set(d)
    assert {"context", "latency_s", "cycles"} <= set(d["step"])
    phases = document(capsys, "embedded", "nano", "--prefill", "11", "--decode", "1")
    assert d["step"]["cycles"] == phases["decode"]["cycles"]
    assert {op["phase"] for op in d["ops"]} == {"step"}


def test_batch_is_passes_and_says_so(capsys):
    one = document(capsys, "embedded", "nano", "--prefill", "5", "--decode", "4")
    three = document(capsys, "embedded", "nano", "--prefill", "5", "--decode", "4", "--batch", "3")
    assert three["decode"]["latency_s"] == pytest.approx(3 * one["decode"]["latency_s"])
    assert three["decode"]["tokens_per_s"] == pytest.approx(one["decode"]["tokens_per_s"])
    assert three["decode"]["utilisation"]["bandwidth"] < one["decode"]["utilisation"]["bandwidth"]
    assert "weights are read per sequence" in three["note"] and "note" not in one


def test_set_reaches_machine_scheme_and_board(capsys):
    base = document(capsys, "embedded", "nano", "--context", "12")
    slow = document(capsys, "embedded", "nano", "--context", "12", "--set", "memory.q=2")
    wide = document(capsys, "embedded", "nano", "--context", "12", "--set", "scheme.weight_bits=8")
    small = document(capsys, "embedded", "nano", "--context", "12", "--set", "board.hbm_bytes=32")
    assert slow["step"]["cycles"] > base["step"]["cycles"]
    assert wide["step"]["cycles"] > base["step"]["cycles"] and wide["memory"]["weight_bytes"] > base["memory"]["weight_bytes"]
    assert base["memory"]["available_bytes"] == 2 * 2**28 and small["memory"]["available_bytes"] == 2
    assert base["memory"]["fits"] and not small["memory"]["fits"]
    stamps = {d["stamp"]["config_sha256"] for d in (base, slow, wide, small)}
    assert len(stamps) == 4


@pytest.mark.parametrize("how", [["--context", "12"], ["--prefill", "4", "--decode", "3"]])
def test_power_is_held_against_the_boards_tdp(capsys, how):
    for tdp_w, fits in ((225, True), (20, False)):
        d = document(capsys, "embedded", "nano", *how, "--set", f"board.tdp_w={tdp_w}")
        (row,) = [check for check in d["board"]["checks"] if check["check"] == "power_w"]
        assert (row["ok"], row["has"], d["board"]["fits"]) == (fits, tdp_w, fits) and 20 < row["needs"] < 225
    device = document(capsys, "embedded", "nano", *how, "--energy-scope", "device")
    assert "power_w" not in [check["check"] for check in device["board"]["checks"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["embedded", "nano", "--level", "cycle", "--by-op"], "--by-op: operators are those of the analytic level"),
        (["embedded", "nano", "--level", "cycle", "--context", "1"], "--context 1: a step of the cycle level follows another one"),
        (["embedded", "nano", "--level", "exact"], "--level exact is unknown; allowed: analytic, cycle"),
        (["embedded", "nano", "--context", "5", "--decode", "3"], "--context is one decode step"),
        (["embedded", "nano", "--context", "513"], "context = 513; model embedded on machine nano allows 1 to 512"),
        (["embedded", "nano", "--prefill", "500", "--decode", "500"], "context = 1000"),
        (["embedded", "nano", "--batch", "0"], "--batch"),
        (["embedded", "nosuch"], "'nosuch' is not known; allowed: micro, milli, nano"),
        (["nosuch", "nano"], "models: 'nosuch' is not known"),
        (["embedded", "nano", "--scheme", "nosuch"], "schemes: 'nosuch' is not known"),
        (["embedded", "nano", "--set", "scheme.kv_bits=4"], "kv_bits = 4; a machine of version 1 allows 8"),
        (["embedded", "nano", "--set", "scheme.weight_bits=3"], "3 bits for q; machines of version 1 decode 4 and 8 bits"),
        (["embedded", "nano", "--set", "memory.port=2"], "unknown path 'memory.port'"),
        (
            ["llama2-7b", "nano"],
            (
                "model llama2-7b does not fit machine nano: even the shortest context (16 tokens) needs 9533 vector buffer rows (305,056 bytes) of "
                "buffers.vector_rows = 4096 (131,072 bytes) and 2256 activation buffer slices (36,096 bytes) of buffers.activation_slices = 1024 "
                "(16,384 bytes); and its weights alone take 4,"
            ),
        ),
        (["embedded", "nano", "--set", "board.price_usd=1"], "--set board.price_usd=1: only describes the board and changes no result; allowed are name, lut, ff, dsp"),
        (["llama2-7b", "nano"], "bytes of memory, where 2 ports of board u280 reach 536,870,912"),
        (
            ["smollm2-135m", "nano", "--prefill", "8000"],
            "allows 1 to 1344: 8128 needs 13877 vector buffer rows (444,064 bytes) of buffers.vector_rows = 4096 (131,072 bytes) and needs 4836 activation",
        ),
        (["embedded", "nano", "--context", "513"], "513 is past the model's max_positions = 512"),
    ],
)
def test_mistakes_are_one_line_and_status_2(capsys, arguments, words):
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("headrace: error: ") and words in err


def test_tables_and_trace(capsys, tmp_path):
    trace = tmp_path / "trace.json"
    status, out, err = run(capsys, "embedded", "nano", "--context", "12", "--by-op", "--trace", str(trace))
    assert (status, err) == (0, "")
    assert "bound" in out and "softmax" in out and "estimated" in out
    spans = json.loads(trace.read_text())["traceEvents"]
    total = sum(span["args"]["cycles"] * span["args"]["repeats"] for span in spans)
    assert total == pytest.approx(document(capsys, "embedded", "nano", "--context", "12")["step"]["cycles"], abs=1)


def test_broken_bounds_are_refused():
    machine = load_machine("nano")
    assert deliverable_bytes_per_cycle(machine) < peak_bytes_per_cycle(machine) == 64
    with pytest.raises(AssertionError, match="utilisation.mac"):
        utilisation(machine, 10, 10 * 128 + 1, 0)
    with pytest.raises(AssertionError, match="utilisation.bandwidth"):
        utilisation(machine, 10, 0, 10 * 64)
    with pytest.raises(AssertionError, match="utilisation.mac"):
        utilisation(machine, 10, -1, 0)


def test_a_board_without_energies_has_none_rather_than_zero():
    machine, board = load_machine("nano"), load_board("u280")
    d = estimate(model_config("embedded"), load_scheme("w4a8kv8"), machine, board, None, Workload(prefill=2, decode=2))
    assert d["energy_by"] is None and d["total"]["energy_j"] is None and d["total"]["power_w"] is None


def test_image_is_the_compilers(tmp_path):
    """Within the program, whose length is counted as a full instruction memory, header and table."""
    from headrace.mapping.plan import make_plan
    from headrace.models.graph import LINEAR_NAMES
    from headrace.models.quantise import quantise_model
    from headrace.models.registry import load_model

    machine = load_machine("nano")
    model = quantise_model(load_model("embedded"), load_scheme("w4a8kv8"))
    image = compile_model(model, machine, [1, 2, 3], outputs=4, context=48)
    plan = make_plan(model.config, machine, dict.fromkeys(LINEAR_NAMES, 4), 48, 4)
    program = machine.buffers.imem_words * 32
    real = image.layout.next_word * machine.word_bytes
    sections = {s.name: s.words * machine.word_bytes for s in image.layout.sections}
    rest = sum(sections[name] for name in ("header", "table", "constants", "program"))
    assert image_bytes(plan) - program == real - rest


def test_resources_follow_structure():
    nano, wide = load_machine("nano"), load_machine("nano", ["array.macs_per_cycle=256"])
    one, two = machine_resources(nano), machine_resources(wide)
    assert one["blocks"]["mv"]["dsp"] == 64 + 1 * 4 and two["blocks"]["mv"]["dsp"] == 128 + 2 * 4
    for column in COLUMNS:
        counts = [block[column] for block in one["blocks"].values()]
        assert one[column] == (None if None in counts else sum(counts))
    assert one["dsp"] == 64 + 4 + 16 + 3
    assert set(one["blocks"]) == set(BLOCKS)
    assert (block_rams(512, 512), block_rams(128, 1024), ultra_rams(256, 4097)) == (7.5, 4.0, 8)


def test_counters_are_the_machines():
    from headrace.hw.top import control_parameters

    counts = [len(control_parameters(load_machine(name)).counter_names) for name in ("nano", "micro")]
    assert counts == [COUNTERS_NANO, COUNTERS_MICRO]


def test_how_cells_are_known_is_said():
    kind = machine_resources(load_machine("nano"))["kind"]
    for name, block in BLOCKS.items():
        assert block.points and list(block.points) == sorted(block.points, key=lambda point: point.size)
        for how in {point.how for point in block.points}:
            words = next(part for part in kind.split(";") if f"{HOW[how]} for " in part)
            assert name in words


def test_a_block_of_unknown_cells_is_unknown_and_a_line_is_a_line():
    nano, micro = load_machine("nano"), load_machine("micro")
    assert Block().count(nano)["lut"] is None
    block = Block(points=(Point(size=2, lut=100, ff=10), Point(size=8, lut=400, ff=70)), size=lambda m: m.memory.ports)
    assert [block.cells(m, "lut") for m in (nano, micro)] == [100, 400]
    assert block.cells(load_machine("micro", ["memory.ports=4"]), "ff") == 30
    assert Block(points=(Point(size=2, lut=7, ff=9),), size=lambda m: m.memory.ports).cells(micro, "lut") == 28


@pytest.mark.parametrize("name", list_configs("machines"))
def test_every_shipped_machine_has_energies(name):
    assert load_energy(load_machine(name).board).board == load_machine(name).board


@pytest.mark.parametrize("change, check", [("dsp=80", "dsp"), ("hbm_pseudo_channels=1", "hbm_ports"), ("hbm_bytes_per_s=1.0", "port_bytes_per_s")])
def test_a_board_that_cannot_carry_the_machine_is_said(change, check):
    from headrace.sim.estimate import board_fit
    from headrace.hw.board import load_board
    from headrace.hw.resources import machine_resources

    machine = load_machine("nano")
    assert board_fit(machine, load_board("u280"), machine_resources(machine))["fits"]
    fit = board_fit(machine, load_board("u280", [change]), machine_resources(machine))
    assert not fit["fits"]
    assert [row["check"] for row in fit["checks"] if row["ok"] is False] == [check]


def test_refreshes_add_up_where_the_lead_is_too_short():
    """docs/analytic.md, "Where more is not better": with a lead below the round trip 16 ports are slower than 8; with the presets' lead they are not."""
    from headrace.mapping.analytic_timing import MachineColumns

    def bytes_per_cycle(ports, beats):
        changes = [f"memory.ports={ports}", "array.macs_per_cycle=1024", f"memory.burst_beats={beats}"]
        machine = load_machine("nano", changes)
        return float(MachineColumns.of(machine).words_per_cycle) * machine.word_bytes

    assert bytes_per_cycle(16, 4) < bytes_per_cycle(8, 4)
    assert bytes_per_cycle(16, 16) > bytes_per_cycle(8, 16)
