"""The analytic level against a cycle-stepped run of the compiled program (`schedule_oracle`)."""

import dataclasses

import pytest

from headrace.hw.isa import Op, Operand
from headrace.hw.machine import load_machine
from headrace.mapping.analytic import step_cycles
from headrace.mapping.plan import make_plan, unplaced
from headrace.mapping.program import generate
from headrace.models.decoder import LINEAR_NAMES
from headrace.models.registry import model_config
from unit import schedule_oracle

EMBEDDED = model_config("embedded")
TWO_LAYERS = dataclasses.replace(model_config("smollm2-135m"), layers=2, ffn=768, vocab=1100)


def oracle_step(config, machine, bits: dict[str, int], context: int) -> int:
    """One decode step at `context`: the program's first position is moved there, so that no long prefill runs."""
    plan = make_plan(config, machine, bits, 256, 3)
    norm_words = -(-config.width * 4 // machine.word_bytes)
    program = generate(plan, dataclasses.replace(unplaced(plan), norm_words=norm_words))
    at = next(i for i, item in enumerate(program) if item.op == Op.SET and item.comment.startswith("position"))
    program[at] = dataclasses.replace(program[at], operands=(Operand(context - 2), *program[at].operands[1:]))
    (cycles,) = schedule_oracle.step_cycles(program, prompt=context - 1, outputs=2, machine=machine)
    return cycles


@pytest.mark.parametrize(
    ("config", "preset", "bits", "context"),
    [
        (EMBEDDED, "nano", 4, 2), (EMBEDDED, "nano", 4, 101), (EMBEDDED, "nano", 8, 30), (EMBEDDED, "micro", 4, 2),
        (EMBEDDED, "micro", 4, 101), (TWO_LAYERS, "nano", 4, 50), (TWO_LAYERS, "micro", 4, 101),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_within_two_percent_of_the_stepped_schedule(config, preset, bits, context):
    machine = load_machine(preset)
    widths = dict.fromkeys(LINEAR_NAMES, bits)
    stepped = oracle_step(config, machine, widths, context)
    assert float(step_cycles(config, widths, machine, context)) == pytest.approx(stepped, rel=0.02)


@pytest.mark.parametrize(
    "change", ["memory.q=2", "memory.read_latency_cycles=150", "buffers.raw_fifo_words=128", "memory.trfc_ns=1000"]
)
def test_other_machines_stay_within_five_percent(change):
    """Far from the presets the fluid picture of loads is coarser: +3.3% at half the memory rate, the worst of these."""
    machine = load_machine("nano", [change])
    widths = dict.fromkeys(LINEAR_NAMES, 4)
    stepped = oracle_step(EMBEDDED, machine, widths, 60)
    assert float(step_cycles(EMBEDDED, widths, machine, 60)) == pytest.approx(stepped, rel=0.05)
