"""The SFU's sequencer: takes a VEC command, runs its microprogram, and issues one row a cycle with its addresses."""

from dataclasses import dataclass
from enum import IntEnum

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.isa import Command, Done, Error, ErrorCode, Op, Program
from headrace.hw.machine import Machine
from headrace.hw.sfu_programs import GROUPED, ROWS, STAY, TWICE_ROWS, Microprogram, microprograms
from headrace.hw.sfu_ucode import (
    ACCUMULATE_PACE, BLOCK_ROWS, DEPENDENT, DONE_STAGE, FIELDS, FLAT, LANES, QUIET, REPS_MAX, UOP_BITS,
    WAIT_AGE1, WAIT_AGE2, WAIT_AGE3, WAIT_NONE,
)  # fmt: skip

POINTER_BITS = 20
"""Of a walking pointer: a valid one is below 2**17 (rows) or 2**16 (half slices), one step adds at most 2**18."""
ROW_BITS = 18
"""Of a row number in a rep."""
OPERAND_BITS = 17
"""Pointers of 2**17 and more are past any VB or AB."""
AGE_BITS = 5

UopLayout = data.StructLayout(dict(FIELDS))


@dataclass(frozen=True, kw_only=True)
class SfuParameters:
    """Sizes of an Sfu; see `hw.machine` for the names. Both are powers of two."""

    vector_rows: int
    activation_slices: int

    def __post_init__(self):
        for name, limit in (("vector_rows", 1 << 17), ("activation_slices", 1 << 15)):
            value = getattr(self, name)
            if not 2 <= value <= limit or value & (value - 1):
                raise ValueError(f"{name} = {value}: a power of two in 2..{limit} is allowed")

    @classmethod
    def of(cls, machine: Machine) -> "SfuParameters":
        if machine.sfu.lanes != LANES:
            raise ValueError(f"sfu.lanes = {machine.sfu.lanes}: instruction set version 1 has {LANES} lanes")
        return cls(vector_rows=machine.buffers.vector_rows, activation_slices=machine.buffers.activation_slices)


class Issue(data.StructLayout):
    """One row as it enters the pipeline (stage 0)."""

    def __init__(self):
        super().__init__(
            {
                "valid": 1,
                "row": 5,  # of the block or, in REPS uops, the rep
                "rep": 4,
                "rep_row": ROW_BITS,
                "source": POINTER_BITS,  # VB row, or AB half slice
                "target": POINTER_BITS,
                "mask": LANES,  # of elements past n
                "first": 1,  # row of its rep
                "last": 1,
            }
        )


class State(IntEnum):
    IDLE = 0
    CHECK = 1
    RUN = 2
    DRAIN = 3


class SfuSequencer(wiring.Component):
    """Runs one command at a time; see hw/sfu_ucode.py for what a uop is and hw/sfu_timing.py for the exact cycles.

    Rows walk through (rep, row of the rep) with a pointer each for source and store. A loop's position (row, rep and
    the four pointers' reps) is kept for the start of its current block and moves on during its last uop.

    Errors, each instead of `done`: ILLEGAL (opcode or program), RANGE (a row past VB or AB, n = 0 or past VB, n of
    ROPE not a multiple of 16, reps not 1..16), found at the row itself, after which nothing more is issued; NAN, at
    the end of the command, so that RANGE comes before it.

    STALL_CAUSES: `dependency` waits for a result, `drain` for the pipeline to empty at the end of a command.
    """

    STALL_CAUSES = ("dependency", "drain")

    def __init__(self, parameters: SfuParameters, *, programs: tuple[Microprogram, ...] | None = None):
        self.parameters = parameters
        self.programs = microprograms() if programs is None else programs
        if len(self.programs) != len(Program):
            raise ValueError(f"{len(self.programs)} microprograms, but {len(Program)} VEC programs")
        for program in self.programs:
            if program.second_half and 3 in (program.uops[0].pointer, program.uops[0].store_pointer):
                raise ValueError(f"{program.name}: the first uop cannot use P3, which is computed while it starts")
        super().__init__(
            {
                "cmd": In(stream.Signature(Command())),
                "done": Out(Done()),
                "error": Out(Error()),
                "active": Out(1),
                "stall": Out(len(self.STALL_CAUSES)),
                # towards the pipeline
                "start": Out(1),  # a command begins: signature 0, no NaN
                "uop": Out(UopLayout),
                "issue": Out(Issue()),
                "extra": Out(32),  # o7
                "fresh": Out(1),  # flags[8]
                "nan": In(1),  # sticky, from OUTPUT_STAGE + 1 on
                "total": In(32),  # the command's signature so far
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        programs = self.programs
        entries = [sum(len(x.uops) for x in programs[:i]) for i in range(len(programs))]
        words = [uop.encode() for x in programs for uop in x.uops]

        def per_program(number, values, width, name):
            out = Signal(width, name=name)
            m.d.comb += out.eq(Array(Const(v, width) for v in values)[number[:3]])
            return out

        # ---- command ----
        command = Signal(Command())
        state = Signal(State)
        m.d.comb += [self.active.eq(state != State.IDLE), self.extra.eq(command.o7), self.fresh.eq(command.flags[8])]
        program = command.flags[:8]
        has_reps = per_program(program, [x.has_reps for x in programs], 1, "has_reps")
        entry = per_program(program, entries, 8, "entry")
        # What the operands come to, in registers from the cycle after CHECK on.
        rep_rows, last_row = Signal(ROW_BITS), Signal(ROW_BITS)
        last_rep = Signal(4)
        origins = [Signal(POINTER_BITS, name=f"origin_{i}") for i in range(4)]
        full_rows, tail = Signal(ROW_BITS), Signal(3)
        steps = []  # kind of each pointer
        for i in range(4):
            steps.append(per_program(program, [x.steps[i] for x in programs], 2, f"step_{i}"))

        # ---- microcode ----
        m.submodules.rom = rom = memory.Memory(shape=UOP_BITS, depth=len(words), init=words)
        port = rom.read_port(domain="sync")
        fetched = data.View(UopLayout, port.data)
        uop = Signal(UopLayout)
        uop_valid, ready, started = Signal(), Signal(), Signal()
        address, loop_address = Signal(8), Signal(8)  # of `uop`; of the loop's first
        final_block, first_block = Signal(), Signal()
        fetch = ~ready | (state == State.CHECK)
        m.d.comb += port.en.eq(fetch)
        with m.If(state == State.CHECK):
            m.d.comb += port.addr.eq(entry)
        with m.Elif(uop.loop_end & ~final_block):
            m.d.comb += port.addr.eq(loop_address)
        with m.Else():
            m.d.comb += port.addr.eq(address + 1)
        next_address = Signal(8)
        with m.If(fetch):
            m.d.sync += next_address.eq(port.addr)

        # ---- position of the block, walk of the uop ----
        block_row, block_rep, block_group = Signal(ROW_BITS), Signal(4), Signal(8)
        bases = [Signal(POINTER_BITS, name=f"base_{i}") for i in range(4)]
        row, rep, group, in_block = Signal(ROW_BITS), Signal(4), Signal(8), Signal(range(BLOCK_ROWS))
        source, target = Signal(POINTER_BITS), Signal(POINTER_BITS)
        pace = Signal(range(ACCUMULATE_PACE))

        flat = uop.mode == FLAT
        end_of_rep, final_rep = Signal(), Signal()
        m.d.comb += [end_of_rep.eq(row == last_row), final_rep.eq(rep == last_rep)]
        # 0 reps in a group give 255, which is never reached: the group does not end.
        group_ends, last_in_group = Signal(), Signal(8)
        m.d.sync += last_in_group.eq(command.o7[16:24] - 1)
        m.d.comb += group_ends.eq(group == last_in_group)

        # ---- waits ----
        ages = [Signal(AGE_BITS, name=f"age_{i}", init=(1 << AGE_BITS) - 1) for i in (1, 2, 3)]
        quiet = Signal(AGE_BITS, init=(1 << AGE_BITS) - 1)
        waited, starting = Signal(), Signal()

        def older(age):
            return Mux(age.all(), age, age + 1)

        with m.Switch(uop.wait):
            for code, age in zip((WAIT_AGE1, WAIT_AGE2, WAIT_AGE3), ages, strict=True):
                with m.Case(code):
                    m.d.comb += waited.eq(age >= DEPENDENT)
            for code, cycles in QUIET.items():
                with m.Case(code):
                    m.d.comb += waited.eq(~first_block | (quiet >= cycles))
            with m.Case(WAIT_NONE):
                m.d.comb += waited.eq(1)
        go, issue, advance, uop_ends = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            go.eq((state == State.RUN) & uop_valid & (started | waited)),
            starting.eq(go & ~started),
            issue.eq(go & (pace == 0)),
            advance.eq(go & (~uop.accumulate | (pace == ACCUMULATE_PACE - 1))),
            uop_ends.eq(
                advance
                & Mux(flat, (end_of_rep & final_rep) | (~uop.whole & (in_block == BLOCK_ROWS - 1)), final_rep)
            ),
            self.stall[0].eq((state == State.RUN) & uop_valid & ~go),
            self.stall[1].eq(state == State.DRAIN),
        ]
        with m.If(starting):
            m.d.sync += [started.eq(1), ages[0].eq(1), ages[1].eq(older(ages[0])), ages[2].eq(older(ages[1]))]
        with m.Else():
            m.d.sync += [age.eq(older(age)) for age in ages]
        m.d.sync += quiet.eq(Mux(issue, 1, older(quiet)))
        with m.If(go & uop.accumulate):
            m.d.sync += pace.eq(Mux(advance, 0, pace + 1))

        # ---- range of the row ----
        source_bad, target_bad, bad = Signal(), Signal(), Signal()
        vb_bits, ab_bits = exact_log2(p.vector_rows), exact_log2(2 * p.activation_slices)
        m.d.comb += [
            source_bad.eq(uop.memory & Mux(uop.int8, source[ab_bits:].any(), source[vb_bits:].any())),
            target_bad.eq((uop.store_vb & target[vb_bits:].any()) | (uop.store_ab & target[ab_bits:].any())),
            bad.eq(issue & (source_bad | target_bad)),
        ]

        # ---- issue ----
        past_full, past_all = row >= full_rows, row > full_rows
        tail_mask = ((Const((1 << LANES) - 1, LANES) << tail) & ((1 << LANES) - 1))[:LANES]
        m.d.comb += [
            self.uop.eq(uop),
            self.issue.valid.eq(issue & ~bad),
            self.issue.row.eq(Mux(flat, in_block, rep)),
            self.issue.rep.eq(rep),
            self.issue.rep_row.eq(row),
            self.issue.source.eq(source),
            self.issue.target.eq(target),
            self.issue.mask.eq(
                Mux(flat & past_full, Mux(past_all, Const((1 << LANES) - 1, LANES), tail_mask), 0)
            ),
            self.issue.first.eq(row == 0),
            self.issue.last.eq(end_of_rep),
        ]

        # ---- walk ----
        # What a pointer moves by at the end of a rep: its step, and back by the rep's rows. In registers, they
        # settle before the first rep of two rows or more can end.
        jumps = [Signal(POINTER_BITS, name=f"jump_{name}") for name in ("stay", "twice_rows", "grouped")]
        jump_stay, jump_twice_rows, jump_grouped = jumps
        m.d.sync += [
            jump_stay.eq(1 - rep_rows),
            jump_twice_rows.eq(1 + rep_rows),
            jump_grouped.eq(jump_stay + command.o7[:16]),
        ]

        def walked(pointer, kind):
            """A pointer one row on."""
            step = Signal(POINTER_BITS, name=f"{pointer.name}_step")
            with m.Switch(Mux(end_of_rep, kind, ROWS)):
                with m.Case(ROWS):
                    m.d.comb += step.eq(1)
                with m.Case(TWICE_ROWS):
                    m.d.comb += step.eq(jump_twice_rows)
                with m.Case(STAY):
                    m.d.comb += step.eq(jump_stay)
                with m.Case(GROUPED):
                    m.d.comb += step.eq(Mux(group_ends, jump_grouped, jump_stay))
            return (pointer + step)[:POINTER_BITS]

        kinds = Array(steps)
        with m.If(advance):
            m.d.sync += in_block.eq(in_block + 1)
            with m.If(flat):
                m.d.sync += [
                    row.eq(Mux(end_of_rep, 0, row + 1)),
                    source.eq(walked(source, kinds[uop.pointer])),
                    target.eq(walked(target, kinds[uop.store_pointer])),
                ]
                with m.If(end_of_rep):
                    m.d.sync += [rep.eq(rep + 1), group.eq(Mux(group_ends, 0, group + 1))]
                    with m.If(final_rep):
                        m.d.sync += final_block.eq(1)
            with m.Else():
                m.d.sync += [rep.eq(rep + 1), target.eq(target + 1)]
            with m.If(uop.loop_end):
                with m.If(end_of_rep):
                    for base, kind in zip(bases, steps, strict=True):
                        with m.Switch(kind):
                            with m.Case(ROWS):
                                m.d.sync += base.eq(base + rep_rows)
                            with m.Case(TWICE_ROWS):
                                m.d.sync += base.eq(base + (rep_rows << 1))
                            with m.Case(GROUPED):
                                m.d.sync += base.eq(base + Mux(group_ends, command.o7[:16], 0))
                with m.If(uop_ends):
                    m.d.sync += [
                        block_row.eq(Mux(end_of_rep, 0, row + 1)),
                        block_rep.eq(rep + end_of_rep),
                        block_group.eq(Mux(end_of_rep, Mux(group_ends, 0, group + 1), group)),
                        first_block.eq(0),
                    ]

        def rewind():
            """The position at the start of a loop."""
            return [
                block_row.eq(0), block_rep.eq(0), block_group.eq(0), first_block.eq(1), final_block.eq(0),
                *(base.eq(origin) for base, origin in zip(bases, origins, strict=True)),
            ]  # fmt: skip

        # ---- control ----
        take, fault = Signal(), Signal()
        m.d.comb += take.eq(
            (state == State.RUN) & ready & Mux(uop_valid, uop_ends & ~uop.loop_end & ~uop.last, 1)
        )
        with m.If(state == State.RUN):
            with m.If(~ready & uop_valid):
                m.d.sync += ready.eq(1)
            with m.If(uop_ends):
                m.d.sync += uop_valid.eq(0)
                # final_block is known by the end of the body's first uop, and a body has at least two.
                with m.If((uop.loop_end & final_block) | uop.whole):
                    m.d.sync += rewind()
                with m.If(uop.last & (~uop.loop_end | final_block)):
                    m.d.sync += state.eq(State.DRAIN)
            with m.If(take):
                m.d.sync += [
                    uop.eq(fetched), uop_valid.eq(1), ready.eq(0), started.eq(0), address.eq(next_address),
                    pace.eq(0), in_block.eq(0),
                ]  # fmt: skip
                with m.If(fetched.loop_start):
                    m.d.sync += loop_address.eq(next_address)
                with m.If(fetched.mode == FLAT):
                    m.d.sync += [
                        row.eq(block_row), rep.eq(block_rep), group.eq(block_group),
                        source.eq(Array(bases)[fetched.pointer] + block_row),
                        target.eq(Array(bases)[fetched.store_pointer] + block_row),
                    ]  # fmt: skip
                with m.Else():
                    m.d.sync += [
                        row.eq(0), rep.eq(0),
                        source.eq(Array(origins)[fetched.pointer] + fetched.offset),
                        target.eq(Array(origins)[fetched.store_pointer]),
                    ]  # fmt: skip
            with m.If(bad):
                m.d.sync += [fault.eq(1), uop_valid.eq(0), state.eq(State.DRAIN)]

        # ---- acceptance, operands, completion ----
        m.d.comb += [self.cmd.ready.eq(state == State.IDLE), self.start.eq(state == State.CHECK)]
        m.d.sync += [self.done.valid.eq(0), self.error.valid.eq(0)]
        with m.If((state == State.IDLE) & self.cmd.valid):
            m.d.sync += [command.eq(self.cmd.payload), state.eq(State.CHECK)]
        operands = [command.o1, command.o2, command.o3, command.o4]
        n_rows = Signal(ROW_BITS)
        m.d.comb += n_rows.eq(((command.o5[: ROW_BITS + 3] + 15) >> 4) << 1)
        illegal, outside = Signal(), Signal()
        past = [
            per_program(program, [i in x.pointers for x in programs], 1, f"uses_{i}") & operands[i][OPERAND_BITS:].any()
            for i in range(4)
        ]
        whole_blocks = per_program(program, [x.whole_blocks for x in programs], 1, "whole_blocks")
        m.d.comb += [
            illegal.eq((command.op != Op.VEC) | program[3:].any()),
            outside.eq(
                Cat(past).any()
                | (command.o5 == 0)
                | (command.o5 > LANES * p.vector_rows)
                | (whole_blocks & command.o5[:4].any())
                | (has_reps & ((command.o6 == 0) | (command.o6 > REPS_MAX)))
            ),
        ]
        with m.If(state == State.CHECK):
            m.d.sync += [
                rep_rows.eq(n_rows), last_row.eq(n_rows - 1), full_rows.eq(command.o5[3:]), tail.eq(command.o5[:3]),
                last_rep.eq(Mux(has_reps, command.o6 - 1, 0)),
                ready.eq(1), uop_valid.eq(0), fault.eq(0),
                block_row.eq(0), block_rep.eq(0), block_group.eq(0), first_block.eq(1), final_block.eq(0),
                self.done.pc.eq(command.pc), self.error.pc.eq(command.pc),
            ]  # fmt: skip
            for i, operand in enumerate(operands):
                ab = per_program(program, [x.ab_pointer == i for x in programs], 1, f"ab_{i}")
                value = Mux(ab, operand[:OPERAND_BITS] << 1, operand[:OPERAND_BITS])
                m.d.sync += [origins[i].eq(value), bases[i].eq(value)]
            with m.If(command.op == Op.VEC_NOP):
                m.d.sync += [state.eq(State.IDLE), self.done.valid.eq(1), self.done.sig.eq(0)]
            with m.Elif(illegal):
                m.d.sync += [state.eq(State.IDLE), self.error.valid.eq(1), self.error.code.eq(ErrorCode.ILLEGAL)]
            with m.Elif(outside):
                m.d.sync += [state.eq(State.IDLE), self.error.valid.eq(1), self.error.code.eq(ErrorCode.RANGE)]
            with m.Else():
                m.d.sync += state.eq(State.RUN)
        second_half = per_program(program, [x.second_half for x in programs], 1, "second_half")
        checked = Signal()
        m.d.sync += checked.eq(state == State.CHECK)
        with m.If(checked & second_half):
            # One cycle after the others, when rep_rows is known; the first uop's pointer has just been taken.
            value = operands[0][:OPERAND_BITS] + rep_rows
            m.d.sync += [origins[3].eq(value), bases[3].eq(value)]
        with m.If((state == State.DRAIN) & (quiet == DONE_STAGE - 1)):
            m.d.sync += state.eq(State.IDLE)
            with m.If(fault | self.nan):
                m.d.sync += [
                    self.error.valid.eq(1),
                    self.error.code.eq(Mux(fault, ErrorCode.RANGE, ErrorCode.NAN)),
                ]
            with m.Else():
                m.d.sync += [self.done.valid.eq(1), self.done.sig.eq(self.total)]
        return m

