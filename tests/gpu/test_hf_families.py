"""Every decoder family against its class in transformers, in float32 on the CPU: saved by the class, loaded by the importer."""

import sys

import numpy as np
import pytest
from hf_families import CASES, tokens

from headrace.models.formats.hf import load_hf
from headrace.sim.float_model import FloatExecutor

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def reference():
    import hf_reference

    return hf_reference


QUICK = ("qwen2", "gpt2", "opt", "gemma3")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.nightly) for name in CASES if name not in QUICK)])
def test_logits_equal_the_published_class(tmp_path, reference, name):
    model = reference.build(name)
    expected = reference.logits_of(model)
    model.save_pretrained(tmp_path)
    loaded = load_hf(tmp_path)
    assert loaded.config.parameters == sum(p.numel() for p in model.parameters())
    executor = FloatExecutor.from_model(loaded)
    whole = executor.prefill(tokens(), all_positions=True)
    print(name, "largest difference", np.abs(whole - expected).max(), "of", np.abs(expected).max(), file=sys.stderr)
    assert np.allclose(whole, expected, rtol=1e-4, atol=1e-4)
    executor.reset()
    executor.prefill(tokens()[:11])
    for position in range(11, len(tokens())):
        assert np.allclose(executor.step(tokens()[position]), expected[position], rtol=1e-4, atol=1e-4), position


def test_a_weight_that_differs_is_seen(tmp_path, reference):
    model = reference.build("gemma3")
    expected = reference.logits_of(model)
    with torch.no_grad():
        model.model.layers[3].post_feedforward_layernorm.weight[0] += 0.05
    model.save_pretrained(tmp_path)
    assert not np.allclose(FloatExecutor.from_model(load_hf(tmp_path)).prefill(tokens(), all_positions=True), expected, rtol=1e-4, atol=1e-4)
