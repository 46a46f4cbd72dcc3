"""Boot: registers, image header, program (docs/machine.md, section 5)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.fetch import PC_BITS
from headrace.hw.isa import (
    FLAG_BITS,
    IMAGE_MAGIC,
    IMAGE_VERSION,
    INSTRUCTION_BYTES,
    ISA_VERSION,
    REGISTERS,
    Command,
    ErrorCode,
    Op,
)
from headrace.hw.sequencer import RegisterWrite
from headrace.kernels.contract import CONTRACT_VERSION

HEADER_FIELDS = 12
"""u32 fields of the header that are in use; the rest of its words is ignored."""

ARGUMENTS = 8
"""Registers R1 .. R8 take the host's arguments."""


class State(enum.Enum, shape=4):
    IDLE = 0
    REGISTERS = 1
    HEADER_COMMAND = 2
    HEADER_DATA = 3
    CHECK = 4
    PROGRAM_COMMAND = 5
    PROGRAM_DATA = 6
    PROGRAM_DONE = 7
    FAILED = 8


class Boot(wiring.Component):
    """From ``start`` to ``run``: writes all registers (arguments to R1..R8, 0 to the others), loads the header
    through LD (``cmd`` with LD_SYS, data on ``words``), checks it, and loads the program into instruction memory.

    Checks, each an ``error`` pulse: HEADER when magic, image, ISA or contract version, cap0 or the word size differ, or
    cap1 asks for widths that ``cap1`` lacks or for features it does not have; RANGE when the program is empty or
    larger than the instruction memory. ``load`` is 1 while LD belongs to boot. `start` is ignored while busy.

    Cycles: 32 + two loads + one per instruction. Cost: the word register (8W bits), 384 FF of header, about 300 LUT.
    """

    def __init__(self, *, word_bytes: int, imem_words: int, cap0: int, cap1: int):
        if word_bytes < INSTRUCTION_BYTES:
            raise ValueError(f"word_bytes = {word_bytes}: a memory word holds at least one instruction of 32 bytes")
        self.word_bytes, self.imem_words, self.cap0, self.cap1 = word_bytes, imem_words, cap0, cap1
        super().__init__(
            {
                "start": In(1),
                "stop": In(1),
                "arguments": In(32 * ARGUMENTS),
                "header_word": In(32),
                "cmd": Out(stream.Signature(Command())),
                "done": In(1),
                "words": In(stream.Signature(8 * word_bytes)),
                "register_write": Out(RegisterWrite()),
                "w_en": Out(1),
                "w_addr": Out(range(imem_words)),
                "w_data": Out(8 * INSTRUCTION_BYTES),
                "count": Out(PC_BITS + 1),
                "load": Out(1),
                "run": Out(1),
                "error": Out(1),
                "error_code": Out(8),
            }
        )

    def elaborate(self, platform):
        m = Module()
        state = Signal(State)
        word_bits = 8 * self.word_bytes
        header_words = -(-4 * HEADER_FIELDS // self.word_bytes)
        per_word = self.word_bytes // INSTRUCTION_BYTES

        header = Signal(header_words * word_bits if header_words > 1 else 32 * HEADER_FIELDS)
        field = [header[32 * i : 32 * i + 32] for i in range(HEADER_FIELDS)]
        index = Signal(PC_BITS + 1)
        shift = Signal(word_bits)
        left = Signal(range(per_word + 1))
        finished = Signal()
        # The command is put together whole: a port whose bits are part constant, part process is emitted as a Verilog
        # process without inputs, which simulators never run.
        base, words = Signal(32), Signal(32)
        m.d.comb += [
            self.load.eq((state != State.IDLE) & (state != State.FAILED)),
            self.cmd.payload.eq(Cat(Const(0, 16), Const(Op.LD_SYS, 8), Const(0, FLAG_BITS), base, words, Const(1, 32))),
            self.count.eq(field[7]),
        ]
        with m.If(self.done):
            m.d.sync += finished.eq(1)

        with m.Switch(state):
            with m.Case(State.IDLE):
                m.d.sync += index.eq(0)
                with m.If(self.start):
                    m.d.sync += state.eq(State.REGISTERS)
            with m.Case(State.REGISTERS):
                value = Signal(32)
                with m.Switch(index):
                    for i in range(ARGUMENTS):
                        with m.Case(i + 1):
                            m.d.comb += value.eq(self.arguments.word_select(i, 32))
                m.d.comb += [
                    self.register_write.valid.eq(1),
                    self.register_write.index.eq(index),
                    self.register_write.data.eq(value),
                ]
                m.d.sync += index.eq(index + 1)
                with m.If(index == REGISTERS - 1):
                    m.d.sync += state.eq(State.HEADER_COMMAND)
            with m.Case(State.HEADER_COMMAND):
                m.d.comb += [
                    self.cmd.valid.eq(1),
                    base.eq(self.header_word),
                    words.eq(header_words),
                ]
                m.d.sync += [finished.eq(0), index.eq(0)]
                with m.If(self.cmd.ready):
                    m.d.sync += state.eq(State.HEADER_DATA)
            with m.Case(State.HEADER_DATA):
                m.d.comb += self.words.ready.eq(index != header_words)
                with m.If(self.words.valid & self.words.ready):
                    m.d.sync += index.eq(index + 1)
                    if header_words > 1:
                        m.d.sync += header.eq(Cat(header, self.words.payload)[word_bits:])
                    else:
                        m.d.sync += header.eq(self.words.payload)
                with m.If((index == header_words) & (finished | self.done)):
                    m.d.sync += state.eq(State.CHECK)
            with m.Case(State.CHECK):
                # cap1: widths (bits 7:0) a subset; sparsity, tokens per weight and core id as they are.
                expected = [IMAGE_MAGIC, IMAGE_VERSION, ISA_VERSION, CONTRACT_VERSION, self.cap0]
                wrong = [field[i] != value for i, value in enumerate(expected)]
                wrong.append((field[5][:8] & ~(self.cap1 & 0xFF) & 0xFF).any() | (field[5][8:] != self.cap1 >> 8))
                wrong.append(field[8] != self.word_bytes)
                mismatch = Cat(*wrong).any()
                length = (field[7] == 0) | (field[7] > self.imem_words)
                with m.If(mismatch | length):
                    m.d.comb += [self.error.eq(1), self.error_code.eq(Mux(mismatch, ErrorCode.HEADER, ErrorCode.RANGE))]
                    m.d.sync += state.eq(State.FAILED)
                with m.Else():
                    m.d.sync += state.eq(State.PROGRAM_COMMAND)
            with m.Case(State.PROGRAM_COMMAND):
                m.d.comb += [
                    self.cmd.valid.eq(1),
                    base.eq(field[6]),
                    words.eq((field[7] + (per_word - 1)) >> (per_word.bit_length() - 1)),
                ]
                m.d.sync += [finished.eq(0), index.eq(0), left.eq(0)]
                with m.If(self.cmd.ready):
                    m.d.sync += state.eq(State.PROGRAM_DATA)
            with m.Case(State.PROGRAM_DATA):
                # One instruction per cycle out of the word register; a new word enters with the last one's exit.
                last = (left != 0) & (index + 1 == self.count)
                m.d.comb += [
                    self.words.ready.eq((left <= 1) & ~last),
                    self.w_en.eq(left != 0),
                    self.w_addr.eq(index),
                    self.w_data.eq(shift),
                ]
                with m.If(left != 0):
                    m.d.sync += [index.eq(index + 1), left.eq(left - 1)]
                    if per_word > 1:
                        m.d.sync += shift.eq(shift >> (8 * INSTRUCTION_BYTES))
                with m.If(last):
                    m.d.sync += state.eq(State.PROGRAM_DONE)
                with m.Elif(self.words.valid & self.words.ready):
                    m.d.sync += [shift.eq(self.words.payload), left.eq(per_word)]
            with m.Case(State.PROGRAM_DONE):
                with m.If(finished | self.done):
                    m.d.comb += self.run.eq(~self.stop)
                    m.d.sync += state.eq(State.IDLE)
            with m.Case(State.FAILED):
                pass
        with m.If(self.stop):
            m.d.sync += state.eq(State.FAILED)
        return m
