"""Functions of the contract: ulp bounds, properties, and independence of the batch."""

import numpy as np
import pytest

from headrace.kernels.contract import constants as c
from headrace.kernels.contract import f32, functions

SEED = 20240603


def ulp_error(got, exact) -> float:
    """Largest error of float32 results in units of the last place of the exact value (longdouble)."""
    exponent = np.floor(np.log2(np.abs(exact))).astype(int)
    return float((np.abs(got.astype(np.longdouble) - exact) / np.ldexp(np.longdouble(1), exponent - 23)).max())


def test_constants_are_the_values_of_the_table():
    for pattern, value in (
        (c.LOG2E_BITS, 1.44269504), (c.LN2_HI_BITS, 0.693359375), (c.LN2_LO_BITS, -2.12194440e-4), (c.MAGIC_BITS, 12582912.0),
        (c.EXP_MIN_BITS, -87.0), (c.EXP_MAX_BITS, 80.0), (c.INT8_MAX_BITS, 127.0), (c.MINUS_HALF_BITS, -0.5), (c.TWO_BITS, 2.0),
        (c.ONE_AND_HALF_BITS, 1.5),
    ):
        assert f32.from_bits(pattern) == np.float32(value)
    coefficients = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0)
    assert [float(f32.from_bits(u)) for u in c.EXP_COEFFICIENT_BITS] == [float(np.float32(v)) for v in coefficients]


# The behaviour of recip repeats every binade and that of rsqrt every second: all mantissas of two binades, in steps
# that are coprime to 2, stand for the whole range; the ends of the range follow.
@pytest.mark.parametrize("name, low, high, bound", [("recip", -121, 120, 2.0), ("rsqrt", -120, 120, 2.0)])
def test_newton_steps_stay_within_the_documented_ulp(name, low, high, bound):
    function = getattr(functions, name)
    mantissa = np.arange(0, 2**23, 31, dtype=np.uint32)
    for exponent in (low, low + 1, -1, 0, 1, high - 1):
        x = f32.from_bits(mantissa | np.uint32((exponent + 127) << 23))
        wide = x.astype(np.longdouble)
        exact = 1 / wide if name == "recip" else 1 / np.sqrt(wide)
        assert ulp_error(function(x), exact) < bound
    for exponent in (low, high):
        x = np.float32(2.0) ** np.float32(exponent)
        exact = np.longdouble(2) ** (-exponent if name == "recip" else np.longdouble(-exponent) / 2)
        assert ulp_error(function(x), exact) < bound


def test_exp_stays_within_the_documented_ulp():
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for low, high in ((-87, 80), (-87, -60), (-1, 1), (60, 80)):
        x = rng.uniform(low, high, 200_000).astype(np.float32)
        assert ulp_error(functions.exp(x), np.exp(x.astype(np.longdouble))) < 1.25
    ends = np.array([-87.0, 80.0, 0.0], np.float32)
    assert ulp_error(functions.exp(ends), np.exp(ends.astype(np.longdouble))) < 1.25


def test_exp_clips_and_is_one_at_zero():
    assert functions.exp(np.float32(0.0)) == 1.0 and functions.exp(np.float32(-0.0)) == 1.0
    assert functions.exp(np.float32(-1e30)) == functions.exp(np.float32(-87.0)) > 0
    assert functions.exp(np.float32(1e30)) == functions.exp(np.float32(80.0)) < np.inf


def test_exp_step_by_step_in_float64_with_explicit_rounding():
    """The order of operations, re-stated with float64 arithmetic rounded to float32 after each step.

    A float64 result of two float32 operands rounded to float32 equals the directly rounded one for add and multiply.
    """
    rng = np.random.default_rng(SEED + 1)
    x = rng.uniform(-80, 80, 5000).astype(np.float32)

    def r(v):
        return np.asarray(v, np.float64).astype(np.float32).astype(np.float64)

    magic, log2e = 12582912.0, float(np.float32(1.44269504))
    t = r(r(x * np.float64(log2e)) + magic)
    n = t - magic
    rest = r(r(n * -0.693359375) + x.astype(np.float64))
    rest = r(r(n * float(-np.float32(-2.12194440e-4))) + rest)
    p = float(np.float32(1.9875691500e-4))
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0):
        p = r(r(p * rest) + float(np.float32(coefficient)))
    assert np.array_equal(functions.exp(x), (p * 2.0**n).astype(np.float32))


def test_quantise_form_ties_and_small_maxima():
    x = np.array([[127.0, 0.5, 1.5, -2.5, -127.0], [0, 0, 0, 0, 0], [3.7e-37, 1e-37, 0, 0, 0]], np.float32)
    q, s = functions.quantise(x)
    assert q[1:].tolist() == [[0] * 5] * 2 and s[1:].tolist() == [0.0, 0.0]
    assert q[0, 0] == 127 and q[0, 4] == -127 and abs(s[0] - 1) < 1e-6
    inverse = f32.mul(np.float32(127), functions.recip(np.float32(127)))
    assert q[0].tolist() == [int(np.rint(f32.mul(v, inverse))) for v in x[0]]
    q, s = functions.quantise(np.array([3.8e-37, -3.8e-37], np.float32))
    assert q.tolist() == [127, -127] and s == 0  # below 127 * 2**-126 the scale itself is flushed
    assert functions.quantise(np.array([1.5e-36], np.float32))[1] > 0
    with pytest.raises(f32.UnorderedError):
        functions.quantise(np.array([1.0, np.nan], np.float32))
    with pytest.raises(f32.UnorderedError):
        functions.quantise(np.array([0.0, np.inf], np.float32))  # 0 * inv, and inv is infinite


def test_quantise_reaches_but_never_passes_127():
    rng = np.random.default_rng(SEED)
    x = (rng.standard_normal((500, 64)) * 10.0 ** rng.integers(-30, 30, (500, 1))).astype(np.float32)
    q, s = functions.quantise(x)
    assert np.abs(q).max(axis=1).tolist() == [127] * 500
    error = np.abs(q * s[:, None].astype(np.float64) - x)
    assert (error <= s[:, None] * 0.501).all()


def test_softmax_approximates_and_ignores_masked_rows():
    rng = np.random.default_rng(SEED)
    scores = rng.standard_normal((2, 3, 40)).astype(np.float32) * 4
    v8 = rng.integers(-127, 128, (40, 16))
    s_v = rng.uniform(0.01, 0.02, 40).astype(np.float32)
    q, s_out = functions.softmax_quantised(scores, s_v)
    assert q.min() >= 0 and q.max() == 127
    got = (q.astype(np.int64) @ v8) * s_out[..., None].astype(np.float64)
    e = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    exact = (e / e.sum(-1, keepdims=True)) @ (v8 * s_v[:, None].astype(np.float64))
    assert np.abs(got - exact).max() < 0.01 * np.abs(exact).max()
    # Garbage and NaN past the length change nothing.
    dirty, dirty_s = scores.copy(), s_v.copy()
    dirty[..., 25:], dirty_s[25:] = np.nan, np.nan
    masked_q, masked_s = functions.softmax_quantised(dirty, dirty_s, np.arange(40) < 25)
    short_q, short_s = functions.softmax_quantised(scores[..., :25], s_v[:25])
    assert np.array_equal(masked_q[..., :25], short_q) and not masked_q[..., 25:].any()
    assert np.array_equal(f32.bits(masked_s), f32.bits(short_s))


def test_rope_rotates_and_keeps_the_length():
    cos, sin = functions.rope_tables([0, 1, 500], 64, 10000.0)
    assert cos.dtype == np.float32 and cos[0].tolist() == [1.0] * 32 and sin[0].tolist() == [0.0] * 32
    assert np.isclose(cos[2, 3], np.cos(500 * 10000.0 ** (-6 / 64)), atol=1e-6)
    x = np.random.default_rng(SEED).standard_normal((3, 64)).astype(np.float32)
    y = functions.rope(x, cos, sin)
    assert np.array_equal(y[0], x[0])
    assert np.allclose(np.linalg.norm(y.astype(float), axis=1), np.linalg.norm(x.astype(float), axis=1), rtol=1e-6)
    angle = 1.0
    assert np.allclose([y[1, 0], y[1, 32]], [x[1, 0] * np.cos(angle) - x[1, 32] * np.sin(angle), x[1, 32] * np.cos(angle) + x[1, 0] * np.sin(angle)], atol=1e-6)


def test_rmsnorm_and_silu_are_close_to_their_definitions():
    rng = np.random.default_rng(SEED)
    x, w = rng.standard_normal((4, 576)).astype(np.float32) * 3, rng.standard_normal(576).astype(np.float32)
    wide = x.astype(np.float64)
    assert np.allclose(functions.rmsnorm(x, w, 1e-5), wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * w, rtol=1e-5)
    g, u = x, x[::-1]
    assert np.allclose(functions.silu_mul(g, u), wide / (1 + np.exp(-wide)) * u, rtol=1e-5, atol=1e-9)
    extreme = np.array([-200.0, 200.0], np.float32)
    assert np.allclose(functions.silu_mul(extreme, np.ones(2)), [0.0, 200.0], atol=1e-30)


def test_no_function_depends_on_the_batch():
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((6, 96)).astype(np.float32)
    w = rng.standard_normal(96).astype(np.float32)
    s = rng.uniform(0.1, 1, 96).astype(np.float32)
    calls = {
        "rmsnorm": lambda v: functions.rmsnorm(v, w, 1e-5), "exp": functions.exp, "silu": lambda v: functions.silu_mul(v, w),
        "quantise": lambda v: functions.quantise(v)[1], "softmax": lambda v: functions.softmax_quantised(v, s)[1],
    }
    for name, call in calls.items():
        whole = f32.bits(call(x))
        for i in range(6):
            assert np.array_equal(f32.bits(call(x[i])), whole[i]), name


def test_scales_and_embedding():
    acc = np.array([2**24 + 1, -3], np.int32)
    assert functions.scale(acc, np.float32(0.5)).tolist() == [2.0**23, -1.5]
    assert functions.score_scale(np.float32(3.0), 1 / np.sqrt(64)) == np.float32(0.375)
    assert functions.embed(np.array([[3, -127]], np.int8), np.array([0.5], np.float32)).tolist() == [[1.5, -63.5]]


def stepwise_recip(x):
    y = f32.from_bits(np.subtract(np.uint32(0x7EF311C7), f32.bits(x)))
    for _ in range(3):
        y = f32.mul(y, f32.add(f32.mul(f32.neg(x), y), np.float32(2)))
    return y


def stepwise_rsqrt(x):
    h, y = f32.mul(x, np.float32(-0.5)), f32.from_bits(np.subtract(np.uint32(0x5F3759DF), f32.bits(x) >> np.uint32(1)))
    for _ in range(3):
        y = f32.mul(y, f32.add(f32.mul(h, f32.mul(y, y)), np.float32(1.5)))
    return y


def stepwise_exp(x):
    x = f32.minimum(f32.maximum(x, np.float32(-87)), np.float32(80))
    t = f32.add(f32.mul(x, f32.from_bits(c.LOG2E_BITS)), f32.from_bits(c.MAGIC_BITS))
    n = f32.sub(t, f32.from_bits(c.MAGIC_BITS))
    r = f32.add(f32.mul(n, f32.neg(f32.from_bits(c.LN2_HI_BITS))), x)
    r = f32.add(f32.mul(n, f32.neg(f32.from_bits(c.LN2_LO_BITS))), r)
    p = f32.from_bits(c.EXP_COEFFICIENT_BITS[0])
    for u in c.EXP_COEFFICIENT_BITS[1:]:
        p = f32.add(f32.mul(p, r), f32.from_bits(u))
    return f32.from_bits(np.add(f32.bits(p), f32.bits(t) << np.uint32(23)))


@pytest.mark.parametrize("name, stepwise", [("recip", stepwise_recip), ("rsqrt", stepwise_rsqrt), ("exp", stepwise_exp)])
def test_functions_equal_their_steps_in_checked_arithmetic(name, stepwise):
    """Within the range, where plain numpy is used, over all positive patterns, where it is not, and one by one."""
    rng = np.random.default_rng(SEED)
    function = getattr(functions, name)
    special = f32.from_bits(np.array([0x00800000, 0x03000000, 0x7B800000, 0x00000000, 0x00000001, 0x7F7FFFFF, 0x7F800000], np.uint32))
    inside = np.ldexp(rng.uniform(1, 2, 50_000), rng.integers(-120, 120, 50_000)).astype(np.float32)
    anything = f32.from_bits(rng.integers(0, 0x7F800000, 50_000).astype(np.uint32))
    cases = [inside, anything, np.concatenate([special, inside[:5]]), *special]
    if name == "exp":
        # small arguments, the places where x nearly equals n ln 2, and negative patterns
        near = (np.arange(-125, 116) * np.log(2)).astype(np.float32)
        near = f32.from_bits((f32.bits(near)[:, None] + np.arange(-40, 41, dtype=np.int64)).astype(np.uint32))
        cases += [-inside, -anything, rng.uniform(-87, 80, 100_000).astype(np.float32), near]
    with np.errstate(all="ignore"):
        for x in cases:
            assert np.array_equal(f32.bits(function(x)), f32.bits(stepwise(x)))
