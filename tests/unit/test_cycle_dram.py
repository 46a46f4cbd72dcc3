"""The cycle simulator with DRAM channels behind the ports: symmetry against stepping every channel, unloaded latencies, refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from random_programs import RandomProgram

import headrace.configs
from headrace.cli import main
from headrace.hw.dram_ports import DramPorts
from headrace.hw.isa import Instruction, Op
from headrace.hw.ld_unit import LdUnit
from headrace.hw.machine import load_machine
from headrace.mapping.analytic import step
from headrace.mapping.plan import make_plan
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES
from headrace.models.registry import model_config
from headrace.sim import cycle
from headrace.sim.cycle import simulate
from headrace.sim.cycle_model import program_of, run_step, span, step_program

CONFIGS = Path(headrace.configs.__path__[0])
HALT = Instruction(Op.HALT)


def machine(name="nano", dram="u280-hbm2", **memory):
    return load_machine(name, [f"memory.dram={dram}", *(f"memory.{field}={value}" for field, value in memory.items())])


@pytest.mark.parametrize(
    "made",
    [machine("micro"), machine("milli"), machine("micro", "ramulator2-gddr6-14000"), machine("micro", "ramulator2-hbm3-6400")],
    ids=["micro", "milli", "gddr6", "hbm3, per-bank refresh"],
)
@pytest.mark.parametrize("first", [0, 7])
def test_symmetry_gives_what_every_channel_gives(made, first):
    """56 programs: channels in the same state stepped as one, against each stepped by itself. Every time and counter is equal."""
    print("seeds from", first)
    for seed in range(first, first + 7):
        program = RandomProgram(made, seed)
        one, all_ = (
            simulate(program.instructions, made, program_word=program.program_section.base, symmetric=symmetric) for symmetric in (True, False)
        )
        assert one.cycles == all_.cycles and one.counters == all_.counters, seed
        for field in ("dispatched", "started", "retired"):
            assert np.array_equal(getattr(one, field), getattr(all_, field)), (seed, field)


def preset(folder, *, timings, mapping=None, **organisation):
    """`u280-hbm2` with other timings, as a file."""
    document = yaml.safe_load((CONFIGS / "memories" / "u280-hbm2.yaml").read_text())
    document |= {"derived": [], "recall": []} | ({"mapping": mapping} if mapping else {})
    for name in timings:
        document["timings"].pop(f"{name}_ns", None)
    if timings.get("rfc", 1) == 0:
        del timings["rfc"]
    document["timings"] |= timings
    document["organisation"] |= organisation
    path = folder / "preset.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_symmetry_with_refreshes_that_fall_behind(tmp_path):
    """Per-bank refreshes so frequent that one waits for the other: channels whose refreshes are not equally far are not the same."""
    often = {"refi": 20, "rfc": 0, "rfcpb": 1, "rrefd": 0}
    order = ["column", "bank", "bank_group", "row", "pc"]
    made = load_machine("nano", [
        "memory.ports=8", "array.macs_per_cycle=512", "clock_hz=450e6",
        f"memory.dram={preset(tmp_path, timings=often, mapping=order, bank_groups=1, banks_per_group=1)}",
    ])  # fmt: skip
    program = RandomProgram(made, 3, length=600)
    one, each = (simulate(program.instructions, made, program_word=program.program_section.base, symmetric=flag) for flag in (True, False))
    assert one.cycles == each.cycles and np.array_equal(one.retired, each.retired) and one.counters == each.counters


def test_short_latencies_end(tmp_path):
    made = load_machine("nano", [f"memory.dram={preset(tmp_path, timings={'cl': 1, 'bl': 1, 'rtw': 3})}"])
    slow = simulate([load(0), HALT], machine(), program_word=1 << 20).cycles
    assert 20 < simulate([load(0), HALT], made, program_word=1 << 20).cycles < slow


def test_clocks_of_many_digits_and_long_waits():
    """p/q with a denominator of 10**12: products of it with a long watchdog or a late start pass 63 bits."""
    made = [load_machine("nano", ["memory.dram=u280-hbm2", f"clock_hz={hz}", "control.watchdog_cycles=12_000_000"]) for hz in (2.25e8, 224999999.0)]
    for start in (None, 10_000_000):
        near, odd = (simulate([load(0), HALT], m, program_word=1 << 20, start_cycle=start) for m in made)
        assert abs(near.cycles - odd.cycles) <= 2 and abs(near.counters["boot_cycles"] - odd.counters["boot_cycles"]) <= 2


def test_a_mapping_of_many_pieces(tmp_path):
    pieces = ["column:1", "bank:1", "column:1", "bank:1", "column:1", "bank_group:1", "column", "row:3", "bank_group", "row", "pc", "column"]
    made = load_machine("nano", [f"memory.dram={preset(tmp_path, timings={}, mapping=pieces)}"])
    ports = DramPorts.of(made)
    assert len(ports.fields) == 10, "pc and a field of no bits are left out"
    assert simulate([load(0), HALT], made, program_word=1 << 20).cycles > 20


@pytest.mark.parametrize("level", ["analytic", "cycle"])
def test_fields_of_the_fixed_memory_do_not_count(level, capsys):
    """p, q and the rest describe the other memory: with them set, estimates are the same."""
    said = []
    for more in ([], ["--set", "memory.p=1", "--set", "memory.q=4", "--set", "memory.trefi_ns=100", "--set", "memory.trfc_ns=90"]):
        assert main(["estimate", "embedded", "nano", "--context", "40", "--level", level, "--json", "--set", "memory.dram=u280-hbm2", *more]) == 0
        said.append(json.loads(capsys.readouterr().out)["step"])
    assert said[0] == said[1]


def test_machines_show_and_check_know_the_channels(capsys):
    assert main(["machines", "show", "milli"]) == 0
    shown = capsys.readouterr().out
    assert "dram_channels" in shown and "trefi" not in shown and "read_latency" not in shown
    assert main(["machines", "check", "nano", "--set", "memory.dram=kv260-ddr4"]) == 2
    assert "64 bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "dram", "model", "context"),
    [
        ("milli", "u280-hbm2", "llama2-7b", 300), ("micro", "u280-hbm2", "smollm2-135m", 200), ("nano", "ramulator2-gddr6-14000", "smollm2-135m", 90),
        ("nano", "dramsim3-lpddr4-8gb-x16-2400", "smollm2-135m", 90),
    ],
)  # fmt: skip
def test_closed_forms_follow(name, dram, model, context):
    """The analytic level within 1% on a decode step: channels twice and four times as fast as their ports, and one that is slower."""
    made, config, bits = machine(name, dram), model_config(model), dict.fromkeys(LINEAR_NAMES, 4)
    cycles = span(run_step(make_plan(config, made, bits, context, 1), context), 0, 1)
    assert float(step(config, bits, made, np.array([context]), lm_head=True).cycles.sum()) == pytest.approx(cycles, rel=0.01)


def load(word):
    return Instruction(Op.LDV, (word, 1, 1, 0, 0))


def test_unloaded_latencies_differ_by_the_banks_state():
    """One word loaded alone: its row closed, then open, then another row of its bank open. In command cycles the difference is tRCD and tRP."""
    made = machine()
    ports = DramPorts.of(made)
    timing = ports.timing
    taken = {ports.split(word)[0] for word in range(16)}  # banks in which header and program lie
    near = next(word for word in range(1 << 22) if ports.split(word)[0] not in taken)
    far = next(word for word in range(near, 1 << 22) if ports.split(word)[0] == ports.split(near)[0] and ports.split(word)[1] != ports.split(near)[1])
    alone = [Instruction(Op.BAR), load(near), Instruction(Op.BAR), load(near), Instruction(Op.BAR), load(far), HALT]
    result = simulate(alone, made, program_word=1 << 20)
    loads = result.op == Op.LDV
    closed, hit, miss = (result.retired - result.started)[loads] * ports.q / ports.p
    # The core sees a completion at its next tick, so up to one core cycle is lost.
    assert abs(closed - hit - timing.rcdrd) <= ports.q / ports.p
    assert abs(miss - hit - timing.rcdrd - timing.rp) <= ports.q / ports.p
    fixed = LdUnit.LATENCY + ports.latency + (1 + timing.cl + timing.bl) * ports.p / ports.q
    assert fixed <= hit * ports.p / ports.q <= fixed + 8


def test_a_stream_runs_at_the_ports_rate_less_refresh():
    made = machine("milli")
    words = 20_000
    result = simulate([Instruction(Op.LDV, (0, 100, 200, 100, 0)), HALT], made, program_word=1 << 20)
    timing = DramPorts.of(made).timing
    share = words / (result.retired[0] - result.started[0])
    parts = made.memory.ports  # a word leaves the DMA in as many rows
    assert share == pytest.approx(1 / parts, rel=0.01), "the vector buffer's port is the limit of an LDV"
    stream = simulate([Instruction(Op.LDW, (0, 400, 1, 0)), HALT], made, program_word=1 << 20)
    assert stream.retired[0] - stream.started[0] < 400 + timing.rfc + 100


def test_watchdog_is_reached_over_skipped_cycles():
    made = load_machine("nano", ["memory.dram=u280-hbm2", "control.watchdog_cycles=5000"])
    with pytest.raises(cycle.CycleError, match="cycle 50[0-9][0-9]: no instruction retires"):
        simulate([Instruction(Op.MV, (0, 0, 0, 1, 1), flags=8), HALT], made)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["memory.dram=kv260-ddr4"], ["kv260-ddr4", "64 bytes", "32"]),
        (["memory.dram=u280-hbm2", "memory.ports=1"], ["1 ports", "2 pseudo-channels"]),
        (["memory.dram=u280-hbm2", "clock_hz=1.2e9"], ["1.2e+09 Hz", "command clock"]),
        (["memory.dram=nothing"], ["nothing"]),
    ],
)
def test_presets_that_cannot_serve_a_machine(settings, words):
    with pytest.raises(UserError) as error:
        DramPorts.of(load_machine("nano", settings))
    assert all(word in str(error.value) for word in words), error.value


def test_addresses_follow_the_presets_mapping():
    ports = DramPorts.of(machine())
    bits = sum(width for _, width in ports.fields)
    seen = {ports.split(beat) for beat in range(1 << 8)}
    assert len(seen) == 8, "256 beats of 32 bytes: eight rows of 1 KiB, in eight banks"
    assert ports.split(1 << bits) == ports.split(0), "bits beyond the row are dropped"


def equal(made, instructions, arguments=(), **given):
    """Channels that are alike stepped as one, against each stepped by itself; gives the result."""
    one, each = (simulate(instructions, made, arguments, symmetric=flag, **given) for flag in (True, False))
    assert one.cycles == each.cycles and one.counters == each.counters
    for field in ("dispatched", "started", "retired"):
        assert np.array_equal(getattr(one, field), getattr(each, field)), field
    return one


@pytest.mark.parametrize(
    ("name", "settings", "context"),
    [("milli", [], 512), ("milli", ["clock_hz=450e6"], 96), ("nano", ["memory.dram=u280-hbm2"], 200), ("nano", ["memory.dram=ramulator2-gddr6-14000"], 33)],
)
def test_a_layer_of_streamed_weights(name, settings, context):
    """A decode step, in which nearly all cycles are weights on their way into MV: the path of its own that these take, against the loop's."""
    made = load_machine(name, settings)
    config = replace(model_config("llama2-7b" if name == "milli" else "smollm2-135m"), layers=1, vocab=4096)
    plan = make_plan(config, made, dict.fromkeys(LINEAR_NAMES, 4) | {"wo": 8}, context, 1)
    program, base = program_of(plan)
    result = equal(made, step_program(program, context), (context - 1, 2), program_word=base)
    assert result.counters["mv_active"] > result.cycles / 4


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_symmetry_on_many_machines(seed):
    """200 programs, on presets, shapes and clocks that are drawn."""
    rng = np.random.default_rng(seed)
    for case in range(10):
        dram = str(rng.choice(["u280-hbm2", "ramulator2-gddr6-14000", "ramulator2-hbm3-6400", "dramsim3-lpddr4-8gb-x16-2400"]))
        settings = [
            f"memory.dram={dram}", f"clock_hz={rng.choice([150e6, 200e6, 225e6, 300e6])}", f"buffers.raw_fifo_words={rng.choice([128, 256, 512])}",
            f"buffers.weight_fifo_slices={rng.choice([4, 8, 64])}",
        ]  # fmt: skip
        made = load_machine(str(rng.choice(["nano", "micro", "milli"])), settings)
        print(seed, case, made.name, settings)
        program = RandomProgram(made, int(rng.integers(1 << 30)), length=1500)
        equal(made, program.instructions, program_word=program.program_section.base)
