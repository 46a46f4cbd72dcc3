"""Scaling of channels leaves every family's float model as it is, and helps what it is for."""

import numpy as np
import pytest
from float_families import FAMILIES, SIZES, family

from headrace.models.compress.scaling import awq_scale, fold_in, folds, smooth_scale
from headrace.models.compress.statistics import InputStatistics
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.model import Model
from headrace.models.registry import load_model
from headrace.models.scheme import load_scheme
from headrace.sim.calibrate import Method, _scaled, calibrated, collect, input_of
from headrace.sim.float_model import FloatExecutor

SEED = 20261130

def logits(model, tokens):
    return FloatExecutor.from_model(model).prefill(tokens, all_positions=True)


def texts(model, count=3, length=12):
    return np.random.default_rng(SEED).integers(0, model.config.vocab, (count, length))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_fold_leaves_the_float_model_as_it_is(name):
    """Each fold by itself, with scales that differ a hundredfold: a wrong one would be seen in the first digit."""
    model = family(name)
    rng, tokens = np.random.default_rng(SEED), texts(model)
    expected = logits(model, tokens)
    found = [fold for layer in range(model.config.layers) for fold in folds(model.config, layer)]
    assert len(found) == model.config.layers * (3 if not model.config.gated and model.config.activation != "relu" else 4)
    for fold in found:
        weights = dict(model.weights)
        scale = np.exp(rng.uniform(-2.3, 2.3, len(weights[fold.source]))).astype(np.float32)
        fold_in(weights, fold, scale)
        assert not np.allclose(weights[fold.source], model.weights[fold.source], rtol=0.1)
        changed = logits(Model(config=model.config, weights=weights), tokens)
        assert np.abs(changed - expected).max() < 1e-4 * np.abs(expected).max(), fold


def test_a_wrong_fold_would_be_seen():
    """Behind a GELU nothing can be scaled, and a bias that is not scaled with its rows is noticed."""
    from headrace.models.compress.scaling import Fold

    model, tokens = family("gpt2"), texts(family("gpt2"))
    weights = dict(model.weights)
    fold_in(weights, Fold(source="layers.0.up", consumers=("layers.0.down",)), np.full(48, 3, np.float32))
    assert np.abs(logits(Model(config=model.config, weights=weights), tokens) - logits(model, tokens)).max() > 0.01


@pytest.mark.parametrize("scaling", ["awq", "smoothquant"])
@pytest.mark.parametrize("name", ["embedded", *FAMILIES])
def test_scaled_models_compute_the_same_and_their_statistics_are_their_inputs(scaling, name):
    model = load_model("embedded") if name == "embedded" else family(name)
    tokens = texts(model)
    statistics = collect(model, tokens)
    scaled = _scaled(model, load_scheme("w4a8kv8"), Method(scaling=scaling), statistics)
    expected = logits(model, tokens)
    assert np.abs(logits(scaled, tokens) - expected).max() < 2e-4 * np.abs(expected).max()
    assert any(not np.array_equal(scaled.weights[name], model.weights[name]) for name in model.config.weight_shapes())
    measured = collect(scaled, tokens)
    assert measured.keys() == statistics.keys()
    for key, inputs in measured.items():
        size = np.sqrt(np.outer(inputs.gram.diagonal(), inputs.gram.diagonal())) + 1e-20
        assert np.abs((statistics[key].gram - inputs.gram) / size).max() < 1e-2, key
        assert np.allclose(statistics[key].absmax, inputs.absmax, rtol=1e-2, atol=1e-6 * inputs.absmax.max())


def test_awq_never_costs_the_outputs_more_than_no_scale():
    """Its first exponent is none; where a few inputs are large, another one is better."""
    from headrace.models.quantise import quantise_groups

    model = family("llama")
    fold = folds(model.config, 0)[0]
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((100, 32)).astype(np.float32)
    x[:, :3] *= 30
    inputs = InputStatistics.of(x)
    scale = awq_scale(model.weights, fold, inputs, dict.fromkeys(fold.consumers, 3), 32)

    def error(factor):
        return sum(inputs.output_error(quantise_groups(model.weights[n] * factor, 3).dequantised() / factor - model.weights[n]) for n in fold.consumers)

    assert error(scale) < 0.9 * error(np.ones(32, np.float32)) and scale[:3].min() > 2 * np.median(scale)


@pytest.mark.parametrize("scaling", ["awq", "smoothquant"])
def test_channels_that_calibration_saw_nothing_in_keep_their_size(scaling):
    """A text that does use them would find its activations a thousand times too large."""
    model = family("opt")
    for index in range(4):
        fold = folds(model.config, 0)[index]
        columns = model.weights[fold.consumers[0]].shape[1]
        x = np.random.default_rng(SEED).standard_normal((20, columns)).astype(np.float32)
        x[:, : 2 * columns // 4] = 0  # whole heads of them, so that a group of heads sees nothing
        for inputs in (InputStatistics.of(x), InputStatistics.of(np.zeros_like(x))):
            bits = dict.fromkeys(fold.consumers, 4)
            scale = awq_scale(model.weights, fold, inputs, bits, 32) if scaling == "awq" else smooth_scale(model.weights, fold, inputs)
            dead = fold.gathered(inputs.absmax) == 0
            assert dead.any() and (scale[dead] == 1).all() and scale.dtype == np.float32 and (scale > 0).all()


def test_weights_and_inputs_that_are_no_numbers_are_refused():
    model, tokens = family("llama"), texts(family("llama"))
    statistics = collect(model, tokens)
    for name in ("layers.1.up", "embedding", "layers.0.attn_norm"):
        spoilt = Model(config=model.config, weights=model.weights | {name: model.weights[name].copy()})
        spoilt.weights[name][(0,) * spoilt.weights[name].ndim] = np.nan
        for scaling in ("none", "awq"):
            with pytest.raises(UserError, match=f"model llama: tensor {name} holds a NaN or an infinity"):
                calibrated(spoilt, load_scheme("w4a8kv8"), Method(scaling=scaling), dict(statistics))
    large = Model(config=model.config, weights=model.weights | {"layers.0.mlp_norm": np.full(32, 1e30, np.float32)})
    with pytest.raises(UserError, match=r"model llama: the inputs of layers.0.gate leave the range of float32 on the calibration texts"):
        collect(large, tokens)
    for method in (Method(), Method(rounding="fitted"), Method(rounding="nearest", scaling="awq")):
        with pytest.raises(UserError, match="need calibration texts"):
            calibrated(model, load_scheme("w4a8kv8"), method, None)


def test_smoothquant_is_its_formula():
    model = family("llama")
    fold, x = folds(model.config, 1)[2], np.random.default_rng(SEED).standard_normal((20, 32)).astype(np.float32)
    largest = [max(np.abs(model.weights[name][:, column]).max() for name in ("layers.1.gate", "layers.1.up")) for column in range(32)]
    expected = [np.sqrt(np.abs(x[:, column]).max() / largest[column]) for column in range(32)]
    assert np.allclose(smooth_scale(model.weights, fold, InputStatistics.of(x)), expected, rtol=1e-5)


def test_grouped_heads_share_a_scale():
    fold = folds(DecoderConfig(name="x", **SIZES), 0)[1]
    scale = np.arange(16, dtype=np.float32)
    assert np.array_equal(fold.spread(scale), np.concatenate([scale[:8], scale[:8], scale[8:], scale[8:]]))
    values = np.arange(32.0)
    assert np.array_equal(fold.gathered(values), np.concatenate([values[8:16], values[24:32]]))


def test_which_linears_share_an_input():
    for name in FAMILIES:
        model = family(name)
        seen = {}
        executor = FloatExecutor.from_model(model, observe=lambda name, x: seen.setdefault(name, x.copy()))
        executor.prefill(texts(model))
        for linear in seen:
            if linear != "lm_head":
                assert np.array_equal(seen[linear], seen[input_of(model.config, linear)])
