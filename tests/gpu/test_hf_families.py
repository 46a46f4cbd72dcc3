"""Every decoder family against its class in transformers, in float32 on the CPU: saved by the class, loaded by the importer."""

import sys

import numpy as np
import pytest
from hf_families import CASES, tokens, weight

from headrace.models.hf import load_hf
from headrace.sim.float_model import FloatExecutor

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def build(name: str):
    """The published class with the seeded weights, in eval mode."""
    class_name, fields = CASES[name]
    cls = getattr(transformers, class_name)
    config = cls.config_class(**fields)
    config._attn_implementation = "eager"
    model = cls(config).to(torch.float32).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(parameter_name, tuple(parameter.shape), gemma=class_name.startswith("Gemma"))))
    return model


def logits_of(model) -> np.ndarray:
    """float32 [tokens, vocab]."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens()[None])).logits[0].float().numpy()


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_published_class(tmp_path, name):
    model = build(name)
    expected = logits_of(model)
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


def test_a_weight_that_differs_is_seen(tmp_path):
    model = build("gemma3")
    expected = logits_of(model)
    with torch.no_grad():
        model.model.layers[3].post_feedforward_layernorm.weight[0] += 0.05
    model.save_pretrained(tmp_path)
    assert not np.allclose(FloatExecutor.from_model(load_hf(tmp_path)).prefill(tokens(), all_positions=True), expected, rtol=1e-4, atol=1e-4)
