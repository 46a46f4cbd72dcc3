"""Code maps, DSP packing and exact dot products."""

import numpy as np
import pytest

from headrace.kernels.contract import constants as c
from headrace.kernels.contract import integers

SEED = 20240602


@pytest.mark.parametrize("bits", sorted(c.CODE_SHIFT))
def test_code_map_equals_the_formula_in_python_integers(bits):
    print("seed", SEED)
    rng = np.random.default_rng(SEED + bits)
    codes = rng.integers(0, 2**bits, (4, 70), dtype=np.uint8)
    mult = rng.integers(0, 256, (4, 3))
    off = rng.integers(-2048, 2048, (4, 3))
    mult[0], off[0] = [0, 255, 255], [-2048, 2047, -2048]
    got = integers.decode_codes(codes, mult, off, bits)
    shift = {2: 1, 3: 2, 4: 3, 5: 4, 6: 4}[bits]
    for row in range(4):
        for k in range(70):
            value = int(codes[row, k]) * int(mult[row, k // 32]) + int(off[row, k // 32]) + 2 ** (shift - 1)
            assert got[row, k] == max(-127, min(127, value // 2**shift))


def test_code_maps_refuse_what_does_not_fit():
    codes, mult, off = np.zeros((1, 32), np.uint8), np.zeros((1, 1), np.int16), np.zeros((1, 1), np.int16)
    with pytest.raises(ValueError, match="7 bits"):
        integers.decode_codes(codes, mult, off, 7)
    with pytest.raises(ValueError, match="code holds 0 .. 16"):
        integers.decode_codes(codes + np.uint8(16) * (np.arange(32) == 3), mult, off, 4)
    with pytest.raises(ValueError, match="mult holds"):
        integers.decode_codes(codes, mult + 256, off, 4)
    with pytest.raises(ValueError, match="off holds"):
        integers.decode_codes(codes, mult, off + 2048, 4)
    with pytest.raises(ValueError, match="need mult"):
        integers.decode_codes(codes, np.zeros((1, 2)), off, 4)
    with pytest.raises(ValueError, match="-128"):
        integers.check_int8(np.array([-128], np.int8), "w")


def test_pair_packing_is_exact_for_sixteen_and_not_for_seventeen():
    rng = np.random.default_rng(SEED)
    extreme = np.full((4, 16), 127)
    for w0, w1, x in (
        (-extreme, extreme, extreme), (extreme, -extreme, extreme), (-extreme, -extreme, extreme),
        tuple(rng.integers(-127, 128, (2000, 16)) for _ in range(3)),
    ):
        packed = integers.pack_pair(w0, w1)
        assert packed.min() >= -(2**26) and packed.max() < 2**26
        low, high = integers.unpack_pair((packed * x).sum(axis=1))
        assert np.array_equal(low, (w0 * x).sum(axis=1)) and np.array_equal(high, (w1 * x).sum(axis=1))
    seventeen = np.full(17, 127)
    low, _ = integers.unpack_pair((integers.pack_pair(seventeen, seventeen) * seventeen).sum())
    assert low != 17 * 127 * 127


@pytest.mark.parametrize("length", [1, 64, 1040, 1041, 2081, 11008, c.MAX_DOT_LENGTH])
def test_dot_products_are_exact(length):
    rng = np.random.default_rng(SEED + length)
    a = rng.integers(-127, 128, (3, length)).astype(np.int8)
    b = rng.integers(-127, 128, (5, length)).astype(np.int8)
    a[0], b[0] = 127, 127
    a[1], b[1] = 127, -127
    expected = a.astype(np.int64) @ b.astype(np.int64).T
    got = integers.dot_int8(a, b)
    assert got.dtype == np.int32 and np.array_equal(got, expected)
    assert np.array_equal(integers.dot_int8(a[2], b), expected[2])


def test_slices_are_as_long_as_float32_is_exact_and_no_longer():
    assert integers.EXACT_F32_LENGTH * 127 * 127 <= 2**24 < (integers.EXACT_F32_LENGTH + 1) * 127 * 127
    # One product more may round: 1041 * 127**2 is odd and above 2**24.
    assert int(np.float32(1041 * 127 * 127)) != 1041 * 127 * 127
    assert integers.dot_int8(np.full(1041, 127), np.full((1, 1041), 127))[0] == 1041 * 127 * 127


def test_stacked_dot_products_and_refusals():
    rng = np.random.default_rng(SEED)
    a, b = rng.integers(-127, 128, (4, 3, 64)), rng.integers(-127, 128, (4, 9, 64))
    assert np.array_equal(integers.dot_int8(a, b), np.einsum("hmk,hnk->hmn", a, b))
    with pytest.raises(ValueError, match="do not match"):
        integers.dot_int8(a, b[..., :63])
    with pytest.raises(ValueError, match="overflow int32"):
        integers.dot_int8(np.zeros(c.MAX_DOT_LENGTH + 1, np.int8), np.zeros((1, c.MAX_DOT_LENGTH + 1), np.int8))
