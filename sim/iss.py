"""The instruction interpreter: runs a program and its image in numpy and emits the retirement trace (docs/machine.md).

It executes in program order, which is one of the orders that the wait and release masks allow; that the masks allow no other result is the
RTL's proof to give. Tokens are counted all the same, so that a wait that can never be met, or an overflow, is found here.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from headrace.hw.isa import (
    IMAGE_MAGIC, IMAGE_VERSION, INSTRUCTION_BYTES, ISA_VERSION, REGISTERS, SCALES_FLAG_BIT, TOKEN_LIMIT, ErrorCode, Instruction, Op, Queue,
    signature_of,
)
from headrace.hw.machine import Machine
from headrace.kernels import contract
from headrace.kernels.contract import functions, integers
from headrace.sim.iss_vec import VecError, VecState, run_vec
from headrace.sim.poison import memory_poison

MASK32 = 0xFFFFFFFF
BEAT = 32
NAN = 0x7FC00000


def _dot(act: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """int32 [rows] of int8 [rows, columns] times int8 [columns].

    Cache rows past the length may hold any byte. -128 is outside the packed pair's range: there, and only there, the array's own
    arithmetic (27-bit operand, cascade of 16) decides what the row that nobody reads becomes.
    """
    if not (grid == -128).any():
        return integers.dot_int8(act, grid)
    pairs = grid.astype(np.int64).reshape(-1, 2, grid.shape[1] // 16, 16)
    operand = (pairs[:, 1] << 19) + pairs[:, 0]
    operand = ((operand + (1 << 26)) & ((1 << 27) - 1)) - (1 << 26)
    product = (operand * act.astype(np.int64).reshape(-1, 16)).sum(axis=2)
    low, high = integers.unpack_pair(product)
    return np.stack([low.sum(axis=1), high.sum(axis=1)], axis=1).reshape(-1).astype(np.int32)


class MachineError(Exception):
    """What the machine latches as its error: code, queue and PC."""

    def __init__(self, code: ErrorCode, queue: Queue, pc: int, what: str):
        super().__init__(f"{code.name} at instruction {pc} ({queue.name}): {what}")
        self.code, self.queue, self.pc = code, queue, pc


@dataclass(frozen=True)
class Retired:
    """One line of the trace."""

    queue: Queue
    pc: int
    signature: int


class Interpreter:
    """State of one machine: memory, buffers, registers, tokens.

    memory: uint8 [total words, word_bytes]. What the image file does not fill holds the poison of `seed`, as in the RTL's simulated memory;
    the buffers hold other bytes of the same seed (no signature depends on them).
    """

    def __init__(self, machine: Machine, image: np.ndarray, total_words: int, *, seed: int = 1, arguments: tuple[int, ...] = ()):
        rng = np.random.default_rng(seed)
        self.machine = machine
        filled = image.reshape(-1, BEAT)
        rest = memory_poison(seed, max(0, total_words * machine.memory.ports - filled.shape[0]))
        self.memory = np.concatenate([filled, rest]).reshape(-1, machine.word_bytes)
        self.vb = rng.integers(0, 1 << 32, (machine.buffers.vector_rows, 8), dtype=np.uint32)
        self.ab = rng.integers(-128, 128, (machine.buffers.activation_slices, 16), dtype=np.int8)
        self.registers = [0] * REGISTERS
        self.registers[1 : 1 + len(arguments)] = [a & MASK32 for a in arguments]
        self.weights: deque[np.ndarray] = deque()  # runs of words that LDW delivered
        self.tokens = {(a, b): 0 for a in Queue for b in Queue}
        self.vec_state = VecState()
        self.trace: list[Retired] = []
        self.marks: list[tuple[int, int]] = []  # (identity, index into the trace)
        self.program = self._boot()

    def _boot(self) -> list[Instruction]:
        header = self.memory[0].view("<u4")
        expected = (IMAGE_MAGIC, IMAGE_VERSION, ISA_VERSION, contract.CONTRACT_VERSION)
        m = self.machine
        cap0 = m.array.macs_per_cycle | m.memory.ports << 16 | m.sfu.lanes << 24
        if tuple(int(v) for v in header[:4]) != expected or int(header[4]) != cap0 or int(header[8]) != m.word_bytes:
            raise MachineError(ErrorCode.HEADER, Queue.SYS, 0, f"header {[hex(int(v)) for v in header[:9]]}")
        base, count = int(header[6]), int(header[7])
        raw = self.memory[base:].reshape(-1)[: count * INSTRUCTION_BYTES].tobytes()
        if count > m.buffers.imem_words or len(raw) < count * INSTRUCTION_BYTES:
            raise MachineError(ErrorCode.RANGE, Queue.SYS, 0, f"a program of {count} instructions at word {base}")
        return [Instruction.decode(raw[i : i + INSTRUCTION_BYTES]) for i in range(0, len(raw), INSTRUCTION_BYTES)]

    def run(self, limit: int = 1 << 40) -> None:
        """Run to HALT. Raises MachineError; RuntimeError past `limit` instructions."""
        pc = 0
        for _ in range(limit):
            if pc >= len(self.program):
                raise MachineError(ErrorCode.RANGE, Queue.SYS, pc, "past the program")
            instruction = self.program[pc]
            queue = instruction.op.queue
            o = [0] + [(p.imm + (self.registers[p.reg] if p.reg else 0)) & MASK32 for p in instruction.operands]
            self._take(instruction, queue, pc)
            signature, target = self._execute(instruction, o, pc)
            for other in instruction.release:
                self.tokens[queue, other] += 1
                if self.tokens[queue, other] > TOKEN_LIMIT:
                    raise MachineError(ErrorCode.TOKEN_OVERFLOW, queue, pc, f"to {other.name}")
            self.trace.append(Retired(queue, pc, int(signature) & MASK32))
            if instruction.op == Op.HALT:
                return
            pc = pc + 1 if target is None else target
        raise RuntimeError(f"no HALT within {limit} instructions")

    def _take(self, instruction, queue, pc):
        for other in instruction.wait:
            if not self.tokens[other, queue]:
                raise MachineError(ErrorCode.WATCHDOG, queue, pc, f"waits for a token of {other.name} that program order never gives")
            self.tokens[other, queue] -= 1

    # One method a queue; each returns (signature, branch target or None).

    def _execute(self, instruction, o, pc):
        op = instruction.op
        if op in (Op.LD_NOP, Op.ST_NOP, Op.MV_NOP, Op.VEC_NOP, Op.SYS_NOP):
            return 0, None
        if op.queue == Queue.SYS:
            return self._sys(op, instruction.flags, o, pc)
        run = {Queue.LD: self._ld, Queue.ST: self._st, Queue.MV: self._mv, Queue.VEC: self._vec}[op.queue]
        return run(op, instruction.flags, o, pc), None

    def _range(self, fine, queue, pc, what):
        if not fine:
            raise MachineError(ErrorCode.RANGE, queue, pc, what)

    def _sys(self, op, flags, o, pc):
        if op in (Op.BNE, Op.BLT):
            taken = o[1] != o[2] if op == Op.BNE else o[1] < o[2]
            return 0, o[3] if taken else None
        if op in (Op.BAR, Op.HALT):
            return 0, None
        if op == Op.MARK:
            self.marks.append((o[1], len(self.trace)))
            return o[1], None
        if op == Op.RDV:
            self._range(o[1] < self.vb.shape[0], Queue.SYS, pc, f"VB row {o[1]}")
            value = int(self.vb[o[1], o[2] & 7])
        else:
            value = {
                Op.SET: lambda a, b: a, Op.ADD: lambda a, b: a + b, Op.SUB: lambda a, b: a - b, Op.MUL: lambda a, b: a * b,
                Op.SHL: lambda a, b: a << (b & 31), Op.SHR: lambda a, b: a >> (b & 31), Op.AND: lambda a, b: a & b,
            }[op](o[1], o[2]) & MASK32  # fmt: skip
        self.registers[flags & 31] = value
        return value, None

    def _ld(self, op, flags, o, pc):
        starts = o[1] + o[4] * np.arange(o[3], dtype=np.int64)
        words = (starts[:, None] + np.arange(o[2])).reshape(-1)
        self._range(words.size == 0 or words.max() < self.memory.shape[0], Queue.LD, pc, f"memory word {words.max(initial=0)}")
        data = self.memory[words]
        if op == Op.LDW:
            self.weights.append(data)
            return signature_of(data.view("<u4"), words).sum()
        if op == Op.LDV:
            lanes = data.view("<u4").reshape(-1, 8)
            rows = o[5] + np.arange(lanes.shape[0])
            self._range(rows.size == 0 or rows[-1] < self.vb.shape[0], Queue.LD, pc, f"VB row {rows[-1:]}")
            self.vb[rows] = lanes
            return signature_of(lanes, rows).sum()
        chunk = o[6] * 16
        self._range(chunk + 16 <= self.machine.word_bytes, Queue.LD, pc, f"chunk {o[6]}")
        rows = o[5] + np.arange(data.shape[0])
        self._range(rows.size == 0 or rows[-1] < self.ab.shape[0], Queue.LD, pc, f"AB slice {rows[-1:]}")
        piece = np.ascontiguousarray(data[:, chunk : chunk + 16])
        self.ab[rows] = piece.view(np.int8)
        return signature_of(piece.view("<u4"), rows).sum()

    def _st(self, op, flags, o, pc):
        """Builds the written bytes as (beat, data, strobe) in order, then writes them."""
        flat = self.memory.reshape(-1, BEAT)
        beats, data, strobes = {Op.STV: self._stv, Op.STS: self._sts, Op.STK: self._stk, Op.STT: self._stt}[op](o, pc)
        self._range(beats.size == 0 or beats.max() < flat.shape[0], Queue.ST, pc, f"memory beat {beats.max(initial=0)}")
        data = np.where(strobes, data, 0).astype(np.uint8)
        for beat, row, strobe in zip(beats, data, strobes, strict=True):
            flat[beat][strobe] = row[strobe]
        return signature_of(np.ascontiguousarray(data).view("<u4"), beats).sum()

    def _stv(self, o, pc):
        rows = o[2] + np.arange(o[3])
        self._range(rows.size == 0 or rows[-1] < self.vb.shape[0], Queue.ST, pc, f"VB row {rows[-1:]}")
        data = np.ascontiguousarray(self.vb[rows]).view(np.uint8).reshape(-1, BEAT)
        return o[1] + np.arange(o[3], dtype=np.int64), data, np.ones_like(data, bool)

    def _sts(self, o, pc):
        index = np.arange(o[3], dtype=np.int64)
        rows, place = o[2] + index * o[4], o[1] + index * o[5]
        self._range(rows.size == 0 or rows[-1] < self.vb.shape[0], Queue.ST, pc, f"VB row {rows[-1:]}")
        data = np.zeros((o[3], 8), np.uint32)
        data[index, place % 8] = self.vb[rows, 0]
        strobes = np.zeros((o[3], 8), bool)
        strobes[index, place % 8] = True
        return place // 8, data.view(np.uint8).reshape(-1, BEAT), np.repeat(strobes, 4, axis=1)

    def _heads(self, o, pc):
        slices = o[2] + np.arange(o[3] * o[4])
        self._range(slices.size == 0 or slices[-1] < self.ab.shape[0], Queue.ST, pc, f"AB slice {slices[-1:]}")
        return self.ab[slices].view(np.uint8).reshape(o[4], o[3], 16)

    def _stk(self, o, pc):
        data = self._heads(o, pc)
        chunk = o[1] + o[5] * np.arange(o[4], dtype=np.int64)[:, None] + self.machine.stripe_rows * np.arange(o[3])
        return self._chunks(chunk.reshape(-1), data.reshape(-1, 16))

    @staticmethod
    def _chunks(chunk, data):
        out = np.zeros((chunk.size, 2, 16), np.uint8)
        strobes = np.zeros((chunk.size, 2, 16), bool)
        out[np.arange(chunk.size), chunk % 2] = data
        strobes[np.arange(chunk.size), chunk % 2] = True
        return chunk // 2, out.reshape(-1, BEAT), strobes.reshape(-1, BEAT)

    def _stt(self, o, pc):
        """Two channels share a beat: chunk pairs (2i, 2i+1)."""
        data = self._heads(o, pc).reshape(o[4], -1)  # [heads, channels]
        r, channels = self.machine.stripe_rows, data.shape[1]
        d = np.arange(channels, dtype=np.int64)
        chunk = o[1] + o[5] * np.arange(o[4], dtype=np.int64)[:, None] + d // r * o[7] + d % r
        self._range(o[6] < 16 and o[1] % 2 == 0 and o[5] % 2 == 0 and o[7] % 2 == 0, Queue.ST, pc, "an odd chunk, stride or byte lane")
        beats = (chunk[:, 0::2] // 2).reshape(-1)
        out = np.zeros((beats.size, BEAT), np.uint8)
        strobes = np.zeros((beats.size, BEAT), bool)
        out[:, o[6]] = data[:, 0::2].reshape(-1)
        out[:, 16 + o[6]] = data[:, 1::2].reshape(-1)
        strobes[:, [o[6], 16 + o[6]]] = True
        return beats, out, strobes

    def _mv(self, op, flags, o, pc):
        act, out, scale_row, stripes, slices = o[1:6]
        bits, scales = flags & 15, bool(flags >> SCALES_FLAG_BIT & 1)
        r = self.machine.stripe_rows
        if bits not in (4, 8):
            raise MachineError(ErrorCode.ILLEGAL, Queue.MV, pc, f"MV of {bits} bits")
        self._range(act + slices <= self.ab.shape[0], Queue.MV, pc, f"AB slice {act + slices}")
        self._range(out + stripes * r // 8 <= self.vb.shape[0] and scale_row < self.vb.shape[0], Queue.MV, pc, f"VB row {out}")
        grid, row_scale = self._decode(stripes, slices, bits, scales)
        acc = _dot(self.ab[act : act + slices].reshape(-1), grid)
        s_a = self.vb[scale_row, :1].view(np.float32)
        if np.isnan(s_a).any():
            raise MachineError(ErrorCode.NAN, Queue.MV, pc, f"s_a in VB row {scale_row}")
        value = functions.scale(acc, s_a, row_scale).view(np.uint32).reshape(-1, 8)
        rows = out + np.arange(value.shape[0])
        self.vb[rows] = value
        return signature_of(value, rows).sum()

    def _decode(self, stripes, slices, bits, scales):
        """(int8 grid [rows, columns], float32 scales [rows]) from the weight words, in the order of docs/machine.md, section 3."""
        m, r = self.machine, self.machine.stripe_rows
        per_slice = r * 16 * bits // m.word_bits
        meta = -(-slices // (2 * m.meta_groups_per_word)) if bits < 8 else 0
        stripe_words = meta + slices * per_slice
        blocks = -(-stripes // m.stripes_per_scale_word) if scales else 0
        raw = self._words(blocks + stripes * stripe_words)
        if scales:
            first = np.arange(blocks) * (1 + m.stripes_per_scale_word * stripe_words)
            row_scale = np.ascontiguousarray(raw[first]).view("<f4").reshape(-1)[: stripes * r]
            raw = np.delete(raw, first, axis=0)
        else:
            row_scale = np.ones(stripes * r, np.float32)
        raw = raw.reshape(stripes, stripe_words, m.word_bytes)
        if bits == 8:
            codes = raw.reshape(stripes, slices, r, 16).transpose(0, 2, 1, 3).reshape(stripes * r, -1)
            return codes.view(np.int8), row_scale
        return self._decode4(raw, slices, per_slice).reshape(stripes * r, -1), row_scale

    def _decode4(self, raw, slices, per_slice):
        """int8 [stripes, rows, columns] of stripes of metadata and 4-bit code words."""
        m, r = self.machine, self.machine.stripe_rows
        per, stripes = m.meta_groups_per_word, raw.shape[0]
        is_meta = np.arange(raw.shape[1]) % (1 + 2 * per * per_slice) == 0
        bits = np.unpackbits(raw[:, is_meta], axis=-1, bitorder="little")[..., : per * r * 20]
        field = bits.reshape(stripes, -1, r, 20).astype(np.int32) @ (1 << np.arange(20, dtype=np.int32))
        field = field[:, : -(-slices // 2)].transpose(0, 2, 1)  # [stripe, row, group]
        off = field >> 8
        off = off - ((off & 0x800) << 1)
        packed = raw[:, ~is_meta].reshape(stripes, slices, -1)
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(stripes, slices, r, 16)
        codes = codes.transpose(0, 2, 1, 3).reshape(stripes, r, slices * 16)
        return integers.decode_codes(codes, (field & 255).astype(np.uint8), off.astype(np.int16), 4)

    def _words(self, count):
        """The next `count` words of the FIFO, uint8 [count, word_bytes]."""
        parts = []
        while count:
            if not self.weights:
                raise RuntimeError("an MV takes more words than LDW delivered")
            head = self.weights[0]
            take = min(count, head.shape[0])
            parts.append(head[:take])
            count -= take
            if take == head.shape[0]:
                self.weights.popleft()
            else:
                self.weights[0] = head[take:]
        return np.concatenate(parts)

    def _vec(self, op, flags, o, pc):
        try:
            return run_vec(flags & 0xFF, o[1:], flags, self.vb, self.ab, self.vec_state)
        except VecError as error:
            raise MachineError(error.code, Queue.VEC, pc, str(error)) from None
