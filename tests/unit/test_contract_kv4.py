"""Keys and values of 4 bits: against plain Python written from the contract's text, and every claim of section 6 over every spread."""

import numpy as np
import pytest

from headrace.kernels.contract import kv4
from headrace.kernels.contract.integers import check_codes, decode_codes

SEED = 20261130


def by_the_text(head: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """(codes, mult, off, decoded) of one head, word by word from section 6."""
    codes, mults, offs, decoded = [], [], [], []
    for start in range(0, len(head), 32):
        group = head[start : start + 32]
        lo, hi = min(group), max(group)
        spread = hi - lo
        mult = max(1, (16 * spread + 15) // 30)
        d = 15 * mult - 8 * spread
        off = 8 * lo - (d + 1) // 2
        mults.append(mult)
        offs.append(off)
        for g in group:
            code = min(15, (2 * (8 * g - off) + mult) // (2 * mult))
            codes.append(code)
            decoded.append(max(-127, min(127, (code * mult + off + 4) // 8)))
    return codes, mults, offs, decoded


@pytest.mark.parametrize("head_dim", [1, 2, 31, 32, 33, 48, 64, 80, 96, 128])
def test_numpy_equals_plain_python(head_dim):
    print("seed", SEED)
    rng = np.random.default_rng(SEED + head_dim)
    heads = rng.integers(-127, 128, (40, head_dim))
    heads[:20] = np.clip(heads[:20] // rng.integers(1, 60, (20, 1)) + rng.integers(-127, 128, (20, 1)), -127, 127)
    heads[0], heads[1], heads[2], heads[3, ::2], heads[3, 1::2] = 127, -127, 0, -127, 127
    codes, mult, off = kv4.encode(heads.reshape(5, 8, head_dim))
    assert codes.dtype == mult.dtype == np.uint8 and off.dtype == np.int16
    check_codes(codes, mult, off, 4)
    decoded = kv4.decode(codes, mult, off)
    assert decoded.dtype == np.int8 and (decoded == decode_codes(codes, mult, off, 4)).all()
    for number, head in enumerate(heads.tolist()):
        at = divmod(number, 8)
        assert (codes[at].tolist(), mult[at].tolist(), off[at].tolist(), decoded[at].tolist()) == by_the_text(head)


def every_group():
    """(lo, hi, groups of 32 that hold every value between) for every spread; lo at both ends of the range and near 0."""
    for spread in range(255):
        for lo in sorted({-127, -(spread // 2), 127 - spread}):
            values = np.arange(lo, lo + spread + 1)
            groups = -(-len(values) // 30)
            filled = np.resize(values, groups * 30).reshape(groups, 30)
            yield lo, lo + spread, np.concatenate([filled, np.full((groups, 1), lo), np.full((groups, 1), lo + spread)], axis=1)


def test_every_claim_over_every_spread():
    mults, offs = set(), set()
    for lo, hi, groups in every_group():
        codes, mult, off = kv4.encode(groups)
        got = kv4.decode(codes, mult, off)
        mults |= set(mult.ravel().tolist())
        offs |= set(off.ravel().tolist())
        assert (got[groups == lo] == lo).all() and (got[groups == hi] == hi).all()
        if hi - lo <= 15:
            assert (got == groups).all()
        allowed = kv4.decode(np.arange(16, dtype=np.uint8), mult[0], off[0]).astype(int)
        nearest = np.abs(groups[:, :, None] - allowed).min(axis=2)
        assert (np.abs(groups - got) == nearest).all() and nearest.max() <= mult[0, 0] // 16 + 1
        assert (kv4.decode(*kv4.encode(got)) == got).all()
    assert min(mults) == 1 and max(mults) == 135
    assert (min(offs), max(offs)) == (-1024, 1008)


def test_codes_are_never_below_zero_and_a_table_of_reciprocals_serves():
    largest = 0
    for spread in range(255):
        mult = max(1, (16 * spread + 15) // 30)
        off = -((15 * mult - 8 * spread + 1) // 2)
        t = 2 * (8 * np.arange(spread + 1) - off) + mult
        assert t.min() >= 0
        reciprocal = -(-(2**20) // (2 * mult))
        assert (np.minimum(15, t // (2 * mult)) == np.minimum(15, (t * reciprocal) >> 20)).all()
        largest = max(largest, int(t.max()))
    assert largest == 4193


@pytest.mark.nightly
def test_the_choice_of_mult_and_off_costs_what_the_text_says():
    def errors(spread: int, mult: int, off: int) -> np.ndarray:
        values = np.arange(spread + 1)
        return np.abs(values[:, None] - ((np.arange(16) * mult + off + 4) >> 3)).min(axis=1)

    def cost(found: np.ndarray) -> float:
        return (30 * np.mean(found**2) + found[0] ** 2 + found[-1] ** 2) / 32

    ours = floored = least = 0.0
    missed = 0
    for spread in range(255):
        mult = max(1, (16 * spread + 15) // 30)
        ours += cost(errors(spread, mult, -((15 * mult - 8 * spread + 1) // 2)))
        mult = max(1, 8 * spread // 15)
        off = -((15 * mult - 8 * spread + 1) // 2)
        codes = np.clip((2 * (8 * np.arange(spread + 1) - off) + mult) // (2 * mult), 0, 15)
        found = np.abs(np.arange(spread + 1) - ((codes * mult + off + 4) >> 3))
        floored += cost(found)
        missed += int(found[0] != 0) + int(found[-1] != 0)
        near = [m for m in range(1, 140) if m == 1 or abs(15 * m - 8 * spread) <= 40]
        least += min(cost(errors(spread, m, o)) for m in near for o in range(-40, 41))
    assert missed == 220
    assert ours / floored == pytest.approx(1.006, abs=0.0005)
    assert ours / least == pytest.approx(1.037, abs=0.0005)


def test_a_short_last_group_is_coded_by_itself():
    head = np.array([127, -127] * 16 + [3, 4, 5])
    codes, mult, off = kv4.encode(head)
    assert mult.tolist() == [135, 1] and (kv4.decode(codes, mult, off)[32:] == [3, 4, 5]).all()
    alone = kv4.encode(head[32:])
    assert (codes[32:] == alone[0]).all() and (mult[1], off[1]) == (alone[1][0], alone[2][0])


def test_values_outside_are_refused():
    with pytest.raises(ValueError, match="keys and values: holds -128"):
        kv4.encode(np.full(32, -128))
    with pytest.raises(ValueError, match="integers"):
        kv4.encode(np.zeros(32))
