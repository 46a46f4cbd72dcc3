"""Random legal programs: every unit, every instruction, tokens between all queues; no deadlock, no error.

Why they end. An instruction waits only for tokens that instructions before it release, so program order is a schedule. The exception is LDW,
which needs room that a later MV makes: an MV takes only tokens released before its words were loaded, and what is loaded ahead of its MV fits
the raw FIFO. Releases are at most PENDING ahead of their waits in program order; a queue holds queue_depth + 1 instructions that have not
taken theirs, so no counter passes its limit. That the sequencer never stands before a full queue while an LDW waits for an MV behind it is not
proven: with queues of the presets' 8 it has not happened, with 2 or 4 it does (seen at the cycle level, not tried on the RTL).
Why no NaN. Vector programs read only rows that LDV fills with numbers from 1/4 to 1; scales of an MV may be any bits.
"""

from dataclasses import dataclass, field

import numpy as np

from headrace.hw.isa import SCALES_FLAG_BIT, TOKEN_LIMIT, Instruction, Op, Operand, Program, Queue
from headrace.hw.machine import Machine
from headrace.mapping.image import Image, Layout, table_words
from headrace.mapping.stream import stream_words

DATA_ROWS = 1024
"""VB rows that hold good numbers; the next DATA_ROWS are for programs that write in place, the rest take results."""
DATA_WORDS, WEIGHT_WORDS, SCRATCH_WORDS = 2048, 8192, 4096
PENDING = 5
_NOPS = {Queue.LD: Op.LD_NOP, Queue.ST: Op.ST_NOP, Queue.MV: Op.MV_NOP, Queue.VEC: Op.VEC_NOP, Queue.SYS: Op.SYS_NOP}


@dataclass
class RandomProgram:
    """Instructions and the image that holds them; `manifest` is what `run_image` wants."""

    machine: Machine
    seed: int
    length: int = 2048
    instructions: list[Instruction] = field(default_factory=list)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        m = self.machine
        assert PENDING + m.control.queue_depth + 1 <= TOKEN_LIMIT
        self.pending = {(a, b): 0 for a in Queue for b in Queue}
        self.ahead: list[tuple[int, dict]] = []  # MVs whose words are loaded: (words, MV)
        layout = self.layout = Layout(m.word_bytes)
        layout.add("header", np.zeros(m.word_bytes, np.uint8))
        layout.add("table", np.zeros(table_words(m.word_bytes, 8) * m.word_bytes, np.uint8))
        self.program_section = layout.add("program", np.zeros(self.length * 32, np.uint8))
        data = self.rng.uniform(0.25, 1.0, DATA_WORDS * m.word_bytes // 4).astype("<f4")
        self.data = layout.add("data", data).base
        self.weights = layout.add("weights", self.rng.integers(0, 256, WEIGHT_WORDS * m.word_bytes).astype(np.uint8)).base
        self.scratch = layout.reserve("scratch", SCRATCH_WORDS).base
        layout.reserve("tokens", 1)
        self._generate()

    def image(self) -> Image:
        raw = np.frombuffer(b"".join(i.encode() for i in self.instructions), np.uint8)
        self.program_section.data.reshape(-1)[: raw.size] = raw
        manifest = {"widths": [4, 8], "vocab": 1, "outputs": 1, "logit_beats": 1, "word_bytes": self.machine.word_bytes}
        return Image(self.machine, self.layout, "program", len(self.instructions), manifest)

    # Choices

    def _pick(self, low: int, high: int) -> int:
        """low..high, both included, small values more often."""
        return low + int((high - low + 1) * self.rng.random() ** 3)

    def _even(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def _chance(self, p: float) -> bool:
        return self.rng.random() < p

    # Emission

    def _emit(self, op: Op, operands=(), flags: int = 0, *, may_wait: dict | None = None, wait=(), release=()) -> None:
        """With random waits among tokens that are there and random releases. may_wait: the tokens an MV may take."""
        queue = op.queue
        waits, releases = set(wait), set(release)
        for other in Queue:
            there = self.pending[other, queue] if may_wait is None else min(may_wait[other], self.pending[other, queue])
            if other not in waits and there and self._chance(0.5 if there < 3 else 0.9):
                waits.add(other)
                if may_wait is not None:
                    may_wait[other] -= 1
        for other in waits:
            self.pending[other, queue] -= 1
        for other in Queue:
            if other != queue and self.pending[queue, other] < PENDING and self._chance(0.12):
                releases.add(other)
        for other in releases:
            self.pending[queue, other] += 1
        self.instructions.append(Instruction(op, tuple(operands), flags, frozenset(waits), frozenset(releases)))

    def _generate(self) -> None:
        words = DATA_ROWS * 32 // self.machine.word_bytes
        for place in (0, DATA_ROWS):
            self._emit(Op.LDV, (self.data, words, 1, 0, place))
        self._emit(Op.BAR)
        kinds = (self._weights, self._product, self._rows, self._slices, self._store, self._vector, self._sys, self._nop)
        shares = np.array([4, 3, 2, 2, 4, 3, 5, 1], float)
        while len(self.instructions) < self.length - 14:
            self.rng.choice(kinds, p=shares / shares.sum())()
        while self.ahead:
            self._product()
        self._emit(Op.HALT)
        assert len(self.instructions) <= self.length

    def _nop(self) -> None:
        self._emit(_NOPS[list(Queue)[self._even(0, 3)]])

    def _mv(self) -> tuple[int, dict]:
        m = self.machine
        bits, scales = (4, 8)[self._even(0, 1)], self._chance(0.6)
        stripes, slices = self._pick(1, 40), self._pick(1, 40)
        rows = m.stripe_rows // 8
        fields = {
            "operands": (
                self._even(0, m.buffers.activation_slices - slices), self._even(2 * DATA_ROWS, m.buffers.vector_rows - stripes * rows),
                self._even(0, DATA_ROWS - 1), stripes, slices,
            ),
            "flags": bits | scales << SCALES_FLAG_BIT,
        }  # fmt: skip
        return stream_words(m, stripes, slices, bits, scales), fields

    def _load_weights(self, words: int) -> None:
        """`words` words in one LDW or several, in runs."""
        while words:
            part = words if self._chance(0.7) else self._even(1, words)
            runs = next((r for r in (7, 3, 2) if part % r == 0 and self._chance(0.3)), 1)
            run = part // runs
            stride = run + self._even(0, 9)
            last = WEIGHT_WORDS - run - (runs - 1) * stride
            if last < 0:
                stride, last = 0, WEIGHT_WORDS - run
            self._emit(Op.LDW, (self.weights + self._even(0, last), run, runs, stride))
            words -= part

    def _weights(self) -> None:
        """Words ahead of their MV, as many as the raw FIFO holds."""
        words, mv = self._mv()
        room = self.machine.buffers.raw_fifo_words // 2 - sum(w for w, _ in self.ahead)
        if words <= room and len(self.ahead) < 4 and not self._chance(0.2):
            self._load_weights(words)
            self.ahead.append((words, mv))
        elif not self.ahead and words <= WEIGHT_WORDS:
            before = {other: self.pending[other, Queue.MV] for other in Queue}
            self._load_weights(words)
            self._emit(Op.MV, mv["operands"], mv["flags"], may_wait=before)

    def _product(self) -> None:
        if self.ahead:
            _, mv = self.ahead.pop(0)
            self._emit(Op.MV, mv["operands"], mv["flags"])
        elif self._chance(0.5):
            self._emit(Op.MV_NOP)

    def _rows(self) -> None:
        words = self._pick(0, 24)
        runs = self._pick(0, 3)
        stride = self._even(0, 40)
        rows = words * runs * self.machine.word_bytes // 32
        at = self.data + self._even(0, DATA_WORDS - words - runs * stride - 1)
        self._emit(Op.LDV, (at, words, runs, stride, self._even(2 * DATA_ROWS, self.machine.buffers.vector_rows - rows)))

    def _slices(self) -> None:
        count, stride = self._pick(0, 40), self._even(0, 12)
        self._emit(
            Op.LDA,
            (self.weights + self._even(0, WEIGHT_WORDS - 600), 1, count, stride,
             self._even(0, self.machine.buffers.activation_slices - count), self._even(0, self.machine.word_bytes // 16 - 1)),
        )  # fmt: skip

    def _store(self) -> None:
        m = self.machine
        ports, chunks = m.memory.ports, m.word_bytes // 16
        op = (Op.STV, Op.STS, Op.STK, Op.STT)[self._even(0, 3)]
        base, half = self.scratch, SCRATCH_WORDS // 2
        if op == Op.STV:
            rows = self._pick(0, 60)
            self._emit(op, (base * ports + self._even(0, half), self._even(0, m.buffers.vector_rows - rows), rows))
        elif op == Op.STS:
            self._emit(op, (base * m.word_bytes // 4 + self._even(0, half), self._even(0, 1000), self._pick(0, 30), self._even(0, 5), self._even(0, 70)))
        else:
            slices, heads = self._pick(1, 6), self._pick(0, 4)
            stride = 2 * self._even(0, 400)
            operands = (base * chunks + 2 * self._even(0, half // 2), self._even(0, 900), slices, heads, stride)
            if op == Op.STT:
                operands += (self._even(0, 15), 2 * self._even(0, 60))
            self._emit(op, operands)

    def _vector(self) -> None:
        m = self.machine
        program = Program(self._even(0, len(Program) - 1))
        n = self._pick(1, 300) if self._chance(0.95) else self._pick(1, 1200)
        reps = self._pick(1, 16) if program in (Program.QUANT, Program.ROPE, Program.SOFTMAX) else 1
        if program == Program.ROPE:
            n = 16 * -(-min(n, 256) // 16)
        rows, slices = 2 * -(-n // 16), -(-n // 16)
        reps = max(1, min(reps, 500 // (2 * rows)))

        def source(size):
            return self._even(0, DATA_ROWS - size)

        def result(size):
            return self._even(2 * DATA_ROWS, m.buffers.vector_rows - size)

        def quantised():
            return self._even(0, m.buffers.activation_slices - reps * slices)

        extra, flags, wait = 0, int(program), ()
        if program in (Program.ROPE, Program.SOFTMAX):
            # In place: load the rows first, and wait for them.
            size = reps * rows * (2 if program == Program.ROPE else 1)
            words = -(-size * 32 // m.word_bytes)
            inside = DATA_ROWS + self._even(0, DATA_ROWS - words * m.word_bytes // 32)
            if self.pending[Queue.LD, Queue.VEC] >= PENDING:
                self._emit(Op.VEC_NOP, wait=(Queue.LD,))
            self._emit(Op.LDV, (self.data, words, 1, 0, inside), release=(Queue.VEC,))
            # Every token of LD that is there, so that this load's own is among them.
            while self.pending[Queue.LD, Queue.VEC] > 1:
                self._emit(Op.VEC_NOP, wait=(Queue.LD,))
            wait = (Queue.LD,)
        if program == Program.RMSNORM:
            pointers = source(rows), source(rows), result(rows), source(2)
        elif program == Program.QUANT:
            pointers = source(reps * rows), quantised(), result(reps), source(1)
        elif program == Program.ROPE:
            pointers = inside, source(rows), source(rows), 0
        elif program == Program.SOFTMAX:
            group = self._even(0, 4)
            extra = group << 16 | rows
            pointers = inside, source(17 * rows) if 17 * rows < DATA_ROWS else 0, quantised(), result(reps)
            if 17 * rows >= DATA_ROWS:
                extra = 0
        elif program in (Program.SILU_MUL, Program.ADD):
            pointers = source(rows), source(rows), result(rows), 0
        elif program == Program.DEQUANT:
            extra = self._even(0, 7)
            pointers = quantised(), source(1), result(rows), 0
        else:
            extra = self._even(0, 1000)
            flags |= self._even(0, 1) << 8
            pointers = source(rows), 0, result(1), 0
        self._emit(Op.VEC, (*pointers, n, reps, extra), flags, wait=wait)

    def _sys(self) -> None:
        pc = len(self.instructions)
        kind = self._even(0, 8)
        register = self._even(1, 12)
        if kind < 4:
            op = (Op.SET, Op.ADD, Op.SUB, Op.MUL, Op.SHL, Op.SHR, Op.AND)[self._even(0, 6)]
            self._emit(op, (Operand(self._even(0, 1000), self._even(0, 12)), Operand(self._even(0, 40), self._even(0, 12))), register)
        elif kind == 4:
            self._emit(Op.RDV, (self._even(0, 2 * DATA_ROWS), self._even(0, 7)), 0)
        elif kind == 5:
            self._emit(Op.MARK, (pc,))
        elif kind == 6:
            self._emit(Op.SYS_NOP)
        elif kind == 7 and self._chance(0.15):
            self._emit(Op.BAR)
        else:
            # A forward branch over register instructions.
            over = self._pick(0, 2)
            equal = self._chance(0.5)
            op = (Op.BNE, Op.BLT)[self._even(0, 1)]
            self._emit(op, (5, 5 if equal else 6, pc + 1 + over))
            for _ in range(over):
                self.instructions.append(Instruction(Op.ADD, (Operand(1, register), 3), register))
