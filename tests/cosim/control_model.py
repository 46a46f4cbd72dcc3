"""A small model of control for its bench: executes the instruction stream, and makes random legal programs."""

import random
from collections import Counter

from headrace.hw.isa import Instruction, Op, Operand, Queue

MASK = 0xFFFFFFFF
ARGUMENTS = [1000003 * (i + 1) & MASK for i in range(8)]
VECTOR_ROWS = 4096
UNITS = {Queue.LD: (Op.LDW, Op.LDV, Op.LDA), Queue.ST: (Op.STV, Op.STS, Op.STK, Op.STT),
         Queue.MV: (Op.MV,), Queue.VEC: (Op.VEC,)}  # fmt: skip
NOPS = {Queue.LD: Op.LD_NOP, Queue.ST: Op.ST_NOP, Queue.MV: Op.MV_NOP, Queue.VEC: Op.VEC_NOP, Queue.SYS: Op.SYS_NOP}


def row_value(row: int, lane: int) -> int:
    """Content of the bench's vector buffer."""
    return ((row * 8 + lane) * 2654435761 ^ 0x1234567) & MASK


def signature(pc: int, operands: list[int]) -> int:
    """What the bench's dummy units return."""
    value = pc
    for operand in operands:
        value = (value * 1000003 & MASK) ^ operand
    return value


def execute(program: list[Instruction]):
    """Program order list of (queue, pc, instruction, operands, signature) up to and with HALT."""
    registers = [0, *ARGUMENTS] + [0] * 23
    pc, out = 0, []
    while True:
        instruction = program[pc]
        full = list(instruction.operands) + [0] * (7 - len(instruction.operands))
        operands = [
            (o.imm + registers[o.reg]) & MASK if isinstance(o, Operand) else o & MASK for o in full
        ]  # fmt: skip
        o1, o2, o3 = operands[:3]
        op, following, sig = instruction.op, pc + 1, 0
        match op:
            case Op.SET:
                result = o1
            case Op.ADD:
                result = o1 + o2
            case Op.SUB:
                result = o1 - o2
            case Op.MUL:
                result = o1 * o2
            case Op.SHL:
                result = o1 << (o2 & 31)
            case Op.SHR:
                result = o1 >> (o2 & 31)
            case Op.AND:
                result = o1 & o2
            case Op.RDV:
                result = row_value(o1, o2 & 7)
            case _:
                result = None
        if result is not None:
            sig = result & MASK
            if instruction.flags & 31:
                registers[instruction.flags & 31] = sig
        elif op == Op.MARK:
            sig = o1
        elif op == Op.BNE and o1 != o2 or op == Op.BLT and o1 < o2:
            following = o3
        elif op.queue != Queue.SYS and op not in NOPS.values():
            sig = signature(pc, operands)
        out.append((op.queue, pc, instruction, operands, sig))
        if op == Op.HALT:
            return out
        pc = following


class Writer:
    """Random programs that no schedule can deadlock or overflow.

    Tokens are chosen so that executing the instructions one by one in program order always finds them; then every
    schedule that keeps the order within each queue makes progress. Between two barriers no pair of queues holds plus
    receives more than 15.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.program: list[Instruction] = []
        self.tokens: Counter = Counter()
        self.budget: Counter = Counter()

    def masks(self, queue: Queue, density: float) -> dict:
        wait = frozenset(b for b in Queue if self.tokens[b, queue] and self.random.random() < 0.6)
        for b in wait:
            self.tokens[b, queue] -= 1
        release = frozenset(
            q for q in Queue if self.budget[queue, q] < 15 and self.random.random() < density
        )  # fmt: skip
        for q in release:
            self.tokens[queue, q] += 1
            self.budget[queue, q] += 1
        return {"wait": wait, "release": release}

    def operand(self):
        if self.random.random() < 0.3:
            return Operand(self.random.choice([0, 1, 5, 31, (1 << 27) - 1]))
        return Operand(self.random.getrandbits(27), self.random.randrange(21))

    def emit(self, op: Op, operands=(), flags: int = 0, tokens: bool = True, density: float = 0.3):
        masks = self.masks(op.queue, density) if tokens else {}
        self.program.append(Instruction(op, tuple(operands), flags, **masks))

    def alu(self, tokens: bool = True):
        op = self.random.choice([Op.SET, Op.ADD, Op.SUB, Op.MUL, Op.SHL, Op.SHR, Op.AND, Op.RDV])
        rd = self.random.randrange(21)
        if op == Op.RDV:
            operands = [Operand(self.random.randrange(VECTOR_ROWS)), self.operand()]
        else:
            operands = [self.operand() for _ in range(1 if op == Op.SET else 2)]
        self.emit(op, operands, rd, tokens)

    def unit(self):
        queue = self.random.choice(list(UNITS))
        if self.random.random() < 0.2:
            return self.emit(NOPS[queue])
        op = self.random.choice(UNITS[queue])
        flags = self.random.getrandbits(4) << 8
        if op == Op.MV:
            flags |= self.random.choice([4, 8])
        elif op == Op.VEC:
            flags |= self.random.randrange(8)
        self.emit(op, [self.operand() for _ in range(7)], flags)

    def drain(self):
        """Take all tokens left and wait for everything."""
        while any(self.tokens.values()):
            for queue in Queue:
                wait = frozenset(b for b in Queue if self.tokens[b, queue])
                for b in wait:
                    self.tokens[b, queue] -= 1
                if wait:
                    self.program.append(Instruction(NOPS[queue], wait=wait))
        self.program.append(Instruction(Op.BAR))
        self.budget.clear()

    def body(self, length: int):
        for _ in range(length):
            kind = self.random.random()
            if kind < 0.55:
                self.unit()
            elif kind < 0.8:
                self.alu()
            elif kind < 0.85:
                self.emit(Op.MARK, [self.operand()])
            elif kind < 0.9:
                self.emit(Op.SYS_NOP)
            else:
                skipped = self.random.randrange(1, 4)
                target = len(self.program) + 1 + skipped
                pair = [self.operand(), self.operand()]
                if self.random.random() < 0.3:
                    pair[1] = pair[0]
                self.emit(self.random.choice([Op.BNE, Op.BLT]), [*pair, target])
                for _ in range(skipped):
                    self.alu(tokens=False)

    def write(self, blocks: int, length: int) -> list[Instruction]:
        for _ in range(blocks):
            if self.random.random() < 0.5:
                self.emit(Op.SET, [0], 25, tokens=False)
                target = len(self.program)
                self.body(length)
                self.drain()
                self.emit(Op.ADD, [Operand(1, 25)], 25, tokens=False)
                op = self.random.choice([Op.BNE, Op.BLT])
                self.emit(op, [Operand(0, 25), self.random.randrange(1, 5), target], tokens=False)
            else:
                self.body(length)
                self.drain()
        self.program.append(Instruction(Op.HALT))
        return self.program
