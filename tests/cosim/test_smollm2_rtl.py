"""SmolLM2-135M on the RTL of `nano`: prompt, first token and a whole decode step, held against golden; some minutes a run.

Needs `headrace models pull smollm2-135m`.
"""

import numpy as np
import pytest

from headrace.hw.isa import Op
from headrace.mapping.compiler import compile_model
from headrace.models.registry import model_entry, weights_path
from headrace.sim.closed_loop import golden_run
from headrace.sim.cosim import run_image
from headrace.sim.loop_session import LoopSession

pytestmark = [
    pytest.mark.cosim,
    pytest.mark.nightly,
    pytest.mark.skipif(weights_path(model_entry("smollm2-135m")) is None, reason="run `headrace models pull smollm2-135m` first"),
]

PROMPT, OUTPUTS, WITHIN = "The capital of France is", 2, 0.15


@pytest.fixture(scope="module")
def session():
    return LoopSession.open("smollm2-135m", "nano", None)


@pytest.fixture(scope="module")
def document(session):
    return session.run(PROMPT, session.encode(PROMPT, OUTPUTS), OUTPUTS, seed=1)


def test_every_token_and_logit(document):
    assert document["rtl_tokens_equal"] and document["logits_equal"]
    assert document["text"].strip().startswith("Paris")


def test_bandwidth_and_speed(document):
    hbm = document["decode"]["hbm"]
    print(hbm, document["sim_cycles_per_s"])
    assert hbm["utilisation"] >= 0.80
    assert hbm["peak_fraction"] >= 0.70


def test_analytic_level(document):
    for phase in ("prefill", "decode"):
        cycles = document[phase]["cycles"]
        assert abs(cycles["analytic"] / cycles["rtl"] - 1) <= WITHIN, (phase, cycles)


def _run(session, tmp_path, seed, edit=None):
    prompt = session.encode(PROMPT, 1)[:2]
    image = compile_model(session.compressed, session.machine, prompt, outputs=1)
    if edit:
        edit(image)
    path = tmp_path / f"{seed}.img"
    manifest = image.write(path)
    return run_image(path, manifest, session.machine, arguments=(len(prompt), 1), outputs=1, seed=seed), prompt


def test_two_poison_seeds_agree(session, tmp_path):
    (first, prompt), (second, _) = (_run(session, tmp_path, seed) for seed in (2, 3))
    golden_tokens, golden_logits = golden_run(session.compressed, prompt, 1)
    assert np.array_equal(first.tokens, golden_tokens)
    assert first.logits.tobytes() == second.logits.tobytes() == golden_logits.tobytes()
    assert first.cycles == second.cycles


def test_a_planted_read_before_write_makes_them_differ(session, tmp_path):
    """The append of keys becomes a NOP: the second position's scores read cache bytes that nothing wrote."""

    def no_keys(image):
        program = image.section("program").data.reshape(-1, 32)
        appends = [pc for pc in range(image.instructions) if program[pc, 0] == Op.STK]
        assert len(appends) == 1
        program[appends[0], 0] = Op.ST_NOP

    first, second = (_run(session, tmp_path, seed, no_keys)[0] for seed in (2, 3))
    assert first.logits.tobytes() != second.logits.tobytes()
