"""An emitter for programs: registers by name, regions by name, segments that synchronise themselves.

The compiler adds instructions in program order, in sequential meaning; segments end with a barrier, and `tokens` turns what each instruction
reads and writes into wait and release masks.
"""

from dataclasses import replace

from headrace.hw.isa import PROGRAM_FLAG_BIT, REGISTERS, SCALES_FLAG_BIT, Instruction, Op, Operand, Program
from headrace.mapping.tokens import Item, Region, loop, straight

ARGUMENT_REGISTERS = {"prompt_length": 1, "output_tokens": 2}
FIRST_FREE_REGISTER = 3


def vb(row: int, count: int) -> Region:
    return Region("vb", row, row + count)


def ab(slice_: int, count: int) -> Region:
    return Region("ab", slice_, slice_ + count)


def memory(name: str) -> Region:
    return Region("memory." + name)


class Emitter:
    """Collects a program. Operands are ints, register names, or (immediate, register name)."""

    def __init__(self, shared: tuple[tuple[str, ...], ...] = ()) -> None:
        """`shared` lists groups of names that live at different times and use one register."""
        self.program: list[Item] = []
        self._segment: list[Item] = []
        self._registers = dict(ARGUMENT_REGISTERS)
        self._next_register = FIRST_FREE_REGISTER
        for names in shared:
            number = self.register(names[0])
            self._registers.update(dict.fromkeys(names, number))
        self._label: str | None = None

    # Registers

    def register(self, name: str) -> int:
        if name not in self._registers:
            if self._next_register >= REGISTERS:
                raise ValueError(f"no register left for {name}")
            self._registers[name] = self._next_register
            self._next_register += 1
        return self._registers[name]

    def _operand(self, value) -> Operand:
        if isinstance(value, str):
            return Operand(0, self.register(value))
        if isinstance(value, tuple):
            return Operand(value[0], self.register(value[1]))
        return Operand(value)

    # Segments

    def _add(self, op, operands=(), *, flags=0, reads=(), writes=(), comment="", target=None) -> None:
        instruction = Instruction(op, tuple(self._operand(o) for o in operands), flags, comment=comment)
        item = Item(instruction, tuple(reads), tuple(writes), target=target, label=self._label)
        self._label = None
        self._segment.append(item)

    def label(self, name: str) -> None:
        """Names the next instruction; it must be the first of a segment, where every unit is idle."""
        if self._segment:
            raise ValueError(f"label {name} inside a segment")
        self._label = name

    def end_straight(self) -> None:
        """Close straight-line code with a barrier."""
        self.program += straight(self._segment)
        self._segment = []
        self.barrier()

    def end_loop(self, name: str, counter: str, limit) -> None:
        """Close a loop body that repeats while register `counter` (already advanced in the body) < `limit`; then a barrier."""
        self._add(Op.BLT, (counter, limit), target=name, comment=f"loop {name}")
        seeds, body, drains = loop(self._segment)
        self._segment = []
        body[0] = replace(body[0], label=name)
        self.program += [*seeds, *body, *drains]
        self.barrier()

    def barrier(self) -> None:
        self._bare(Op.BAR)

    def _bare(self, op, operands=(), target=None, comment="") -> None:
        """An instruction outside segments: every unit is idle around it."""
        instruction = Instruction(op, tuple(self._operand(o) for o in operands), comment=comment)
        self.program.append(Item(instruction, target=target, label=self._label))
        self._label = None

    def branch(self, op: Op, left, right, target: str) -> None:
        if self._segment:
            raise ValueError("a branch belongs between segments")
        self._bare(op, (left, right), target=target)

    def mark(self, identity) -> None:
        self._bare(Op.MARK, (identity,))

    def halt(self) -> None:
        self._bare(Op.HALT)

    def finish(self) -> list[Item]:
        """All items with branch targets filled in."""
        if self._segment or self._label:
            raise ValueError("the program ends inside a segment")
        place = {item.label: pc for pc, item in enumerate(self.program) if item.label}
        out = []
        for item in self.program:
            if item.target is not None:
                operands = (*item.instruction.operands[:2], Operand(place[item.target]))
                item = replace(item, instruction=replace(item.instruction, operands=operands))
            out.append(item)
        return out

    # SYS

    def alu(self, op: Op, register: str, left, right=0) -> None:
        self._add(op, (left, right), flags=self.register(register), comment=f"{register} = {op.name}")

    def set(self, register: str, value) -> None:
        self.alu(Op.SET, register, value)

    def read_vector(self, register: str, row, lane, region: Region) -> None:
        self._add(Op.RDV, (row, lane), flags=self.register(register), reads=(region,), comment=f"{register} = VB")

    # LD, ST, MV, VEC

    def load_weights(self, base, words, *, outer=1, stride=0, reads=(), comment="") -> None:
        self._add(Op.LDW, (base, words, outer, stride), reads=reads, comment=comment)

    def load_vector(self, base, words, row, region, *, outer=1, stride=0, reads=(), comment="") -> None:
        self._add(Op.LDV, (base, words, outer, stride, row), reads=reads, writes=(region,), comment=comment)

    def gather(self, base, count, stride, slice_, chunk, region, comment="") -> None:
        self._add(Op.LDA, (base, 1, count, stride, slice_, chunk), writes=(region,), comment=comment)

    def store(self, op: Op, operands, region: Region, section: str, comment="") -> None:
        self._add(op, operands, reads=(region,), writes=(memory(section),), comment=comment)

    def mv(self, act, out, scale_row, stripes, slices, *, bits, scales, reads, writes, comment="") -> None:
        flags = bits | scales << SCALES_FLAG_BIT
        self._add(Op.MV, (act, out, scale_row, stripes, slices), flags=flags, reads=reads, writes=writes, comment=comment)

    def vec(self, program: Program, operands, *, reads, writes, flag=False, comment="") -> None:
        flags = program | flag << PROGRAM_FLAG_BIT
        comment = comment or program.name.lower()
        self._add(Op.VEC, operands, flags=flags, reads=reads, writes=writes, comment=comment)
