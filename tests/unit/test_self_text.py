"""Texts that a model writes itself, windows of files, and the cache of the former."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.model import Model
from headrace.sim.calibration_text import own_texts, windows
from headrace.sim.float_model import FloatExecutor
from headrace.sim.self_text import write_texts

SEED = 20261130


def tiny(bias=None, seed=0, **changes):
    """Zero linears: the next token's distribution is that of `bias` (a logit a token), whatever came before; uniform without it."""
    config = DecoderConfig(name="tiny", **{"vocab": 8, "width": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn": 8, "max_positions": 64} | changes)
    rng = np.random.default_rng(seed)
    weights = {name: np.zeros(shape, np.float32) for name, shape in config.weight_shapes().items()}
    weights["embedding"] = np.ones((config.vocab, config.width), np.float32)
    weights["final_norm"] = np.ones(config.width, np.float32)
    weights["layers.0.down"] = rng.standard_normal((config.width, config.ffn)).astype(np.float32)  # multiplied by zeros
    if bias is not None:
        weights["lm_head"] = np.repeat(np.asarray(bias, np.float32)[:, None] / config.width, config.width, axis=1)
    return Model(config=config, weights=weights)


def test_the_same_seed_gives_the_same_texts():
    executor = FloatExecutor.from_model(tiny())
    steps = []
    first, again, other = (write_texts(executor, 6, 20, seed, steps.append) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.shape == (6, 20) and first.dtype == np.int64 and sum(steps) == 3 * 19


@pytest.mark.parametrize("bias", [None, [0, 0, 1, 1, 2, 2, -1, -30]])
def test_tokens_are_spread_as_the_model_says(bias):
    logits = np.zeros(8) if bias is None else np.array(bias, float)
    tokens = write_texts(FloatExecutor.from_model(tiny(bias)), 64, 60, SEED)[:, 1:]
    expected = np.exp(logits) / np.exp(logits).sum() * tokens.size
    counts = np.bincount(tokens.reshape(-1), minlength=8)
    likely = expected > 1
    assert counts[~likely].sum() == 0 and scipy.stats.chisquare(counts[likely], expected[likely] * counts[likely].sum() / expected[likely].sum()).pvalue > 1e-4, f"seed {SEED}"
    halves = np.bincount(tokens[:, ::2].reshape(-1), minlength=8) / counts.clip(1)
    assert np.abs(halves[likely] - 0.5).max() < 0.15


def test_texts_start_from_bos_and_from_random_tokens():
    tokens = write_texts(FloatExecutor.from_model(tiny(bos_token_id=5)), 200, 2, SEED)
    assert (tokens[:100, 0] == 5).all() and set(tokens[100:, 0]) == set(range(8))
    assert (write_texts(FloatExecutor.from_model(tiny()), 8, 2, SEED)[:4, 0] == 0).all()


def test_a_model_that_overflows_writes_nothing():
    model = tiny()
    model.weights["final_norm"][:] = 3e38
    model.weights["lm_head"][:] = 3e38
    with pytest.raises(UserError, match="model tiny: its activations leave the range of float32"), np.errstate(all="ignore"):
        write_texts(FloatExecutor.from_model(model), 2, 4, SEED)


def test_windows_of_files():
    model = SimpleNamespace(tokenizer=SimpleNamespace(encode=lambda text: [ord(c) for c in text]))
    assert windows(model, ["abcde", "fghij"], 3, 10).tolist() == [[97, 98, 99], [100, 101, 102], [103, 104, 105]]
    assert windows(model, ["abcdefgh"], 4, 1).tolist() == [[97, 98, 99, 100]]
    with pytest.raises(UserError, match="--calibrate: the texts have 7 tokens; allowed is at least one window of 8"):
        windows(model, ["abc", "defg"], 8, 1)


def test_the_cache_survives_whatever_its_file_became(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    model = tiny()
    expected = own_texts(model, 4, 10, SEED)
    (path,) = (tmp_path / "calibration").iterdir()
    whole = path.read_bytes()
    monkeypatch.setattr("headrace.sim.calibration_text.write_texts", lambda *rest: pytest.fail("written anew"))
    assert np.array_equal(own_texts(model, 4, 10, SEED), expected)
    monkeypatch.undo()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for broken in (b"", whole[:-1], whole + b"x", b"\xff" * len(whole), b"PK\x03\x04" + whole[4:], b"\x08" + whole[1:]):
        path.write_bytes(broken)
        assert np.array_equal(own_texts(model, 4, 10, SEED), expected)
        assert path.read_bytes() == whole
    path.unlink()
    path.mkdir()
    assert np.array_equal(own_texts(model, 4, 10, SEED), expected)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    assert np.array_equal(own_texts(model, 4, 10, SEED), expected)


def test_the_cache_knows_models_apart(tmp_path, monkeypatch):
    """By every weight, not by sizes alone; by how many texts, their length and the seed."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    model = tiny()
    for other, count, length, seed in ((model, 4, 10, 1), (model, 4, 10, 2), (model, 4, 11, 1), (model, 5, 10, 1), (tiny(seed=1), 4, 10, 1), (tiny([0] * 7 + [9]), 4, 10, 1)):
        own_texts(other, count, length, seed)
    assert len(list((tmp_path / "calibration").iterdir())) == 6
    assert (own_texts(tiny([0] * 7 + [9]), 4, 10, 1)[:, 1:] == 7).mean() > 0.9
