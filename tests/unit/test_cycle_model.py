"""A model on the cycle simulator: addresses as the compiler places them, phases, single steps, the estimate's document, traces."""

import json

import numpy as np
import pytest
from models_for_tests import random_model

from headrace.hw.isa import Op
from headrace.hw.machine import load_machine
from headrace.mapping.analytic import decode, prefill
from headrace.mapping.compiler import lay_out
from headrace.mapping.plan import make_plan
from headrace.mapping.program import generate
from headrace.models.decoder import LINEAR_NAMES
from headrace.sim.chrome_trace import span_times
from headrace.sim.cycle_model import chrome_trace, placed, run_phases, run_step, span, step_program

NANO = load_machine("nano")


def plan_of(machine=NANO, outputs=4, **sizes):
    model = random_model(3, **sizes)
    bits = {name: model.layers[0][name].bits for name in LINEAR_NAMES}
    return model, make_plan(model.config, machine, bits, None, outputs)


@pytest.mark.parametrize("sizes", [dict(tie_embeddings=False), dict(layers=3), dict(bits=8), dict(vocab=301, ffn=192)])
@pytest.mark.parametrize("machine", ["nano", "micro"])
def test_addresses_are_those_of_the_compiler(machine, sizes):
    model, plan = plan_of(load_machine(machine), **sizes)
    layout, addresses = lay_out(model, plan, [1, 2, 3])
    ours, base = placed(plan)
    assert ours == addresses
    assert base == next(section.base for section in layout.sections if section.name == "program")


def test_phases_and_steps():
    model, plan = plan_of()
    result = run_phases(plan, 3, 4, tokens=(5, 6, 7, 100, 101, 102, 103))
    assert [mark for mark, _ in result.marks] == [0, 1, 2, 3, 4]
    config, bits = plan.config, plan.bits
    assert span(result, 0, 1) == pytest.approx(float(prefill(config, bits, NANO, 3).cycles), rel=0.02)
    assert span(result, 1, 4) == pytest.approx(float(decode(config, bits, NANO, 4, 3).cycles), rel=0.02)
    for k, context in enumerate((4, 5, 6), 1):
        # The same instructions; refreshes fall elsewhere.
        assert span(run_step(plan, context), 0, 1) == pytest.approx(span(result, k, k + 1), rel=0.02)


def test_a_step_without_refresh_is_the_same_anywhere():
    """Where memory has no time of its own, a step alone takes exactly the cycles that it takes in the run."""
    model, plan = plan_of(load_machine("nano", ["memory.trfc_ns=0"]), tie_embeddings=False)
    result = run_phases(plan, 3, 4)
    assert [span(run_step(plan, context), 0, 1) for context in (4, 5, 6)] == [span(result, k, k + 1) for k in (1, 2, 3)]


def test_step_needs_a_step_before_it():
    _, plan = plan_of()
    with pytest.raises(ValueError, match="context = 1"):
        step_program(generate(plan, placed(plan)[0]), 1)


def test_trace_is_chrome_json():
    _, plan = plan_of()
    program = step_program(generate(plan, placed(plan)[0]), 9)
    result = run_step(plan, 9)
    trace = json.loads(json.dumps(chrome_trace(result, program, NANO, name="test")))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == len(result.pc)
    assert {event["tid"] for event in spans} == set(range(5))
    for queue in range(5):
        own = [event for event in spans if event["tid"] == queue]
        for before, after in zip(own, own[1:], strict=False):
            assert nanoseconds(after["ts"]) >= nanoseconds(before["ts"]) + nanoseconds(before["dur"]), "Perfetto drops spans that overlap"
    assert spans[-1]["args"]["op"] == Op.HALT.name
    end = max(event["ts"] + event["dur"] for event in spans)
    assert end == pytest.approx(result.cycles / NANO.clock_hz * 1e6, abs=1e-3)


@pytest.mark.parametrize("clock_hz", [225e6, 300e6, 333333333.0, 1e9, 2.6e9])
def test_spans_that_meet_still_meet_in_whole_nanoseconds(clock_hz):
    """As Perfetto reads them, in floats of either width of decimals: neither overlap nor gap."""
    at = np.cumsum(np.random.default_rng(5).integers(1, 40, 20_000)).tolist()
    spans = [span_times(begin / clock_hz, end / clock_hz) for begin, end in zip(at, at[1:], strict=False)]
    for before, after in zip(spans, spans[1:], strict=False):
        assert nanoseconds(before["ts"]) + nanoseconds(before["dur"]) == nanoseconds(after["ts"])


def nanoseconds(microseconds):
    return int(float(json.dumps(microseconds)) * 1000)
