"""Drives the SFU alone in Verilator with lists of VEC commands, and the same lists through the numpy reference."""

import subprocess
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from headrace.hw.emit import to_verilog
from headrace.hw.isa import ErrorCode, Op, Program
from headrace.hw.sfu import Sfu, sfu_sources
from headrace.hw.sfu_sequencer import SfuParameters
from headrace.hw.sfu_timing import sfu_cycles
from headrace.kernels.contract import f32
from headrace.sim.iss_vec import VecError, VecState, run_vec
from headrace.sim.verilate import build_executable

ROWS, SLICES = 4096, 256
NOP = -1


@dataclass
class Vec:
    """One command; `program` NOP is a VEC_NOP."""

    program: int
    operands: tuple[int, ...]
    flags: int = 0
    op: int | None = None

    @property
    def words(self):
        op = self.op if self.op is not None else (Op.VEC_NOP if self.program == NOP else Op.VEC)
        flags = self.flags | (0 if self.program == NOP else self.program)
        return op, flags, self.operands


@dataclass
class Outcome:
    """Per command (error code or None, signature or None); the buffers afterwards."""

    results: list = field(default_factory=list)
    cycles: list = field(default_factory=list)
    vb: np.ndarray | None = None
    ab: np.ndarray | None = None
    total_cycles: int = 0
    collisions: int = 0


@lru_cache(maxsize=4)
def build(programs=None, lane_edit: tuple[str, str] | None = None) -> Path:
    """The bench; with other microprograms, or with one text of the lane's Verilog replaced, for planted faults."""
    sfu = Sfu(SfuParameters(vector_rows=ROWS, activation_slices=SLICES), programs=programs)
    sources = {"sfu.v": to_verilog(sfu, "sfu"), **sfu_sources()}
    if lane_edit:
        old, new = lane_edit
        assert sources["hr_sfu_lane.v"].count(old) == 1, old
        sources["hr_sfu_lane.v"] = sources["hr_sfu_lane.v"].replace(old, new)
    main = files("headrace.sim").joinpath("cpp/sfu_bench.cpp").read_text()
    return build_executable(sources, "sfu", main)


def simulate(executable, commands, vb, ab, folder, *, seed: int | None = None) -> Outcome:
    """Run `commands` on the RTL. seed: random pauses between commands and poison of the RAMs; None: back to back."""
    listing = []
    for pc, command in enumerate(commands):
        op, flags, operands = command.words
        listing.append([op, flags, pc, *operands])
    with open(folder / "in.bin", "wb") as file:
        np.array([ROWS, SLICES, len(commands)], np.uint32).tofile(file)
        vb.astype(np.uint32).tofile(file)
        ab.astype(np.int8).tofile(file)
        np.array(listing, np.uint64).astype(np.uint32).tofile(file)
    pauses = [] if seed is None else [str(seed), f"+poison={seed}"]
    subprocess.run([executable, folder / "in.bin", folder / "out.bin", *pauses], check=True, timeout=600)
    data = np.fromfile(folder / "out.bin", np.uint32)
    outcome = Outcome()
    for i in range(len(commands)):
        kind, pc, value, cycles = (int(x) for x in data[4 * i : 4 * i + 4])
        assert pc == i
        outcome.results.append((value, None) if kind else (None, value))
        outcome.cycles.append(cycles)
    at = 4 * len(commands)
    outcome.vb = data[at : at + 8 * ROWS].reshape(ROWS, 8)
    outcome.ab = data[at + 8 * ROWS : at + 8 * ROWS + 4 * SLICES].view(np.int8).reshape(SLICES, 16)
    outcome.total_cycles, outcome.collisions = int(data[-2]), int(data[-1])
    return outcome


def reference(commands, vb, ab) -> Outcome:
    """The same commands in numpy, and the cycles that the timing model predicts (None for errors)."""
    outcome = Outcome(vb=vb.copy(), ab=ab.copy())
    state = VecState()
    for command in commands:
        op, flags, operands = command.words
        if command.program == NOP:
            outcome.results.append((None, 0))
            outcome.cycles.append(2)
            continue
        try:
            if op != Op.VEC:
                raise VecError(ErrorCode.ILLEGAL, f"opcode {op:#x} is not VEC")
            signature = run_vec(command.program, operands, flags, outcome.vb, outcome.ab, state)
            outcome.results.append((None, signature))
            outcome.cycles.append(sfu_cycles(command.program, operands[4], operands[5]))
        except VecError as error:
            outcome.results.append((int(error.code), None))
            outcome.cycles.append(None)
    return outcome


def differences(commands, got: Outcome, want: Outcome) -> list[str]:
    """What differs, in words; at most a few lines."""
    lines = []
    for i, command in enumerate(commands):
        name = "NOP" if command.program == NOP else Program(command.program).name if command.program < 8 else "?"
        where = f"command {i} {name} {command.operands} flags {command.flags}"
        if got.results[i] != want.results[i]:
            lines.append(f"{where}: (error, signature) {got.results[i]}, not {want.results[i]}")
        if want.cycles[i] is not None and got.cycles[i] != want.cycles[i]:
            lines.append(f"{where}: {got.cycles[i]} cycles, not {want.cycles[i]}")
    for name, a, b in (("VB", got.vb, want.vb), ("AB", got.ab, want.ab)):
        bad = np.flatnonzero((a != b).any(axis=1))
        for row in bad[:3]:
            lines.append(f"{name}[{row}] = {a[row]}, not {b[row]} ({len(bad)} rows differ)")
    if got.collisions:
        lines.append(f"{got.collisions} reads met a write of their row")
    return lines[:12]


# ---- random commands ----


def values(rng, shape, kind=None) -> np.ndarray:
    """float32 of one of several kinds: ordinary, tiny (below QMIN), large, zeros, sparse, equal values."""
    kind = kind or rng.choice(["ordinary", "ordinary", "wide", "tiny", "zero", "sparse", "ties"])
    x = rng.standard_normal(shape)
    if kind == "wide":
        x = x * np.exp2(rng.integers(-40, 40, shape))
    elif kind == "tiny":
        x = x * 2.0 ** rng.integers(-128, -119)
    elif kind == "zero":
        x = np.zeros(shape) * np.sign(x)
    elif kind == "sparse":
        x = x * (rng.random(shape) < 0.1)
    elif kind == "ties":
        x = np.round(x)
    with np.errstate(all="ignore"):
        return f32.flush(x.astype(np.float32))


class Planner:
    """Places the operands of one command at random and fills them in the buffers."""

    def __init__(self, rng, vb, ab):
        self.rng, self.vb, self.ab = rng, vb, ab
        self.free_rows = self.free_slices = 0

    def rows(self, count, data=None) -> int:
        first = self.free_rows + int(self.rng.integers(0, 3))
        self.free_rows = first + count
        assert self.free_rows <= ROWS, "the plan does not fit"
        if data is not None:
            self.vb[first : first + count] = data.astype(np.float32).reshape(count, 8).view(np.uint32)
        return first

    def slices(self, count) -> int:
        first = self.free_slices + int(self.rng.integers(0, 2))
        self.free_slices = first + count
        assert self.free_slices <= SLICES, "the plan does not fit"
        return first


def random_command(program: int, rng, vb, ab, *, n=None, reps=None, kind=None) -> Vec:
    """A command that is legal and meets no NaN; its operands are written into vb and ab, floats past n are junk."""
    plan = Planner(rng, vb, ab)
    n = int(rng.integers(1, 97)) * int(rng.choice([1, 16])) if n is None else n
    wide = None
    if program == Program.ROPE:
        n = max(16, n // 16 * 16)
    if program in (Program.QUANT, Program.ROPE, Program.SOFTMAX):
        reps = int(rng.integers(1, 17)) if reps is None else reps
        while reps > 1 and (reps * -(-n // 16) > SLICES - 2 or reps * -(-n // 16) * 4 > ROWS - 400):
            reps -= 1
    else:
        reps = int(rng.integers(0, 1 << 27)) if reps is None else reps
    rn = 2 * -(-n // 16)
    sn = rn // 2

    def rows_of(count, kind=None):
        data = values(rng, (count, 8), kind)
        return plan.rows(count, data)

    def junk_past_n(first):
        flat = vb[first : first + rn].reshape(-1)
        if rng.random() < 0.5:
            flat[n:] = rng.integers(0, 1 << 32, rn * 8 - n)

    extra = int(rng.integers(0, 1 << 27))
    flags = 0
    if program == Program.RMSNORM:
        x, w = rows_of(rn, kind), rows_of(rn, "ordinary")
        constants = plan.rows(2, np.repeat(np.float32([1.0 / n, 1e-5]), 8))
        operands = (x, w, x if rng.random() < 0.3 else plan.rows(rn), constants)
        junk_past_n(x), junk_past_n(w)
    elif program == Program.QUANT:
        x = plan.rows(reps * rn, np.concatenate([values(rng, (rn, 8), kind) for _ in range(reps)]))
        for rep in range(reps):
            junk_past_n(x + rep * rn)
        multiplier = plan.rows(1, np.full(8, rng.choice([1.0, 0.125, 0.3, -2.0])))
        operands = (x, plan.slices(reps * sn), plan.rows(reps), multiplier)
    elif program == Program.ROPE:
        x = plan.rows(reps * 2 * rn, values(rng, (reps * 2 * rn, 8), kind))
        angle = rng.uniform(0, 6.3, (rn, 8))
        operands = (x, plan.rows(rn, np.cos(angle)), plan.rows(rn, np.sin(angle)), extra)
    elif program == Program.SOFTMAX:
        x = plan.rows(reps * rn, np.concatenate([values(rng, (rn, 8), kind) for _ in range(reps)]))
        for rep in range(reps):
            junk_past_n(x + rep * rn)
        group = int(rng.choice([0, 1, 3, 4, 16]))
        stride = int(rng.integers(rn, rn + 4))
        groups = (reps - 1) // group + 1 if group else 1
        if groups * stride > 1200:
            group, groups = 16, 1
        wide = groups * stride + rn
        s_v = plan.rows(wide, np.abs(values(rng, (wide, 8), "ordinary")) * np.float32(0.01))
        operands = (x, s_v, plan.slices(reps * sn), plan.rows(reps))
        extra = stride | group << 16
    elif program in (Program.SILU_MUL, Program.ADD):
        a, b = rows_of(rn, kind), rows_of(rn, "ordinary")
        junk_past_n(a), junk_past_n(b)
        out = [a, b, plan.rows(rn)][int(rng.choice([0, 1, 2, 2, 2]))]
        operands = (a, b, out, extra)
    elif program == Program.DEQUANT:
        codes = plan.slices(sn)
        ab[codes : codes + sn] = rng.integers(-128, 128, (sn, 16))
        operands = (codes, plan.rows(1, values(rng, 8, "ordinary")), plan.rows(rn), extra)
    else:
        operands = (rows_of(rn, kind), extra, plan.rows(1), extra)
        junk_past_n(operands[0])
        flags = int(rng.integers(0, 2)) << 8
    return Vec(int(program), (*operands, n, reps, extra), flags)


def fresh_buffers(rng):
    """VB and AB full of random bits."""
    vb = rng.integers(0, 1 << 32, (ROWS, 8), dtype=np.uint32)
    ab = rng.integers(-128, 128, (SLICES, 16)).astype(np.int8)
    return vb, ab


def random_legal_command(program, rng, **fixed):
    """Buffers and a command on which the reference meets no error."""
    for _ in range(50):
        vb, ab = fresh_buffers(rng)
        command = random_command(program, rng, vb, ab, **fixed)
        if reference([command], vb, ab).results[0][0] is None:
            return command, vb, ab
    raise AssertionError("fifty commands in a row met an error")
