"""The dynamic instruction stream of a program: what the sequencer dispatches, in order, with its operands evaluated.

Only SYS instructions are executed (registers, branches). Data reach the stream through RDV alone, whose values the caller gives: they decide
which rows and addresses are touched, and where a program branches on them, what it does next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from headrace.hw.isa import OPERANDS, REGISTERS, Instruction, Op, Operand

MASK = 0xFFFFFFFF
END, LIMIT, PAST_END = 0, 1, 2


@dataclass(frozen=True)
class Program:
    """A program in arrays [instructions]: op, flags, wait and release masks; immediates and registers [instructions, OPERANDS]."""

    op: np.ndarray
    flags: np.ndarray
    wait: np.ndarray
    release: np.ndarray
    immediate: np.ndarray
    register: np.ndarray

    @classmethod
    def of(cls, instructions: Sequence[Instruction]) -> "Program":
        n = len(instructions)
        immediate, register = np.zeros((n, OPERANDS), np.int64), np.zeros((n, OPERANDS), np.int64)
        for i, instruction in enumerate(instructions):
            for k, value in enumerate(instruction.operands):
                operand = value if isinstance(value, Operand) else Operand(int(value))
                immediate[i, k], register[i, k] = operand.imm, operand.reg

        def column(values):
            return np.array(list(values), np.int64).reshape(n)

        return cls(
            op=column(int(i.op) for i in instructions), flags=column(i.flags for i in instructions),
            wait=column(sum(1 << q for q in i.wait) for i in instructions),
            release=column(sum(1 << q for q in i.release) for i in instructions),
            immediate=immediate, register=register,
        )  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """pc int64 [n], operands int64 [n, OPERANDS], taken int8 [n] (1: a branch that is taken), the last one HALT."""

    pc: np.ndarray
    operands: np.ndarray
    taken: np.ndarray


class StreamError(Exception):
    """The program does not end, or leaves its instructions."""


@njit(cache=True)
def _walk(op, flags, immediate, register, registers, values, limit, fill, pcs, operands, takens):
    """(state, instructions): executes SYS instructions from instruction 0; with `fill` it also records them."""
    pc = 0
    read = 0
    o = np.zeros(OPERANDS, np.int64)
    for i in range(limit):
        if pc < 0 or pc >= op.size:
            return PAST_END, i
        for k in range(OPERANDS):
            r = register[pc, k]
            o[k] = (immediate[pc, k] + (registers[r] if r else 0)) & MASK
        code = op[pc]
        taken = 0
        if code >= Op.SET and code <= Op.RDV:
            a, b = o[0], o[1]
            if code == Op.SET:
                result = a
            elif code == Op.ADD:
                result = a + b
            elif code == Op.SUB:
                result = a - b
            elif code == Op.MUL:
                result = a * b
            elif code == Op.SHL:
                result = a << (b & 31)
            elif code == Op.SHR:
                result = a >> (b & 31)
            elif code == Op.AND:
                result = a & b
            else:
                result = values[read] if read < values.size else 0
                read += 1
            registers[flags[pc] & 31] = result & MASK
            registers[0] = 0
        elif code == Op.BNE:
            taken = 1 if o[0] != o[1] else 0
        elif code == Op.BLT:
            taken = 1 if o[0] < o[1] else 0
        if fill:
            pcs[i] = pc
            takens[i] = taken
            for k in range(OPERANDS):
                operands[i, k] = o[k]
        if code == Op.HALT:
            return END, i + 1
        pc = o[2] if taken else pc + 1
    return LIMIT, limit


def dynamic_stream(program: Program, arguments: Sequence[int], values: Sequence[int] = (), *, limit: int = 20_000_000) -> Stream:
    """The stream of a run with R1.. = `arguments`; `values` are what RDV reads, in order (0 after the last).

    Raises StreamError where the program leaves its instructions or has not halted after `limit` of them.
    """
    values = np.array([int(v) & MASK for v in values], np.int64)

    def walk(fill, pcs, operands, taken):
        registers = np.zeros(REGISTERS, np.int64)
        registers[1 : 1 + len(arguments)] = [int(a) & MASK for a in arguments]
        return _walk(program.op, program.flags, program.immediate, program.register, registers, values, limit, fill, pcs, operands, taken)

    nothing = np.zeros(0, np.int64), np.zeros((0, OPERANDS), np.int64), np.zeros(0, np.int8)
    state, count = walk(False, *nothing)
    if state == PAST_END:
        raise StreamError(f"instruction {count} of the run lies past the program's {program.op.size}")
    if state == LIMIT:
        raise StreamError(f"no HALT within {limit} instructions")
    arrays = np.zeros(count, np.int64), np.zeros((count, OPERANDS), np.int64), np.zeros(count, np.int8)
    walk(True, *arrays)
    return Stream(*arrays)
