"""SmolLM2-135M from the cache (`headrace models pull smollm2-135m`): sizes, tokens, and the cost of compression."""

import time

import numpy as np
import pytest

from headrace.models.decoder import LINEAR_NAMES
from headrace.models.quantise import quantise_model
from headrace.models.registry import load_model, model_entry, weights_path
from headrace.models.scheme import load_scheme, weight_bytes

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(weights_path(model_entry("smollm2-135m")) is None, reason="run `headrace models pull smollm2-135m` first"),
]


@pytest.fixture(scope="module")
def model():
    return load_model("smollm2-135m")


def test_sizes_are_those_of_the_entry(model):
    assert model.config == model_entry("smollm2-135m").config
    assert len(model.codes) == 30 * len(LINEAR_NAMES)


def test_tokens_are_those_of_the_published_tokenizer(model):
    tokenizer = model.tokenizer
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode(" 123") == [216, 33, 34, 35]  # a space, then every digit by itself
    assert tokenizer.encode("") == [] and not tokenizer.add_bos
    text = "Hello  world 123\n\n  it's fine\u2019 \u00e9 \u4f60\u597d\t."
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("name", "relative_rms"), [("w4a8kv8", 0.015), ("w8a8kv8", 0.013)])
def test_grid_error_of_every_kind_of_linear(model, name, relative_rms):
    scheme = load_scheme(name)
    started = time.process_time()
    quantised = quantise_model(model, scheme)
    print(f"{name}: {time.process_time() - started:.1f} s of processor time")
    assert quantised.required_bytes == weight_bytes(model.config, scheme)
    for layer in (0, 14, 29):
        for linear in LINEAR_NAMES:
            weight, found = model.weights[f"layers.{layer}.{linear}"], quantised.layers[layer][linear]
            error = (found.dequantised() - weight) / found.row_scale[:, None]
            # An 8-bit grid costs 1 / sqrt(12) = 0.289 of a unit; mult and off of the 4-bit map may add little.
            assert np.sqrt((error**2).mean()) < (0.36 if scheme.weight_bits == 4 else 0.295), (layer, linear)
            relative = np.sqrt(((error * found.row_scale[:, None]) ** 2).mean() / (weight**2).mean())
            assert relative < relative_rms, (layer, linear)
