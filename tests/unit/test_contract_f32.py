"""float32 add, multiply, order and sum against an exact oracle in Python integers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from headrace.kernels.contract import f32, vectors

_spec = importlib.util.spec_from_file_location("float32_oracle", Path(__file__).with_name("float32_oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

SEED = 20240601
COUNT = 24_000


def f(u: int) -> np.ndarray:
    return f32.from_bits(u)


def differences(operation: str, a: np.ndarray, b: np.ndarray, result: np.ndarray) -> list[str]:
    reference = getattr(oracle, operation)
    found = []
    for x, y, r in zip(a.tolist(), b.tolist(), result.tolist()):
        expected = reference(x, y)
        if expected != r:
            found.append(f"{operation}({x:08x}, {y:08x}) = {r:08x}, exact {expected:08x}")
    return found


@pytest.mark.parametrize("operation", ["add", "mul"])
def test_special_and_random_pairs_equal_the_exact_oracle(operation):
    print("seed", SEED)
    a, b = vectors.special_and_random_pairs(COUNT, operation, SEED)
    result = f32.bits(getattr(f32, operation)(f32.from_bits(a), f32.from_bits(b)))
    assert not differences(operation, a, b, result)[:5]


@pytest.mark.parametrize("operation", ["add", "mul"])
def test_plain_numpy_fails_where_the_contract_differs(operation):
    """The comparison can fail: numpy without the flush and the one NaN is caught on the same pairs."""
    a, b = vectors.special_and_random_pairs(COUNT, operation, SEED)
    plain = {"add": np.add, "mul": np.multiply}[operation]
    with np.errstate(all="ignore"):
        result = f32.bits(plain(f32.from_bits(a), f32.from_bits(b)))
    assert differences(operation, a, b, result)


def test_a_product_that_rounds_up_to_the_flush_boundary_is_flushed():
    a, b = f(0x1FFFFFFF), f(0x1FFFFFFF)  # (2 - 2**-23)**2 * 2**-128 = 2**-126 * (1 - 2**-23 + 2**-48)
    assert f32.bits(f32.mul(a, b)) == 0
    edge = np.nextafter(np.float32(1.0), np.float32(0.0))  # 1 - 2**-24
    assert f32.bits(f32.mul(edge, f(0x00800000))) == 0
    assert f32.bits(f32.mul(-edge, f(0x00800000))) == 0x80000000
    assert f32.bits(f32.mul(np.float32(1.0), f(0x00800000))) == 0x00800000


def test_the_vectors_hold_products_that_only_float64_can_decide():
    a, b = vectors.float32_pairs(COUNT, "mul", SEED)
    x, y = f32.from_bits(a), f32.from_bits(b)
    with np.errstate(all="ignore"):
        rounded = np.abs(x * y) == np.float32(2.0**-126)
        exact = np.abs(x.astype(np.float64) * y.astype(np.float64))
    assert (rounded & (exact < 2.0**-126)).sum() >= 20
    assert (rounded & (exact >= 2.0**-126)).sum() >= 20


@pytest.mark.parametrize("operation", ["add", "mul"])
def test_vectors_hold_what_they_promise(operation):
    a, b = vectors.float32_pairs(COUNT, operation, SEED)
    assert len(a) == len(b) == COUNT and a.dtype == b.dtype == np.uint32
    again = vectors.float32_pairs(COUNT, operation, SEED)
    assert np.array_equal(a, again[0]) and np.array_equal(b, again[1])
    assert not np.array_equal(a, vectors.float32_pairs(COUNT, operation, SEED + 1)[0])
    exponent_a, exponent_b = ((u.astype(np.int64) >> 23) & 255 for u in (a, b))
    assert (np.abs(exponent_a - exponent_b) <= 26).sum() >= COUNT / 2
    opposite = (a ^ b) >> 31 == 1
    distance = np.abs((a & 0x7FFFFFFF).astype(np.int64) - (b & 0x7FFFFFFF).astype(np.int64))
    assert (opposite & (distance < 2**20)).sum() >= COUNT / 10
    finite = [(x, y) for x, y in zip(a.tolist(), b.tolist()) if oracle.decode(x)[0] == oracle.decode(y)[0] == "finite"]
    if operation == "add":
        ties = sum(oracle.is_tie(abs(oracle.exact_sum(x, y)[0])) for x, y in finite)
    else:
        ties = sum(oracle.is_tie(oracle.decode(x)[2] * oracle.decode(y)[2]) for x, y in finite)
    assert ties >= COUNT / 20
    result = f32.bits(getattr(f32, operation)(f32.from_bits(a), f32.from_bits(b)))
    exponent = (result >> 23) & 255
    assert ((exponent >= 252) & (exponent <= 255)).sum() >= COUNT / 20
    assert (exponent <= 3).sum() >= COUNT / 20


def test_zeros_nan_and_infinity():
    zero, minus_zero, inf, nan = f(0), f(0x80000000), f(0x7F800000), f(0x7FC00000)
    assert f32.bits(f32.add(zero, minus_zero)) == 0
    assert f32.bits(f32.add(minus_zero, minus_zero)) == 0x80000000
    assert f32.bits(f32.sub(np.float32(3), np.float32(3))) == 0
    assert f32.bits(f32.sub(inf, inf)) == 0x7FC00000
    assert f32.bits(f32.mul(inf, f(0x00000001))) == 0x7FC00000  # a subnormal is a zero
    assert f32.bits(f32.add(f32.neg(nan), np.float32(1))) == 0x7FC00000
    assert f32.bits(f32.neg(nan)) == 0xFFC00000


def test_order_is_sign_magnitude_with_equal_zeros():
    values = [0xFF800000, 0xFF7FFFFF, 0xBF800000, 0x80800000, 0x80000000, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000]
    for i, x in enumerate(values):
        for j, y in enumerate(values):
            assert bool(f32.less(f(x), f(y))) == (i < j)
            assert f32.bits(f32.maximum(f(x), f(y))) == values[max(i, j)]
            assert f32.bits(f32.minimum(f(x), f(y))) == values[min(i, j)]
    # equal zeros: the first operand is returned
    for first, second in ((0, 0x80000000), (0x80000000, 0)):
        assert f32.bits(f32.maximum(f(first), f(second))) == first
        assert f32.bits(f32.minimum(f(first), f(second))) == first
    assert bool(f32.unordered(f(0x7FC00000), np.float32(1))) and not bool(f32.unordered(np.float32(1), np.float32(2)))


def test_max_argmax_and_nan():
    x = np.array([[-0.0, 0.0, -1.0], [2.0, 5.0, 5.0], [-3.0, -2.0, -9.0]], np.float32)
    assert f32.argmax_last(x).tolist() == [0, 1, 1]
    assert f32.max_last(x).tolist() == [0.0, 5.0, -2.0]
    assert f32.absmax_last(x).tolist() == [1.0, 5.0, 9.0]
    with pytest.raises(f32.UnorderedError, match="NaN"):
        f32.max_last(np.array([1.0, np.nan], np.float32))


def test_int32_conversion_is_nearest_even():
    values = [0, 1, -1, 2**24 + 1, 2**24 + 3, -(2**24 + 1), 2**31 - 1, -(2**31), 133144 * 127 * 127]
    result = f32.from_int32(np.array(values, np.int32))
    for value, got in zip(values, f32.bits(result).tolist()):
        expected = oracle.encode(int(value < 0), abs(value), 0) if value else 0
        assert got == expected
    with pytest.raises(TypeError, match="int32"):
        f32.from_int32(np.array([1], np.int64))


@pytest.mark.parametrize("kind", ["signed", "positive", "tiny", "tiny positive", "patterns"])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100, 576])
def test_sum_is_sixteen_partials_and_a_tree(length, kind):
    rng = np.random.default_rng(SEED + length)
    x = (rng.standard_normal((3, length)) * 10.0 ** rng.integers(-6, 6, (3, length))).astype(np.float32)
    if "tiny" in kind:
        x = (rng.standard_normal((3, length)) * 2.0**-123).astype(np.float32)
    if "positive" in kind:
        x = np.abs(x)
    if kind == "patterns":
        x = f32.from_bits(rng.integers(0, 2**32, (3, length), dtype=np.uint32))
    got = f32.bits(f32.sum16(x))
    for row, result in zip(x, got.tolist()):
        partials = [0] * 16
        for index, u in enumerate(f32.bits(row).tolist()):
            partials[index % 16] = oracle.add(partials[index % 16], u)
        while len(partials) > 1:
            partials = [oracle.add(partials[i], partials[i + 1]) for i in range(0, len(partials), 2)]
        assert result == partials[0]


def test_results_do_not_depend_on_the_batch():
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((5, 7, 83)).astype(np.float32)
    whole = f32.bits(f32.sum16(x))
    for i in range(5):
        for j in range(7):
            assert f32.bits(f32.sum16(x[i, j])) == whole[i, j]
