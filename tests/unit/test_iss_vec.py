"""The VEC programs of the interpreter: rows named by the table and no others, signatures, errors."""

import numpy as np
import pytest

from headrace.hw.isa import ErrorCode, Program
from headrace.kernels.contract import functions
from headrace.sim.iss_vec import VecError, VecState, run_vec


def buffers(seed=7):
    rng = np.random.default_rng(seed)
    vb = rng.standard_normal((128, 8)).astype(np.float32).view(np.uint32)
    return vb, rng.integers(-127, 128, (32, 16)).astype(np.int8)


def rotated(value: int, by: int) -> int:
    by %= 32
    return (value << by | value >> (32 - by)) & 0xFFFFFFFF


def signature(units) -> int:
    """Section 6 of docs/machine.md in plain integers. units: (address, 32-bit lanes)."""
    total = 0
    for address, lanes in units:
        fold = 0
        for i, lane in enumerate(lanes):
            fold ^= rotated(int(lane), 4 * i + 1)
        total += fold ^ rotated(address, 16)
    return total & 0xFFFFFFFF


def changed(before, after):
    return set(np.flatnonzero((before != after).any(axis=1)).tolist())


def test_add_stores_zero_past_n():
    vb, ab = buffers()
    before = vb.copy()
    got = run_vec(Program.ADD, (0, 4, 10, 0, 13, 0, 0), Program.ADD, vb, ab)
    want = (before[0:2].view(np.float32) + before[4:6].view(np.float32)).reshape(-1)
    want[13:] = 0
    assert np.array_equal(vb[10:12].view(np.float32).reshape(-1), want) and changed(before, vb) == {10, 11}
    assert got == signature([(10, vb[10]), (11, vb[11])])


def test_quant_layout_and_signature():
    vb, ab = buffers()
    vb[50] = np.float32(0.5).view(np.uint32)
    before, before_ab = vb.copy(), ab.copy()
    got = run_vec(Program.QUANT, (0, 3, 40, 50, 20, 2, 0), Program.QUANT, vb, ab)
    assert changed(before, vb) == {40, 41} and changed(before_ab, ab) == {3, 4, 5, 6}
    units = [(40 + r, vb[40 + r]) for r in range(2)]
    for rep in range(2):
        q, s = functions.quantise(before[4 * rep : 4 * rep + 4].reshape(-1)[:20].view(np.float32))
        assert np.array_equal(ab[3 + 2 * rep : 5 + 2 * rep].reshape(-1), np.concatenate([q, np.zeros(12, np.int8)]))
        assert (vb[40 + rep].view(np.float32) == s * np.float32(0.5)).all()
        for slice_ in (3 + 2 * rep, 4 + 2 * rep):
            words = ab[slice_].view("<u4")
            units += [(2 * slice_, words[:2]), (2 * slice_ + 1, words[2:])]
    assert got == signature(units)


def test_softmax_agrees_with_the_contract_and_counts_both_stores():
    vb, ab = buffers()
    vb[20:32] = np.abs(vb[20:32].view(np.float32)).view(np.uint32)
    scores = vb[0:8].reshape(2, 32)[:, :19].view(np.float32).copy()
    s_v = np.stack([vb[20:24].reshape(-1)[:19], vb[26:30].reshape(-1)[:19]]).view(np.float32)
    before = vb.copy()
    got = run_vec(Program.SOFTMAX, (0, 20, 1, 60, 19, 2, 1 << 16 | 6), Program.SOFTMAX, vb, ab)
    q, s = functions.softmax_quantised(scores, s_v)
    assert np.array_equal(ab[1:5].reshape(2, 32)[:, :19], q) and not ab[1:5].reshape(2, 32)[:, 19:].any()
    assert np.array_equal(vb[60:62].view(np.float32)[:, 0], s)
    assert changed(before, vb) == {*range(8), 60, 61}
    largest = scores.max(axis=1, keepdims=True)
    e = np.zeros((2, 32), np.float32)
    e[:, :19] = functions.exp(scores - largest)
    units = [(r, row) for r, row in enumerate(e.view(np.uint32).reshape(8, 8))]
    units += [(r, vb[r]) for r in (*range(8), 60, 61)]
    units += [(2 * s + h, ab[s].view("<u4")[2 * h : 2 * h + 2]) for s in range(1, 5) for h in range(2)]
    assert got == signature(units)


def test_argmax_keeps_the_first_of_equals_until_started_anew():
    vb, ab = buffers()
    vb[0:2] = np.float32(1.0).view(np.uint32)
    vb[2:4] = np.float32(-1.0).view(np.uint32)
    state = VecState()

    def argmax(row, base, flags=0):
        run_vec(Program.ARGMAX, (row, 0, 100, 0, 16, 0, base), flags, vb, ab, state)
        return vb[100].tolist()

    assert argmax(2, 50, 1 << 8) == [50] * 8
    assert argmax(0, 100) == [100] * 8
    assert argmax(0, 200) == [100] * 8
    assert argmax(2, 300) == [100] * 8
    assert argmax(2, 400, 1 << 8) == [400] * 8


@pytest.mark.parametrize(
    "program, operands, code",
    [
        (9, (0,) * 7, ErrorCode.ILLEGAL),
        (Program.ADD, (127, 0, 0, 0, 16, 0, 0), ErrorCode.RANGE),
        (Program.ADD, (0, 0, 0, 0, 0, 0, 0), ErrorCode.RANGE),
        (Program.QUANT, (0, 31, 40, 50, 32, 1, 0), ErrorCode.RANGE),
        (Program.QUANT, (0, 0, 40, 50, 16, 17, 0), ErrorCode.RANGE),
        (Program.ROPE, (0, 40, 50, 0, 8, 1, 0), ErrorCode.RANGE),
        (Program.ADD, (70, 0, 0, 0, 16, 0, 0), ErrorCode.NAN),
        (Program.ARGMAX, (70, 0, 0, 0, 16, 0, 0), ErrorCode.NAN),
    ],
)
def test_errors(program, operands, code):
    vb, ab = buffers()
    vb[70, 2] = 0x7FC00000
    with pytest.raises(VecError) as caught:
        run_vec(program, operands, 0, vb, ab)
    assert caught.value.code == code
