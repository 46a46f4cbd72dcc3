"""Instruction set, version 1: opcodes, fields, encoding, and the Amaranth layouts of commands.

docs/machine.md, section 2, is the text; this file is its one encoding, used by the compiler, the interpreter and the RTL.
"""

import enum
from dataclasses import dataclass

from amaranth.lib import data

ISA_VERSION = 1
IMAGE_MAGIC = 0x4D495248  # "HRIM"
IMAGE_VERSION = 1
AXIL_ID = 0x43524448  # "HDRC"
INSTRUCTION_BYTES = 32
OPERANDS = 7
REGISTERS = 32
IMMEDIATE_BITS = 27
FLAG_BITS = 14
TOKEN_LIMIT = 15


class Queue(enum.IntEnum):
    LD = 0
    ST = 1
    MV = 2
    VEC = 3
    SYS = 4


class Op(enum.IntEnum):
    LD_NOP = 0x00
    LDW = 0x01
    LDV = 0x02
    LDA = 0x03
    LD_SYS = 0x04  # control's own loads at boot; illegal in a program
    ST_NOP = 0x20
    STV = 0x21
    STS = 0x22
    STK = 0x23
    STT = 0x24
    MV_NOP = 0x40
    MV = 0x41
    VEC_NOP = 0x60
    VEC = 0x61
    SYS_NOP = 0x80
    SET = 0x81
    ADD = 0x82
    SUB = 0x83
    MUL = 0x84
    SHL = 0x85
    SHR = 0x86
    AND = 0x87
    RDV = 0x88
    BNE = 0x89
    BLT = 0x8A
    MARK = 0x8B
    BAR = 0x8C
    HALT = 0x8F

    @property
    def queue(self) -> Queue:
        return Queue(self >> 5)


class Program(enum.IntEnum):
    """VEC programs (docs/machine.md, section 4)."""

    RMSNORM = 0
    QUANT = 1
    ROPE = 2
    SOFTMAX = 3
    SILU_MUL = 4
    ADD = 5
    DEQUANT = 6
    ARGMAX = 7


class ErrorCode(enum.IntEnum):
    NONE = 0
    ILLEGAL = 1
    RANGE = 2
    TOKEN_OVERFLOW = 3
    HEADER = 4
    WATCHDOG = 5
    NAN = 6
    MEMORY = 7


PROGRAM_FLAG_BIT = 8  # flags[8] of VEC: ARGMAX starts anew
SCALES_FLAG_BIT = 4  # flags[4] of MV: channel scales in the stream


@dataclass(frozen=True)
class Operand:
    """An operand field: immediate plus the value of a register (R0 reads 0)."""

    imm: int = 0
    reg: int = 0

    def encode(self) -> int:
        if not 0 <= self.imm < 1 << IMMEDIATE_BITS:
            raise ValueError(f"immediate {self.imm} does not fit {IMMEDIATE_BITS} bits")
        if not 0 <= self.reg < REGISTERS:
            raise ValueError(f"register {self.reg} is not one of 0..{REGISTERS - 1}")
        return self.reg << IMMEDIATE_BITS | self.imm


@dataclass(frozen=True)
class Instruction:
    """One instruction; `operands` holds up to seven ints or Operand, missing ones are 0."""

    op: Op
    operands: tuple = ()
    flags: int = 0
    wait: frozenset = frozenset()
    release: frozenset = frozenset()
    comment: str = ""

    def encode(self) -> bytes:
        """32 bytes, little endian. Raises ValueError where a field does not fit."""
        if not 0 <= self.flags < 1 << FLAG_BITS:
            raise ValueError(f"flags {self.flags} do not fit {FLAG_BITS} bits")
        if len(self.operands) > OPERANDS:
            raise ValueError(f"{len(self.operands)} operands; at most {OPERANDS}")
        wait = sum(1 << q for q in self.wait)
        release = sum(1 << q for q in self.release)
        words = [self.op | wait << 8 | release << 13 | self.flags << 18]
        for operand in self.operands:
            words.append((operand if isinstance(operand, Operand) else Operand(operand)).encode())
        words += [0] * (1 + OPERANDS - len(words))
        return b"".join(w.to_bytes(4, "little") for w in words)

    @classmethod
    def decode(cls, raw: bytes) -> "Instruction":
        """The inverse of encode. Raises ValueError for an opcode that does not exist."""
        if len(raw) != INSTRUCTION_BYTES:
            raise ValueError(f"an instruction has {INSTRUCTION_BYTES} bytes, not {len(raw)}")
        words = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, INSTRUCTION_BYTES, 4)]
        head = words[0]
        mask = (1 << IMMEDIATE_BITS) - 1
        return cls(
            op=Op(head & 0xFF),
            operands=tuple(Operand(w & mask, w >> IMMEDIATE_BITS) for w in words[1:]),
            flags=head >> 18,
            wait=frozenset(q for q in Queue if head >> (8 + q) & 1),
            release=frozenset(q for q in Queue if head >> (13 + q) & 1),
        )


class Command(data.StructLayout):
    """An instruction as a unit receives it: operands evaluated, tokens taken."""

    def __init__(self):
        super().__init__(
            {"pc": 16, "op": 8, "flags": FLAG_BITS} | {f"o{i}": 32 for i in range(1, OPERANDS + 1)}
        )


class Done(data.StructLayout):
    """Retirement of a command: one pulse of `valid`, in order."""

    def __init__(self):
        super().__init__({"valid": 1, "pc": 16, "sig": 32})


class Error(data.StructLayout):
    """A unit's error: one pulse of `valid`; control keeps the first."""

    def __init__(self):
        super().__init__({"valid": 1, "code": 8, "pc": 16})


def rotl32(value, amount: int):
    """Rotate a 32-bit int or numpy uint32 array left."""
    amount %= 32
    if amount == 0:
        return value
    return ((value << amount) | (value >> (32 - amount))) & 0xFFFFFFFF


def signature_of(lanes, address):
    """Signature term of one unit of data, or of many at once.

    lanes: uint32 array [..., n] (n lanes of 32 bits); address: int array [...]. Returns uint64 terms below 2**32;
    the signature of an instruction is their sum modulo 2**32 (docs/machine.md, section 6).
    """
    import numpy as np

    lanes = np.asarray(lanes, dtype=np.uint64)
    fold = np.zeros(lanes.shape[:-1], dtype=np.uint64)
    for i in range(lanes.shape[-1]):
        fold ^= rotl32(lanes[..., i], 4 * i + 1)
    return fold ^ rotl32(np.asarray(address, dtype=np.uint64) & 0xFFFFFFFF, 16)
