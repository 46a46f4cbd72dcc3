"""Microcode of the SFU: fields, waits from hazards, constants, and the cycles that the programs take."""

import subprocess
import sys

import numpy as np
import pytest

from headrace.hw import sfu_programs, sfu_timing
from headrace.hw import sfu_ucode as u
from headrace.hw.isa import Program
from headrace.hw.sfu_assembler import BEST, Assembler, Memory, Register
from headrace.hw.sfu_programs import microprograms
from headrace.hw.sfu_timing import sfu_cycles, sfu_vector_accesses
from headrace.kernels.contract import constants as c


def test_fields_are_those_of_a_uop():
    assert [name for name, _ in u.FIELDS] == list(u.Uop.__dataclass_fields__)
    assert u.UOP_BITS <= 64
    for micro in microprograms():
        for uop in micro.uops:
            word, at = uop.encode(), 0
            for name, width in u.FIELDS:
                assert word >> at & (1 << width) - 1 == getattr(uop, name)
                at += width
            assert word >> at == 0
    with pytest.raises(ValueError, match="uop field register = 8 does not fit 3 bits"):
        u.Uop(register=8).encode()


def test_constants_are_the_contract():
    negative = c.SIGN_BIT
    assert u.B_CONSTANTS == {
        "1.0": c.ONE_BITS, "LOG2E": c.LOG2E_BITS, "-LN2_HI": c.LN2_HI_BITS ^ negative, "-LN2_LO": c.LN2_LO_BITS ^ negative,
        "C7": c.EXP_COEFFICIENT_BITS[0], "127.0": c.INT8_MAX_BITS, "1/127": int(c.ONE_OVER_127.view(np.uint32)),
        "-0.5": c.MINUS_HALF_BITS,
    }  # fmt: skip
    names = ("C6", "C5", "C4", "C3", "C2", "1.0", "1.0")
    assert tuple(u.C_CONSTANTS[name] for name in names) == c.EXP_COEFFICIENT_BITS[1:]
    rest = (u.C_CONSTANTS[name] for name in ("-0.0", "MAGIC", "-MAGIC", "2.0", "1.5"))
    assert tuple(rest) == (negative, c.MAGIC_BITS, c.MAGIC_BITS ^ negative, c.TWO_BITS, c.ONE_AND_HALF_BITS)
    assert (u.RECIP_SEED, u.RSQRT_SEED) == (c.RECIP_SEED, c.RSQRT_SEED)
    assert (u.CLAMP_LOW, u.CLAMP_HIGH) == (c.EXP_MIN_BITS, c.EXP_MAX_BITS)
    assert u.QUANT_MINIMUM == int(c.QMIN.view(np.uint32))


def test_programs_are_numbered_as_in_the_isa():
    assert [micro.name for micro in microprograms()] == [program.name for program in Program]
    for program in Program:
        assert getattr(sfu_programs, program.name) == program


def waits(build) -> list[int]:
    p = Assembler()
    build(p)
    return [uop.wait for uop in p.finish()]


def test_rows_wait_by_age_of_the_nearest_writer():
    def chain(p):
        p.reps(a=Memory(0), to=0)
        p.reps(a=Memory(1), to=1)
        p.reps(a=Register(0), to=2)
        p.reps(a=Register(0), b=Register(2), to=3)
        p.reps(a=Register(0), to=4)

    assert waits(chain) == [0, 0, u.WAIT_AGE2, u.WAIT_AGE1, 0]


def test_sums_and_values_of_the_rep_wait_for_the_last_row():
    def reduce(p):
        p.flat(a=Memory(0), accumulate=0)
        p.reps(a=Register(0), c=Register(1), to=2)
        with p.loop():
            p.flat(a=Memory(0), b=Register(2).of_rep, to=3)
            p.flat(a=Register(3), vb=0)
        p.flat(a=Memory(0), b=Register(2).of_rep, vb=1)

    assert waits(reduce) == [0, u.WAIT_RESULT, u.WAIT_RESULT, u.WAIT_AGE1, u.WAIT_STORE]


def test_maxima_wait_by_where_they_come_from():
    def operand(p):
        p.flat(a=Memory(0), tap=u.TAP_ABSMAX)
        p.reps(a=BEST, to=0)
        p.reps(a=BEST, to=1)

    def result(p):
        p.flat(a=Memory(0), tap=u.TAP_ABSMAX, tap_result=True)
        p.reps(a=BEST, to=0)

    assert waits(operand) == [0, u.WAIT_OPERAND_REDUCTION, 0]
    assert waits(result) == [0, u.WAIT_REDUCTION]


def own_loop(p):
    with p.loop():
        p.flat(a=Memory(0), tap=u.TAP_MAX)
        p.flat(a=Memory(0), c=-BEST, to=0)


def one_uop(p):
    with p.loop():
        p.flat(a=Memory(0), to=0)


@pytest.mark.parametrize(
    "build, message",
    [
        (own_loop, "nothing before it, outside its loop"),
        (one_uop, "at least two uops"),
        (lambda p: p.flat(a=Memory(0), b=Memory(1)), "reads one row of memory"),
        (lambda p: p.flat(a=Memory(0), c=Memory(0)), "source c cannot be memory"),
        (lambda p: p.flat(a="2.0"), "the only constant is 1.0"),
        (lambda p: p.flat(a="1.0", b=-Register(0)), "cannot be negated"),
        (lambda p: p.flat(a=Memory(0), accumulate=1), "even register"),
        (lambda p: p.flat(a=Memory(0), vb=0, ab=1), "to VB or to AB"),
        (lambda p: p.finish(), "empty program"),
    ],
)
def test_what_the_hardware_cannot_do_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build(Assembler())


TARGETS = [  # cycles that a SmolLM2-135M layer was planned with
    (Program.RMSNORM, 576, 1, 900), (Program.QUANT, 576, 1, 350), (Program.QUANT, 64, 9, 450), (Program.ROPE, 32, 12, 600),
    (Program.SOFTMAX, 16, 9, 1100), (Program.SILU_MUL, 128, 1, 450), (Program.DEQUANT, 576, 1, 120),
    (Program.ARGMAX, 2048, 1, 300), (Program.ADD, 576, 1, 170),
]  # fmt: skip


@pytest.mark.parametrize("program, n, reps, limit", TARGETS)
def test_cycles_are_within_plan_and_above_the_port(program, n, reps, limit):
    cycles = sfu_cycles(program, n, reps)
    assert max(sfu_vector_accesses(program, n, reps)) < cycles <= limit


def test_long_rows_repeat_exactly(monkeypatch):
    """The steady state that the model skips over is the one it would have walked through."""
    for program in Program:
        period = 256  # elements of a block
        for n in (period * 2 + 16, period * 3, period * 5 + 80):
            steps = [sfu_cycles(program, n + i * period) - sfu_cycles(program, n + (i - 1) * period) for i in (3, 4, 7)]
            assert len(set(steps)) == 1 and steps[0] >= u.BLOCK_ROWS, (program, steps)
    want = {(p, n, r): sfu_cycles(p, n, r) for p in Program for n in (512, 1536) for r in (1, 9)}
    monkeypatch.setattr(sfu_timing, "_WALKED_BLOCKS", 10**9)
    sfu_cycles.cache_clear()
    assert {key: sfu_cycles(*key) for key in want} == want
    sfu_cycles.cache_clear()


def test_what_the_unit_refuses_has_no_cycles():
    for arguments in [(8, 16, 1), (Program.ADD, 0, 1), (Program.ROPE, 24, 1), (Program.QUANT, 16, 17), (Program.QUANT, 16, 0)]:
        with pytest.raises(ValueError):
            sfu_cycles(*arguments)
    assert sfu_cycles(Program.ADD, 16, 99) == sfu_cycles(Program.ADD, 16)


def test_no_hardware_library_behind_the_timing_model():
    code = "import sys, headrace.hw.sfu_timing; assert not {'amaranth', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
