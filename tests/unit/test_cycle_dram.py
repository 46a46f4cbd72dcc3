"""The cycle simulator with DRAM channels behind the ports: symmetry against stepping every channel, unloaded latencies, refusals."""

from dataclasses import fields

import numpy as np
import pytest
from random_programs import RandomProgram

from headrace.hw.dram_ports import DramPorts
from headrace.hw.isa import Instruction, Op
from headrace.hw.ld_unit import LdUnit
from headrace.hw.machine import load_machine
from headrace.mapping.analytic import step
from headrace.mapping.plan import make_plan
from headrace.models.errors import UserError
from headrace.models.graph import LINEAR_NAMES
from headrace.models.registry import model_config
from headrace.sim import cycle
from headrace.sim.cycle import simulate
from headrace.sim.cycle_model import run_step, span

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
    assert {field.name for field in fields(ports)} >= {"latency", "p", "q"}
