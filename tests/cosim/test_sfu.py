"""The SFU in Verilator against the numpy reference: buffers in full, signatures, exact cycles, errors, planted faults."""

import time
from dataclasses import replace

import numpy as np
import pytest
from cosim import sfu_bench as bench
from cosim.sfu_bench import NOP, Vec

from headrace.hw.isa import ErrorCode, Program
from headrace.hw.sfu_programs import microprograms

pytestmark = pytest.mark.cosim

CASES = 24
SHAPES = {  # (n, reps) that every run holds: model shapes, single elements, block edges
    Program.RMSNORM: [(576, 1), (16, 1), (8, 1), (250, 1), (1536, 1), (272, 1)],
    Program.QUANT: [(576, 1), (64, 9), (1536, 1), (1, 16), (33, 7), (256, 1), (128, 16)],
    Program.ROPE: [(32, 12), (32, 1), (16, 16), (64, 8), (256, 3)],
    Program.SOFTMAX: [(16, 9), (1, 9), (9, 16), (500, 3), (128, 2), (256, 1), (257, 9), (17, 12)],
    Program.SILU_MUL: [(128, 1), (1536, 1), (1, 1), (255, 1), (257, 1)],
    Program.ADD: [(576, 1), (1, 1), (256, 1), (1000, 1)],
    Program.DEQUANT: [(576, 1), (3, 1), (2048, 1)],
    Program.ARGMAX: [(2048, 1), (1, 1), (100, 1), (4096, 1)],
}


def compare(commands, vb, ab, tmp_path, seed=None, executable=None):
    got = bench.simulate(executable or bench.build(), commands, vb, ab, tmp_path, seed=seed)
    return bench.differences(commands, got, bench.reference(commands, vb, ab))


def new_rng():
    seed = int(np.random.SeedSequence().entropy % 2**31)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize("program", list(Program), ids=lambda p: p.name)
def test_program(program, tmp_path):
    """One command per run: everything that the table does not name must be untouched."""
    rng = new_rng()
    shapes = [{"n": n, "reps": reps} for n, reps in SHAPES[program]]
    shapes += [{}] * (CASES - len(shapes))
    for shape in shapes:
        command, vb, ab = bench.random_legal_command(program, rng, **shape)
        wrong = compare([command], vb, ab, tmp_path, seed=int(rng.integers(1, 1000)))
        assert not wrong, wrong


@pytest.mark.nightly
@pytest.mark.parametrize("program", list(Program), ids=lambda p: p.name)
def test_program_at_length(program, tmp_path):
    rng = new_rng()
    for _ in range(200):
        command, vb, ab = bench.random_legal_command(program, rng)
        wrong = compare([command], vb, ab, tmp_path, seed=int(rng.integers(1, 1000)))
        assert not wrong, wrong


@pytest.mark.parametrize("kind", ["zero", "tiny", "ties", "wide"])
def test_quantise_and_compare_at_the_edges(kind, tmp_path):
    rng = new_rng()
    for program in (Program.QUANT, Program.SOFTMAX, Program.ARGMAX):
        for n in (16, 100):
            command, vb, ab = bench.random_legal_command(program, rng, n=n, kind=kind)
            wrong = compare([command], vb, ab, tmp_path)
            assert not wrong, wrong


def sequence(rng, length: int):
    """Commands that follow each other over the same buffers, with NOPs, none of which meets an error."""
    vb, ab = bench.fresh_buffers(rng)
    vb[:] = bench.values(rng, vb.shape, "ordinary").view(np.uint32)
    commands = []
    while len(commands) < length:
        if rng.random() < 0.1:
            commands.append(Vec(NOP, (0,) * 7))
            continue
        program = Program(int(rng.integers(0, 8)))
        command = bench.random_command(program, rng, vb.copy(), ab.copy(), n=int(rng.choice([16, 48, 100, 320])))
        # Scalars are rows of equal lanes: ARGMAX stores its o7, whatever float that is (1/128 and 7.6e-6 here).
        for row in {Program.RMSNORM: (0, 1), Program.QUANT: (0,)}.get(program, ()):
            bits = (0x3C000000, 0x37000000)[row]
            commands.append(Vec(Program.ARGMAX, (0, 0, command.operands[3] + row, 0, 1, 0, bits), 1 << 8))
        if bench.reference([*commands, command], vb, ab).results[-1][0] is None:
            commands.append(command)
    return commands, vb, ab


def test_commands_in_sequence(tmp_path):
    """Back to back and with pauses: nothing of one command leaks into the next, and the cycles are those of each alone."""
    rng = new_rng()
    commands, vb, ab = sequence(rng, 60)
    for seed in (None, 5, 6):
        wrong = compare(commands, vb, ab, tmp_path, seed=seed)
        assert not wrong, wrong


def test_argmax_runs_on_over_calls(tmp_path):
    rng = new_rng()
    vb, ab = bench.fresh_buffers(rng)
    vb[:64] = bench.values(rng, (64, 8), "ties").view(np.uint32)
    vb[200:208] = np.float32(-3.0).view(np.uint32)
    commands = [Vec(Program.ARGMAX, (200, 0, 100, 0, 64, 0, 7), 1 << 8)]
    for i in range(8):
        commands.append(Vec(Program.ARGMAX, (8 * i, 0, 101 + i, 0, 60 if i % 2 else 64, 0, 1000 * i)))
        commands.append(Vec(Program.QUANT, (0, 0, 300, 200, 64, 4, 0)))  # its maximum is not ARGMAX's
    wrong = compare(commands, vb, ab, tmp_path)
    assert not wrong, wrong
    got = bench.simulate(bench.build(), commands, vb, ab, tmp_path)
    x = vb[:64].view(np.float32).reshape(8, 64)
    best = max((x[i, j], -i, -j) for i in range(8) for j in range(60 if i % 2 else 64))
    assert got.vb[108, 0] == -1000 * best[1] - best[2]


NAN, INF = 0x7FC00001, 0x7F800000
LAST = bench.ROWS
ERRORS = {
    "program": (Vec(8, (0,) * 4 + (16, 1, 0)), ErrorCode.ILLEGAL),
    "program 255": (Vec(255, (0,) * 4 + (16, 1, 0)), ErrorCode.ILLEGAL),
    "opcode": (Vec(Program.ADD, (0, 8, 16, 0, 16, 1, 0), op=0x62), ErrorCode.ILLEGAL),
    "n = 0": (Vec(Program.ADD, (0, 8, 16, 0, 0, 1, 0)), ErrorCode.RANGE),
    "n huge": (Vec(Program.ADD, (0, 8, 16, 0, 1 << 31, 1, 0)), ErrorCode.RANGE),
    "n past VB": (Vec(Program.ADD, (0, 0, 0, 0, 8 * LAST + 1, 1, 0)), ErrorCode.RANGE),
    "a": (Vec(Program.ADD, (LAST - 1, 8, 16, 0, 16, 1, 0)), ErrorCode.RANGE),
    "b far": (Vec(Program.ADD, (0, 1 << 31, 16, 0, 16, 1, 0)), ErrorCode.RANGE),
    "out": (Vec(Program.ADD, (0, 8, LAST, 0, 16, 1, 0)), ErrorCode.RANGE),
    "eps": (Vec(Program.RMSNORM, (0, 8, 16, LAST - 1, 16, 1, 0)), ErrorCode.RANGE),
    "reps = 0": (Vec(Program.QUANT, (0, 0, 16, 20, 16, 0, 0)), ErrorCode.RANGE),
    "reps = 17": (Vec(Program.QUANT, (0, 0, 100, 20, 16, 17, 0)), ErrorCode.RANGE),
    "last rep": (Vec(Program.QUANT, (LAST - 31, 0, 16, 20, 16, 16, 0)), ErrorCode.RANGE),
    "AB": (Vec(Program.QUANT, (0, bench.SLICES - 15, 100, 20, 16, 16, 0)), ErrorCode.RANGE),
    "AB far": (Vec(Program.QUANT, (0, 1 << 30, 100, 20, 16, 16, 0)), ErrorCode.RANGE),
    "scales": (Vec(Program.QUANT, (0, 0, LAST - 3, 20, 16, 4, 0)), ErrorCode.RANGE),
    "codes": (Vec(Program.DEQUANT, (bench.SLICES, 0, 16, 0, 16, 1, 0)), ErrorCode.RANGE),
    "rope n": (Vec(Program.ROPE, (0, 100, 104, 0, 24, 1, 0)), ErrorCode.RANGE),
    "rope half": (Vec(Program.ROPE, (LAST - 2, 100, 104, 0, 16, 1, 0)), ErrorCode.RANGE),
    "value scales": (Vec(Program.SOFTMAX, (0, LAST - 7, 0, 100, 16, 4, 2 << 16 | 6)), ErrorCode.RANGE),
    "NaN": (Vec(Program.ADD, (1000, 8, 16, 0, 16, 1, 0)), ErrorCode.NAN),
    "NaN quantised": (Vec(Program.QUANT, (1000, 0, 16, 20, 16, 1, 0)), ErrorCode.NAN),
    "NaN compared": (Vec(Program.ARGMAX, (1000, 0, 16, 0, 16, 0, 0), 1 << 8), ErrorCode.NAN),
    "NaN gate": (Vec(Program.SILU_MUL, (1000, 8, 16, 0, 16, 1, 0)), ErrorCode.NAN),
    "NaN score": (Vec(Program.SOFTMAX, (1000, 8, 0, 30, 16, 1, 0)), ErrorCode.NAN),
    "NaN value scale": (Vec(Program.SOFTMAX, (0, 1000, 0, 30, 16, 1, 0)), ErrorCode.NAN),
    "NaN eps": (Vec(Program.RMSNORM, (0, 8, 16, 1019, 16, 1, 0)), ErrorCode.NAN),
    "inf - inf": (Vec(Program.SOFTMAX, (1010, 8, 0, 30, 16, 1, 0)), ErrorCode.NAN),
    "0 * inf": (Vec(Program.QUANT, (1010, 0, 16, 20, 16, 1, 0)), ErrorCode.NAN),
    "range before NaN": (Vec(Program.ADD, (1000, LAST - 2, LAST - 4, 0, 64, 1, 0)), ErrorCode.RANGE),
    "NaN past n": (Vec(Program.QUANT, (1000, 0, 16, 20, 5, 1, 0)), None),
    "last rows": (Vec(Program.ADD, (LAST - 6, LAST - 4, LAST - 2, 0, 9, 1, 0)), None),
    "last slices": (Vec(Program.QUANT, (0, bench.SLICES - 16, 100, 20, 16, 16, 0)), None),
    "unused operand": (Vec(Program.ADD, (0, 8, 16, 1 << 31, 16, 1 << 31, 0)), None),
}


def test_errors(tmp_path):
    """Codes of the RTL and of the reference against the expected ones; the unit goes on after an error."""
    rng = new_rng()
    vb, ab = bench.fresh_buffers(rng)
    vb[:] = np.abs(bench.values(rng, vb.shape, "ordinary")).view(np.uint32)
    vb[20] = vb[1000:1002] = 0x3F800000
    vb[1000, 5] = NAN
    vb[1010:1012] = 0
    vb[1020] = NAN
    vb[1010, 3] = INF
    after = Vec(Program.SILU_MUL, (2000, 2010, 2020, 0, 40, 1, 0))
    for name, (command, code) in ERRORS.items():
        want = bench.reference([command, after], vb, ab)
        got = bench.simulate(bench.build(), [command, after], vb, ab, tmp_path)
        assert want.results[0][0] == code, (name, "reference", want.results[0])
        assert got.results == want.results, (name, got.results, want.results)


# One constant, operand or step of each program, changed: (uop that is changed, new fields).
PLANTED = {
    Program.RMSNORM: (lambda u: u.swap == 2, {"swap": 1}),
    Program.QUANT: (lambda u: u.tap, {"tap": 2}),
    Program.ROPE: (lambda u: u.a_negate, {"a_negate": 0}),
    Program.SOFTMAX: (lambda u: u.pre == 3, {"pre": 0}),
    Program.SILU_MUL: (lambda u: u.post == 1, {"post": 0}),
    Program.ADD: (lambda u: u.store_vb, {"wait": 0}),
    Program.DEQUANT: (lambda u: u.int8, {"int8": 0}),
    Program.ARGMAX: (lambda u: u.tap, {"tap": 1}),
}


def test_planted_faults_are_seen(tmp_path):
    """One build with a fault in every microprogram: each program's check must fail, on commands that pass without."""
    rng = new_rng()
    faulty = []
    for program, micro in zip(Program, microprograms(), strict=True):
        condition, change = PLANTED[program]
        at = next(i for i, uop in enumerate(micro.uops) if condition(uop))
        uops = (*micro.uops[:at], replace(micro.uops[at], **change), *micro.uops[at + 1 :])
        faulty.append(replace(micro, uops=uops))
    executable = bench.build(tuple(faulty))
    kinds = {Program.SILU_MUL: "wide", Program.ADD: "ordinary"}
    for program in Program:
        n, reps = (16, 1) if program == Program.ADD else (64, 3)
        # A fault can leave one command's result alone (the largest magnitude is also the largest value): several are drawn.
        seen = False
        for _ in range(12):
            command, vb, ab = bench.random_legal_command(program, rng, n=n, reps=reps, kind=kinds.get(program, "ordinary"))
            assert not compare([command], vb, ab, tmp_path)
            seen = seen or bool(compare([command], vb, ab, tmp_path, executable=executable))
        assert seen, f"{program.name}: the fault was not seen"


def test_speed_of_simulation(tmp_path):
    """Cycles per second while busy; the figure is printed, the bound only catches a collapse on a loaded machine."""
    rng = new_rng()
    command, vb, ab = bench.random_legal_command(Program.SILU_MUL, rng, n=1536, kind="ordinary")
    executable = bench.build()
    start = time.perf_counter()
    got = bench.simulate(executable, [command] * 100, vb, ab, tmp_path)
    seconds = time.perf_counter() - start
    print(f"{got.total_cycles} cycles, {got.total_cycles / seconds:.0f} cycles/s")
    assert got.total_cycles / seconds > 25_000
