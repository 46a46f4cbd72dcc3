"""Functions of the contract's section 5: bounds against 80-bit floats, orders of operations, independence of the batch."""

import numpy as np
import pytest

from headrace.kernels.contract import constants as c
from headrace.kernels.contract import decoders, f32, functions

SEED = 20240611
ONE = np.float32(1)


def ulp_error(got, exact) -> float:
    """Largest error of float32 results in units of the last place of the exact value (longdouble)."""
    exponent = np.floor(np.log2(np.abs(exact))).astype(int)
    return float((np.abs(got.astype(np.longdouble) - exact) / np.ldexp(np.longdouble(1), exponent - 23)).max())


def exact_gelu(x):
    x = x.astype(np.longdouble)
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.longdouble(np.pi)) * (x + np.longdouble("0.044715") * x**3)))


def exact_silu(x):
    x = x.astype(np.longdouble)
    return x / (1 + np.exp(-x))


def test_constants_are_rounded_from_their_formulas():
    assert f32.from_bits(c.GELU_LINEAR_BITS) == np.float32(-2 * np.sqrt(2 / np.pi))
    assert f32.from_bits(c.GELU_CUBE_BITS) == np.float32(-2 * np.sqrt(2 / np.pi) * 0.044715)


@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "bound"),
    [
        ("gelu_tanh", exact_gelu, -1, 10, 4.0), ("gelu_tanh", exact_gelu, -0.01, 0.01, 4.0), ("gelu_tanh", exact_gelu, -5, -1, 40.0),
        ("silu", exact_silu, -1, 20, 4.0),
    ],
)
def test_activations_stay_within_the_documented_ulp(name, exact, low, high, bound):
    x = np.random.default_rng(SEED).uniform(low, high, 300_000).astype(np.float32)
    assert ulp_error(decoders.ACTIVATIONS[name](x), exact(x)) < bound, f"seed {SEED}"


def test_gelu_far_out():
    x = np.random.default_rng(SEED).uniform(-50, -1, 300_000).astype(np.float32)
    assert np.abs(decoders.gelu_tanh(x) - exact_gelu(x)).max() < 6e-8, f"seed {SEED}"
    ends = np.array([-0.0, 0.0, 1e3, 1e25, -1e3, -1e15], np.float32)
    assert np.allclose(decoders.gelu_tanh(ends), [0, 0, 1e3, 1e25, 0, 0], rtol=1e-6, atol=1e-15)


def test_relu_is_a_comparison_of_patterns():
    assert f32.bits(decoders.relu(np.array([-3.0, -0.0, 0.0, 2.5, np.inf, -np.inf], np.float32))).tolist() == [
        0, c.SIGN_BIT, 0, f32.bits(2.5), c.INFINITY_BITS, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("cap", [30.0, 50.0, 7.25])
def test_softcap_is_within_its_absolute_bound_and_its_range(cap):
    rng = np.random.default_rng(SEED)
    x = np.concatenate([rng.standard_normal(100_000) * width for width in (1, 40, 1e4)] + [[np.inf, -np.inf, 0, -0.0]]).astype(np.float32)
    got = decoders.softcap(x, cap)
    assert np.abs(got - cap * np.tanh(x.astype(np.longdouble) / cap)).max() < 5e-7 * cap, f"seed {SEED}"
    assert np.abs(got).max() <= cap


@pytest.mark.parametrize("width", [64, 100, 4096])
def test_layernorm_is_within_its_bound(width):
    rng = np.random.default_rng(SEED)
    x = (rng.standard_normal((200, width)) + rng.uniform(-10, 10, (200, 1))).astype(np.float32)
    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    wide = x.astype(np.longdouble)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.longdouble(np.float32(1e-5))) * weight + bias
    error = np.abs(decoders.layernorm(x, weight, bias, 1e-5) - exact).max(axis=-1) / np.abs(exact).max(axis=-1)
    assert error.max() < 1.5e-6, f"seed {SEED}"


def test_every_operation_in_its_order():
    """The formulas of docs/contract.md, each operation by itself in checked arithmetic."""
    rng = np.random.default_rng(SEED)
    x = np.concatenate([rng.standard_normal(20_000) * 5, np.ldexp(rng.uniform(-2, 2, 5_000), rng.integers(-126, 127, 5_000))]).astype(np.float32)
    u = rng.standard_normal(len(x)).astype(np.float32)

    def sigmoid_of_minus(v):
        return functions.recip(f32.add(functions.exp(v), ONE))

    factor = f32.add(f32.mul(f32.mul(x, x), f32.from_bits(c.GELU_CUBE_BITS)), f32.from_bits(c.GELU_LINEAR_BITS))
    gelu = f32.mul(x, sigmoid_of_minus(f32.mul(x, factor)))
    assert np.array_equal(f32.bits(decoders.gelu_tanh(x)), f32.bits(gelu)), f"seed {SEED}"
    assert np.array_equal(f32.bits(f32.mul(decoders.silu(x), u)), f32.bits(functions.silu_mul(x, u)))
    cap = f32.sub(f32.mul(sigmoid_of_minus(f32.mul(x, np.float32(-2.0 / 30.0))), np.float32(60)), np.float32(30))
    assert np.array_equal(f32.bits(decoders.softcap(x, 30.0)), f32.bits(cap))
    rows = x[:24_960].reshape(-1, 96)
    weight, bias = rng.standard_normal((2, 96)).astype(np.float32)
    share = np.float32(1 / 96)
    centred = f32.sub(rows, f32.mul(f32.sum16(rows), share)[:, None])
    variance = f32.add(f32.mul(f32.sum16(f32.mul(centred, centred)), share), np.float32(1e-5))
    normed = f32.add(f32.mul(f32.mul(centred, functions.rsqrt(variance)[:, None]), weight), bias)
    assert np.array_equal(f32.bits(decoders.layernorm(rows, weight, bias, 1e-5)), f32.bits(normed))
    assert decoders.embedding_scale(np.float32(0.1), np.sqrt(640.0)) == f32.mul(np.float32(0.1), np.float32(np.sqrt(640.0)))


def test_no_function_depends_on_the_batch():
    rng = np.random.default_rng(SEED)
    x, (weight, bias) = rng.standard_normal((6, 90)).astype(np.float32), rng.standard_normal((2, 90)).astype(np.float32)
    calls = [*decoders.ACTIVATIONS.values(), lambda v: decoders.layernorm(v, weight, bias, 1e-5), lambda v: decoders.softcap(v, 30.0)]
    for call in calls:
        whole = f32.bits(call(x))
        for row in range(6):
            assert np.array_equal(f32.bits(call(x[row])), whole[row])
