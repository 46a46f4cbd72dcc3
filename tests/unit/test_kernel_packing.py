"""Packing of weights for the Triton kernels, in plain numpy; and what the command says where a kernel cannot run."""

import numpy as np
import pytest

from headrace import cli
from headrace.kernels.check import random_weights
from headrace.kernels.packing import pack_linear
from headrace.models.quantise import QuantisedLinear


@pytest.mark.parametrize("inputs", [1, 16, 31, 32, 33, 64, 100])
def test_codes_lie_where_the_docstring_says(inputs):
    weights = random_weights(np.random.default_rng(inputs), 5, inputs, 4)
    packed = pack_linear(weights)
    groups = -(-inputs // 32)
    assert packed.codes.shape == (5, 16 * groups) and packed.codes.dtype == np.uint8 and packed.mult.shape == (5, groups)
    for k in range(32 * groups):
        group, place = divmod(k, 32)
        byte = packed.codes[:, 16 * group + place % 16]
        code = byte & 15 if place < 16 else byte >> 4
        assert (code == (weights.codes[:, k] if k < inputs else 0)).all()


def test_bytes():
    assert pack_linear(random_weights(np.random.default_rng(0), 10, 64, 4)).nbytes == 10 * (32 + 2 + 4 + 4)
    assert pack_linear(random_weights(np.random.default_rng(0), 10, 64, 8)).nbytes == 10 * (64 + 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "codes of 3 bits have no kernel"),
        ({"codes": np.full((4, 32), 16, np.uint8)}, "code holds 16"),
        ({"row_scale": np.ones(3, np.float32)}, "row scales"),
        ({"codes": np.zeros((4, 133_145), np.uint8)}, "allowed are 1 to 133144"),
    ],
)
def test_refusals(change, words):
    weights = random_weights(np.random.default_rng(0), 4, 32, 4)
    fields = {name: getattr(weights, name) for name in ("codes", "mult", "off", "shift", "bits", "row_scale")}
    with pytest.raises(ValueError, match=words):
        pack_linear(QuantisedLinear(**(fields | change)))


def test_minus_128_is_refused():
    weights = random_weights(np.random.default_rng(0), 4, 32, 8)
    weights.codes[0, 0] = -128
    with pytest.raises(ValueError, match="-128"):
        pack_linear(weights)


def test_bench_without_a_device_is_a_clear_error(capsys, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert cli.main(["kernels", "bench"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("no CUDA device" in error or "gpu extra" in error)
