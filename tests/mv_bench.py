"""Bench of the matrix-vector engine: commands and their weight streams, written from docs/machine.md alone, and what
the engine must do with them, from the numeric contract."""

import subprocess
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np

from headrace.hw.emit import to_verilog
from headrace.hw.isa import Op, signature_of
from headrace.hw.machine import Machine, load_machine
from headrace.hw.mv_unit import MvUnit, mv_sources
from headrace.kernels.contract import f32, functions
from headrace.kernels.contract.integers import decode_codes
from headrace.sim.verilate import build_executable


def machine(name: str) -> Machine:
    """`nano`, `micro`, or `narrow`: one port, half of nano's word, so that a 4-bit slice takes two words."""
    if name == "narrow":
        return load_machine("nano", ["memory.ports=1", "buffers.weight_fifo_slices=32"])
    return load_machine(name)


def build(chosen: Machine, replace: dict[str, tuple[str, str]] | None = None):
    """The executable; `replace` plants faults: file name to (text that must be there once or more, its replacement)."""
    sources = {"top.v": to_verilog(MvUnit(machine=chosen), "top"), **mv_sources(simulation=True)}
    for name, (old, new) in (replace or {}).items():
        assert old in sources[name], f"{old!r} is not in {name}"
        sources[name] = sources[name].replace(old, new)
    main = files("headrace.sim").joinpath("cpp/mv_bench.cpp").read_text()
    return build_executable(sources, "top", main)


@dataclass
class Command:
    """One MV (or MV_NOP) with its weights; arrays are [rows, columns] of all stripes."""

    pc: int
    bits: int = 8
    scales: bool = False
    base: int = 0
    row: int = 0
    s_a_row: int = 0
    stripes: int = 1
    slices: int = 1
    op: int = Op.MV
    codes: np.ndarray | None = None
    mult: np.ndarray | None = None
    off: np.ndarray | None = None
    s_w: np.ndarray | None = None
    words: list = field(default_factory=list)

    def encode(self) -> np.ndarray:
        """9 u32: pc[16] op[8] flags[14] o1..o7[32], lowest first."""
        value = self.pc | int(self.op) << 16 | (self.bits | self.scales << 4) << 24
        for i, operand in enumerate((self.base, self.row, self.s_a_row, self.stripes, self.slices)):
            value |= operand << (38 + 32 * i)
        return np.frombuffer(value.to_bytes(36, "little"), np.uint32)


def pack_bits(values, width: int) -> np.ndarray:
    """Unsigned `values`, `width` bits each, little endian, as bytes."""
    values = np.asarray(values).ravel().astype(np.uint64)
    bits = (values[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def stream(chosen: Machine, command: Command) -> np.ndarray:
    """The command's words, uint8 [n, word_bytes] (docs/machine.md, section 3)."""
    size, rows = chosen.word_bytes, chosen.stripe_rows
    groups = 8 * size // (20 * rows)
    share = size // 4 // rows
    words = []

    def add(data: np.ndarray):
        padded = np.zeros(-(-len(data) // size) * size, np.uint8)
        padded[: len(data)] = data
        words.extend(padded.reshape(-1, size))

    for stripe in range(command.stripes):
        at = slice(stripe * rows, (stripe + 1) * rows)
        if command.scales and stripe % share == 0:
            add(f32.bits(command.s_w[stripe * rows : (stripe + share) * rows]).view(np.uint8))
        for q in range(command.slices):
            if command.bits == 4 and q % (2 * groups) == 0:
                g = slice(q // 2, q // 2 + groups)
                meta = (command.off[at, g].astype(np.int64) & 0xFFF) << 8 | command.mult[at, g]
                # Field j is group j of all rows: groups outermost.
                add(pack_bits(meta.T, 20))
            codes = command.codes[at, 16 * q : 16 * q + 16]
            add(pack_bits(codes.astype(np.int64) & (2**command.bits - 1), command.bits))
    return np.array(words)


def random_command(chosen: Machine, rng, pc: int, *, bits=None, scales=None, stripes=None, slices=None, garbage=0.1):
    """A command with random sizes, weights that favour the ends of their range, and finite scales."""
    rows = chosen.stripe_rows
    bits = int(rng.choice([4, 8])) if bits is None else bits
    scales = bool(rng.integers(2)) if scales is None else scales
    stripes = int(rng.integers(1, 21)) if stripes is None else stripes
    slices = int(rng.integers(1, 41)) if slices is None else slices
    command = Command(
        pc=pc, bits=bits, scales=scales, stripes=stripes, slices=slices,
        base=int(rng.integers(0, chosen.buffers.activation_slices - slices + 1)),
        row=int(rng.integers(0, chosen.buffers.vector_rows - stripes * rows // 8 + 1)),
        s_a_row=int(rng.integers(0, chosen.buffers.vector_rows)),
    )  # fmt: skip
    shape = (stripes * rows, 16 * slices)
    if bits == 4:
        command.codes = rng.integers(0, 16, shape)
        groups = (shape[0], -(-slices // 2))
        command.mult = np.where(rng.random(groups) < 0.2, rng.choice([0, 255], groups), rng.integers(0, 256, groups))
        command.off = np.where(
            rng.random(groups) < 0.2, rng.choice([-2048, 2047], groups), rng.integers(-1100, 200, groups)
        )
    else:
        command.codes = rng.integers(-127, 128, shape)
        edge = rng.random(shape[0]) < 0.3
        command.codes[edge] = rng.choice([-127, 127], shape)[edge]
        # Some rows hold whatever was in memory, -128 included.
        bad = rng.random(shape[0]) < garbage
        command.codes[bad] = np.where(rng.random(shape) < 0.5, -128, rng.integers(-128, 128, shape))[bad]
        command.bad_rows = bad
    scale_rows = -(-stripes // chosen.stripes_per_scale_word) * chosen.stripes_per_scale_word * rows
    command.s_w = (rng.standard_normal(scale_rows) * 10.0 ** rng.integers(-9, 4, scale_rows)).astype(np.float32)
    return command


@dataclass
class Case:
    """Commands with the contents of both buffers."""

    chosen: Machine
    commands: list
    activations: np.ndarray
    vector: np.ndarray

    @classmethod
    def random(cls, chosen: Machine, rng, commands):
        activations = rng.integers(-127, 128, (chosen.buffers.activation_slices, 16)).astype(np.int8)
        edge = rng.random(len(activations)) < 0.3
        activations[edge] = rng.choice([-127, 127], activations.shape)[edge]
        vector = rng.standard_normal((chosen.buffers.vector_rows, 8)).astype(np.float32)
        return cls(chosen, list(commands), activations, vector)

    def expected(self, command: Command):
        """(row addresses, uint32 [rows, 8]) of one command, and which of the values are defined."""
        if command.op != Op.MV:
            return np.zeros(0, np.int64), np.zeros((0, 8), np.uint32), np.zeros((0, 8), bool)
        if command.bits == 4:
            weights = decode_codes(command.codes, command.mult, command.off, 4)
        else:
            weights = command.codes
        x = self.activations[command.base : command.base + command.slices].ravel()
        acc = weights.astype(np.int64) @ x.astype(np.int64)
        s_a = self.vector[command.s_a_row, 0]
        s_w = command.s_w[: len(acc)] if command.scales else np.float32(1.0)
        with np.errstate(all="ignore"):
            y = functions.scale(acc.astype(np.int32), s_a, s_w)
        defined = ~getattr(command, "bad_rows", np.zeros(len(acc), bool))
        count = command.stripes * self.chosen.stripe_rows // 8
        return command.row + np.arange(count), f32.bits(y).reshape(-1, 8), defined.reshape(-1, 8)


@dataclass
class Result:
    rows: np.ndarray
    done: np.ndarray
    errors: np.ndarray
    cycles: int
    active: int
    words: int
    first_word: int
    last_word: int
    stalls: np.ndarray
    microseconds: int
    faults: int


def run(executable, case: Case, folder, *, seed=1, pauses=(0, 0, 0, 0), poison=1, limit=2_000_000) -> Result:
    """Run `case`; `pauses` per 1000 cycles of commands, weights, vector-buffer reads, vector-buffer writes."""
    streams = [stream(case.chosen, c) for c in case.commands if c.op == Op.MV and c.codes is not None]
    words = np.concatenate([s for s in streams if len(s)]) if streams else np.zeros((0, case.chosen.word_bytes), np.uint8)
    head = [
        len(case.commands), len(words), case.chosen.word_bytes // 4, len(case.activations), len(case.vector), seed,
        *pauses, limit, len(case.commands),
    ]  # fmt: skip
    with open(folder / "in.bin", "wb") as file:
        np.array(head, np.uint32).tofile(file)
        np.concatenate([c.encode() for c in case.commands]).tofile(file)
        words.tofile(file)
        case.activations.tofile(file)
        case.vector.tofile(file)
    subprocess.run(
        [executable, folder / "in.bin", folder / "out.bin", f"+poison={poison}"], check=True, capture_output=True,
        timeout=300,
    )  # fmt: skip
    records = np.fromfile(folder / "out.bin", np.uint32).reshape(-1, 12)
    kind = records[:, 0]
    end = records[kind == 4][0]
    return Result(
        rows=records[kind == 1][:, 1:11], done=records[kind == 2][:, 1:4], errors=records[kind == 3][:, 1:4],
        cycles=int(end[1]), active=int(end[2]), words=int(end[3]), first_word=int(end[4]), last_word=int(end[5]),
        stalls=end[6:10], microseconds=int(end[10]), faults=int(end[11]),
    )  # fmt: skip


def check(case: Case, result: Result) -> None:
    """Every row in order and bit for bit, every retirement with its signature, every word taken, stalls accounted."""
    assert len(result.errors) == 0, f"error record {result.errors[0]}"
    assert result.faults == 0, f"{result.faults} cycles with no stall cause or more than one"
    at = 0
    for i, command in enumerate(case.commands):
        address, want, defined = case.expected(command)
        got = result.rows[at : at + len(address)]
        at += len(address)
        what = f"command {i} ({command.bits} bits, {command.stripes} stripes, {command.slices} slices, scales {command.scales})"
        assert len(got) == len(address), f"{what}: {len(got)} rows written, not {len(address)}"
        assert np.array_equal(got[:, 1], address), f"{what}: rows {got[:, 1][:8]} ..., not {address[:8]} ..."
        wrong = (got[:, 2:] != want) & defined
        if wrong.any():
            r, lane = np.argwhere(wrong)[0]
            raise AssertionError(
                f"{what}: {wrong.sum()} of {wrong.size} results differ; result {8 * r + lane} is "
                f"{got[r, 2 + lane]:#010x}, not {want[r, lane]:#010x}"
            )
        assert i < len(result.done), f"{what} did not retire; {result.cycles} cycles"
        signature = int(signature_of(got[:, 2:], address).sum()) & 0xFFFFFFFF
        assert tuple(result.done[i, 1:]) == (command.pc, signature), f"{what}: retired as {result.done[i, 1:]}"
        if len(got):
            assert result.done[i, 0] > got[-1, 0], f"{what} retired before its last row was written"
    assert len(result.rows) == at, "more rows were written than asked for"
    assert len(result.done) == len(case.commands)
