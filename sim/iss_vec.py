"""VEC programs of docs/machine.md, section 4, in numpy: the interpreter's and the SFU tests' reference.

Written from docs/machine.md and docs/contract.md alone; it knows nothing of microprograms. Buffers are changed in place
and every stored unit enters the signature (section 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.hw.isa import PROGRAM_FLAG_BIT, ErrorCode, Program, signature_of
from headrace.kernels.contract import f32, functions

LANES = 8
SLICE = 16
REPS_MAX = 16
WITH_REPS = (Program.QUANT, Program.ROPE, Program.SOFTMAX)


class VecError(Exception):
    """A VEC instruction that the machine refuses or that meets a NaN; `code` is the machine's error code."""

    def __init__(self, code: ErrorCode, message: str):
        super().__init__(message)
        self.code = code


@dataclass
class VecState:
    """What outlives an instruction: the running best of ARGMAX. `best_key` orders as the contract orders float32."""

    best_key: int = -(1 << 31)  # below every number
    best_index: int = 0


class _Run:
    """One instruction: operands checked, buffers at hand, signature so far."""

    def __init__(self, operands, flags, vb, ab, state):
        p0, p1, p2, p3, self.n, self.reps, self.extra = (int(x) for x in operands)
        self.pointers = (p0, p1, p2, p3)
        self.new = bool(flags >> PROGRAM_FLAG_BIT & 1)
        self.vb, self.ab, self.state = vb, ab, state
        self.rows = 2 * -(-self.n // SLICE)
        self.slices = -(-self.n // SLICE)
        self.signature = 0

    # ---- ranges ----

    def check(self, condition, message):
        if not condition:
            raise VecError(ErrorCode.RANGE, message)

    def check_rows(self, *extents):
        """Each extent: first VB row and number of rows."""
        for first, count in extents:
            self.check(first + count <= len(self.vb), f"VB rows {first} .. {first + count - 1} are past {len(self.vb)}")

    def check_slices(self, first, count):
        self.check(first + count <= len(self.ab), f"AB slices {first} .. {first + count - 1} are past {len(self.ab)}")

    # ---- loads ----

    def load(self, row) -> np.ndarray:
        """n float32 from VB row `row` on."""
        return self.vb[row : row + self.rows].reshape(-1)[: self.n].view(np.float32)

    def load_reps(self, row, stride) -> np.ndarray:
        """float32 [reps, n]; rep r starts at row + r * stride."""
        return np.stack([self.load(row + r * stride) for r in range(self.reps)])

    def scalar(self, row) -> np.float32:
        return self.vb[row, 0].view(np.float32)

    # ---- stores ----

    def store_rows(self, row, lanes):
        """lanes: uint32 [rows, 8]."""
        self.vb[row : row + len(lanes)] = lanes
        self._count(lanes, row + np.arange(len(lanes)))

    def store(self, row, x):
        """n float32 to VB row `row` on, +0 past n."""
        no_nan(x, "a stored vector")
        lanes = np.zeros(self.rows * LANES, np.uint32)
        lanes[: self.n] = f32.bits(x)
        self.store_rows(row, lanes.reshape(self.rows, LANES))

    def store_scalar(self, row, value):
        no_nan(value, "a stored scalar")
        self.store_rows(row, np.full((1, LANES), f32.bits(value)))

    def store_int8(self, slice_, q):
        """n INT8 to AB slice `slice_` on, 0 past n."""
        padded = np.zeros(self.slices * SLICE, np.int8)
        padded[: self.n] = q
        self.ab[slice_ : slice_ + self.slices] = padded.reshape(self.slices, SLICE)
        self._count(padded.view("<u4").reshape(-1, 2), 2 * slice_ + np.arange(2 * self.slices))

    def _count(self, lanes, addresses):
        self.signature = (self.signature + int(signature_of(lanes, addresses).sum())) & 0xFFFFFFFF


def no_nan(x, what):
    if np.isnan(x).any():
        raise f32.UnorderedError(f"{what} holds a NaN")


def _rmsnorm(run: _Run):
    x, w, out, constants = run.pointers
    run.check_rows((x, run.rows), (w, run.rows), (out, run.rows), (constants, 2))
    v = run.load(x)
    mean = f32.mul(f32.sum16(f32.mul(v, v)), run.scalar(constants))
    r = functions.rsqrt(f32.add(mean, run.scalar(constants + 1)))
    run.store(out, f32.mul(f32.mul(v, r), run.load(w)))


def _quant(run: _Run):
    x, out, scales, multiplier = run.pointers
    run.check_rows((x, run.reps * run.rows), (scales, run.reps), (multiplier, 1))
    run.check_slices(out, run.reps * run.slices)
    q, s = functions.quantise(run.load_reps(x, run.rows))
    scaled = f32.mul(s, run.scalar(multiplier))
    for rep in range(run.reps):
        run.store_scalar(scales + rep, scaled[rep])
        run.store_int8(out + rep * run.slices, q[rep])


def _rope(run: _Run):
    x, cos, sin, _ = run.pointers
    run.check(run.n % SLICE == 0, f"ROPE: n = {run.n} is not a multiple of {SLICE}")
    run.check_rows((x, run.reps * 2 * run.rows), (cos, run.rows), (sin, run.rows))
    for rep in range(run.reps):
        first = x + rep * 2 * run.rows
        head = np.concatenate([run.load(first), run.load(first + run.rows)])
        y = functions.rope(head, run.load(cos), run.load(sin))
        run.store(first, y[: run.n])
        run.store(first + run.rows, y[run.n :])


def _softmax(run: _Run):
    scores, value_scales, out, scales = run.pointers
    stride, group = run.extra & 0xFFFF, run.extra >> 16 & 0xFF
    steps = [rep // group if group else 0 for rep in range(run.reps)]
    run.check_rows((scores, run.reps * run.rows), (value_scales, steps[-1] * stride + run.rows), (scales, run.reps))
    run.check_slices(out, run.reps * run.slices)
    for rep in range(run.reps):
        first = scores + rep * run.rows
        x = run.load(first)
        difference = f32.add(x, f32.neg(f32.max_last(x)))
        no_nan(difference, "operand of exp")
        e = functions.exp(difference)
        run.store(first, e)
        p = f32.mul(e, run.load(value_scales + steps[rep] * stride))
        run.store(first, p)
        q, s_p = functions.quantise(p)
        run.store_int8(out + rep * run.slices, q)
        run.store_scalar(scales + rep, f32.mul(s_p, functions.recip(f32.sum16(e))))


def _silu_mul(run: _Run):
    gate, up, out, _ = run.pointers
    run.check_rows((gate, run.rows), (up, run.rows), (out, run.rows))
    g = run.load(gate)
    no_nan(g, "operand of exp")
    run.store(out, functions.silu_mul(g, run.load(up)))


def _add(run: _Run):
    a, b, out, _ = run.pointers
    run.check_rows((a, run.rows), (b, run.rows), (out, run.rows))
    run.store(out, f32.add(run.load(a), run.load(b)))


def _dequant(run: _Run):
    codes, scale, out, _ = run.pointers
    run.check_slices(codes, run.slices)
    run.check_rows((scale, 1), (out, run.rows))
    q = run.ab[codes : codes + run.slices].reshape(-1)[: run.n]
    run.store(out, f32.mul(q.astype(np.float32), run.vb[scale, run.extra & 7].view(np.float32)))


def _argmax(run: _Run):
    x, _, out, _ = run.pointers
    run.check_rows((x, run.rows), (out, 1))
    values = run.load(x)
    at = int(f32.argmax_last(values))
    key = int(f32.order_key(values[at]))
    if run.new or key > run.state.best_key:
        run.state.best_key = key
        run.state.best_index = (run.extra + at) & 0xFFFFFFFF
    run.store_rows(out, np.full((1, LANES), run.state.best_index, np.uint32))


_PROGRAMS = {
    Program.RMSNORM: _rmsnorm,
    Program.QUANT: _quant,
    Program.ROPE: _rope,
    Program.SOFTMAX: _softmax,
    Program.SILU_MUL: _silu_mul,
    Program.ADD: _add,
    Program.DEQUANT: _dequant,
    Program.ARGMAX: _argmax,
}


def run_vec(
    program: int, operands: Sequence[int], flags: int, vb: np.ndarray, ab: np.ndarray, state: VecState | None = None
) -> int:
    """Run one VEC instruction and return its signature.

    program: flags[7:0]; operands: values of o1..o7; flags: all 14 bits. vb: uint32 [rows, 8] and ab: int8 [slices, 16],
    C-contiguous, changed in place. state: kept from instruction to instruction (needed by ARGMAX).
    Raises `VecError`: ILLEGAL for an unknown program; RANGE for a row or slice past a buffer, n outside 1 .. 8 * rows,
    reps outside 1..16 where the program has reps, an n of ROPE that is not a multiple of 16, all before anything is
    stored; NAN for a NaN compared, clipped, quantised or stored (stores before it have taken place).
    """
    try:
        number = Program(program)
    except ValueError:
        raise VecError(ErrorCode.ILLEGAL, f"VEC program {program} does not exist") from None
    run = _Run(operands, flags, vb, ab, VecState() if state is None else state)
    run.check(1 <= run.n <= LANES * len(vb), f"n = {run.n} is not in 1 .. {LANES * len(vb)}")
    if number in WITH_REPS:
        run.check(1 <= run.reps <= REPS_MAX, f"reps = {run.reps} is not in 1 .. {REPS_MAX}")
    else:
        run.reps = 1
    try:
        _PROGRAMS[number](run)
    except f32.UnorderedError as error:
        raise VecError(ErrorCode.NAN, f"{number.name}: {error}") from error
    return run.signature
