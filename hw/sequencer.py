"""The sequencer: evaluates operands, dispatches commands in program order, executes SYS instructions in place."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from headrace.hw.command_queue import QueuedCommand, Retire
from headrace.hw.fetch import PC_BITS, Fetched, Redirect
from headrace.hw.isa import IMMEDIATE_BITS, OPERANDS, REGISTERS, Error, ErrorCode, Op, Program, Queue
from headrace.hw.tokens import QUEUES

UNITS = len(Queue) - 1
"""Queues with a unit behind them: all but SYS."""


class RegisterWrite(data.StructLayout):
    def __init__(self):
        super().__init__({"valid": 1, "index": 5, "data": 32})


class RowResponse(data.StructLayout):
    """Answer of the vector buffer: one row, `valid` a fixed number of cycles after the request was accepted."""

    def __init__(self, bits: int):
        super().__init__({"valid": 1, "data": bits})


class State(enum.Enum, shape=3):
    ISSUE = 0
    MULTIPLY = 1
    READ_REQUEST = 2
    READ_RESPONSE = 3
    WRITE = 4
    BARRIER = 5


class Sequencer(wiring.Component):
    """Executes the instruction stream.

    Two stages. *Decode*: the instruction at ``instruction`` gets its seven operands imm27 + R[reg], all at once, and
    enters the register X. *Execute*: an instruction for a unit goes to ``push`` of its queue (``push_valid`` one-hot
    by queue, payload common); a SYS instruction takes its tokens (``wait``, ``ok``, ``take``), executes and retires
    (``retire``, in the cycle in which it completes). The decode stage does not move in the cycle in which a SYS
    instruction completes, so registers need no bypass.

    Cycles per instruction: 1 for a unit (queue not full); 2 for SET, ADD, SUB, SHL, SHR, AND, NOP, MARK and a branch
    not taken; 3 for a branch taken; 4 for MUL; 6 for RDV with a read latency of 2; BAR and HALT 2 + waiting.
    ``LATENCY`` is that of an instruction from fetch to dispatch.

    Errors (a pulse, with queue and PC; then ``halt`` must rise in the next cycle): ILLEGAL for an opcode that does not
    exist, LD_SYS, a width of MV not in ``widths``, or a VEC program that does not exist; RANGE for a branch
    taken to or a fetch at a PC past the program, or RDV past the vector buffer. Nothing of the instruction happens
    (tokens it waits for may have been taken).

    register_write: boot's own writes, only while no instruction executes. Register 0 is never written.
    activity: one bit per cause in ACTIVITY, exactly one set in every cycle.
    Cost: 32 x 32 bits of LUT RAM with seven read ports, 3 DSP48 (MUL), about 700 FF and 900 LUT.
    """

    LATENCY = 2
    INITIATION_INTERVAL = 1
    ACTIVITY = ("dispatch", "execute", "queue_full", "wait_token", "barrier", "fetch")

    def __init__(self, *, widths: tuple[int, ...], vector_rows: int, lanes: int):
        if not widths or set(widths) - {4, 8}:
            raise ValueError(f"widths = {widths}: some of 4 and 8 are allowed")
        if lanes & (lanes - 1) or lanes < 1:
            raise ValueError(f"lanes = {lanes}: it must be a power of two")
        self.widths, self.vector_rows, self.lanes = widths, vector_rows, lanes
        super().__init__(
            {
                "instruction": In(stream.Signature(Fetched())),
                "redirect": Out(Redirect()),
                "count": In(PC_BITS + 1),
                "push": Out(QueuedCommand()),
                "push_valid": Out(UNITS),
                "push_ready": In(UNITS),
                "wait": Out(QUEUES),
                "ok": In(1),
                "take": Out(1),
                "retire": Out(Retire()),
                "row_request": Out(stream.Signature(range(vector_rows))),
                "row_response": In(RowResponse(32 * lanes)),
                "drained": In(1),
                "register_write": In(RegisterWrite()),
                "halt": In(1),
                "error": Out(Error()),
                "error_queue": Out(3),
                "halted": Out(1),
                "waits_token": Out(1),
                "pc": Out(PC_BITS),
                "activity": Out(len(self.ACTIVITY)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        x, x_valid, x_past_end = Signal(QueuedCommand()), Signal(), Signal()
        command = x.command
        operand = [command[f"o{i}"] for i in range(1, OPERANDS + 1)]
        o1, o2, o3 = operand[:3]
        state = Signal(State)
        dispatch, complete, serial = Signal(), Signal(), Signal()

        # Decode: operands in parallel, one asynchronous read port of the register file each.
        m.submodules.registers = registers = Memory(shape=32, depth=REGISTERS, init=[])
        write = registers.write_port()
        word = self.instruction.payload.word
        advance = ~self.halt & ~self.redirect.valid & (~x_valid | dispatch)
        m.d.comb += self.instruction.ready.eq(advance)
        taken_in = Signal()
        m.d.comb += taken_in.eq(advance & self.instruction.valid)
        values = []
        for i in range(1, OPERANDS + 1):
            field = word[32 * i : 32 * i + 32]
            port = registers.read_port(domain="comb")
            m.d.comb += port.addr.eq(field[IMMEDIATE_BITS:])
            values.append(field[:IMMEDIATE_BITS] + port.data)
        with m.If(taken_in):
            m.d.sync += [
                command.pc.eq(self.instruction.payload.pc),
                command.op.eq(word[0:8]),
                x.wait.eq(word[8:13]),
                x.release.eq(word[13:18]),
                command.flags.eq(word[18:32]),
                x_past_end.eq(self.instruction.payload.past_end),
                *(register.eq(value) for register, value in zip(operand, values, strict=True)),
            ]
        with m.If(taken_in):
            m.d.sync += x_valid.eq(1)
        with m.Elif(dispatch | complete):
            m.d.sync += x_valid.eq(0)

        # What X holds.
        legal, writes = Signal(), Signal()
        width_legal = Signal()
        m.d.comb += width_legal.eq(0)
        for width in self.widths:
            with m.If(command.flags[0:4] == width):
                m.d.comb += width_legal.eq(1)
        with m.Switch(command.op):
            with m.Case(*(op for op in Op if op not in (Op.LD_SYS, Op.MV, Op.VEC))):
                m.d.comb += legal.eq(1)
            with m.Case(Op.MV):
                m.d.comb += legal.eq(width_legal)
            with m.Case(Op.VEC):
                m.d.comb += legal.eq(command.flags[0:8] < len(Program))
        queue = command.op[5:8]
        m.d.comb += serial.eq(queue == Queue.SYS)
        runs = x_valid & ~self.halt & legal & ~x_past_end

        # Dispatch to a unit's queue.
        m.d.comb += [
            self.push.eq(x),
            self.pc.eq(command.pc),
            self.push_valid.eq(Mux(runs & ~serial, 1 << queue[:2], 0)),
            dispatch.eq((self.push_valid & self.push_ready).any()),
        ]

        # SYS: execute in place.
        result, held = Signal(32), Signal(32)
        low, cross_0, cross_1 = Signal(32), Signal(32), Signal(32)
        taken, range_error = Signal(), Signal()
        issue = Signal()
        target = Signal(PC_BITS)
        redirect = Signal()
        with m.Switch(command.op):
            with m.Case(Op.SET):
                m.d.comb += [result.eq(o1), writes.eq(1)]
            with m.Case(Op.ADD):
                m.d.comb += [result.eq(o1 + o2), writes.eq(1)]
            with m.Case(Op.SUB):
                m.d.comb += [result.eq(o1 - o2), writes.eq(1)]
            with m.Case(Op.SHL):
                m.d.comb += [result.eq((o1 << o2[:5])[:32]), writes.eq(1)]
            with m.Case(Op.SHR):
                m.d.comb += [result.eq(o1 >> o2[:5]), writes.eq(1)]
            with m.Case(Op.AND):
                m.d.comb += [result.eq(o1 & o2), writes.eq(1)]
            with m.Case(Op.MUL):
                m.d.comb += [result.eq(held), writes.eq(1)]
            with m.Case(Op.RDV):
                m.d.comb += [result.eq(held), writes.eq(1), range_error.eq(o1 >= self.vector_rows)]
            with m.Case(Op.BNE):
                m.d.comb += taken.eq(o1 != o2)
            with m.Case(Op.BLT):
                m.d.comb += taken.eq(o1 < o2)
            with m.Case(Op.MARK):
                m.d.comb += result.eq(o1)
        with m.If(taken):
            m.d.comb += range_error.eq(o3 >= self.count)

        m.d.comb += [
            self.wait.eq(Mux(x_valid & serial, x.wait, 0)),
            issue.eq(runs & serial & ~range_error & (state == State.ISSUE)),
            self.take.eq(issue & self.ok),
            self.waits_token.eq(issue & ~self.ok),
            self.row_request.payload.eq(o1),
        ]
        lane = o2[: max(1, (self.lanes - 1).bit_length())] if self.lanes > 1 else 0
        lanes = Array(self.row_response.data.word_select(i, 32) for i in range(self.lanes))
        with m.Switch(state):
            with m.Case(State.ISSUE):
                with m.If(self.take):
                    with m.Switch(command.op):
                        with m.Case(Op.MUL):
                            m.d.sync += [
                                low.eq(o1[:16] * o2[:16]),
                                cross_0.eq(o1[:16] * o2[16:]),
                                cross_1.eq(o1[16:] * o2[:16]),
                                state.eq(State.MULTIPLY),
                            ]
                        with m.Case(Op.RDV):
                            m.d.sync += state.eq(State.READ_REQUEST)
                        with m.Case(Op.BAR, Op.HALT):
                            m.d.sync += state.eq(State.BARRIER)
                        with m.Default():
                            m.d.comb += complete.eq(1)
                            m.d.sync += [redirect.eq(taken), target.eq(o3)]
            with m.Case(State.MULTIPLY):
                high = (cross_0 + cross_1)[:16]
                m.d.sync += [held.eq(low + (high << 16)), state.eq(State.WRITE)]
            with m.Case(State.READ_REQUEST):
                m.d.comb += self.row_request.valid.eq(1)
                with m.If(self.row_request.ready):
                    m.d.sync += state.eq(State.READ_RESPONSE)
            with m.Case(State.READ_RESPONSE):
                with m.If(self.row_response.valid):
                    m.d.sync += [held.eq(lanes[lane]), state.eq(State.WRITE)]
            with m.Case(State.WRITE):
                m.d.comb += complete.eq(1)
                m.d.sync += state.eq(State.ISSUE)
            with m.Case(State.BARRIER):
                with m.If(self.drained & ~self.halt):
                    m.d.comb += [complete.eq(1), self.halted.eq(command.op == Op.HALT)]
                    m.d.sync += state.eq(State.ISSUE)
        with m.If(redirect):
            m.d.sync += redirect.eq(0)
        m.d.comb += [self.redirect.valid.eq(redirect), self.redirect.target.eq(target)]

        m.d.comb += [
            self.retire.valid.eq(complete),
            self.retire.pc.eq(command.pc),
            self.retire.sig.eq(result),
            self.retire.release.eq(x.release),
        ]
        with m.If(self.register_write.valid):
            m.d.comb += [
                write.en.eq(self.register_write.index != 0),
                write.addr.eq(self.register_write.index),
                write.data.eq(self.register_write.data),
            ]
        with m.Else():
            m.d.comb += [
                write.en.eq(complete & writes & (command.flags[:5] != 0)),
                write.addr.eq(command.flags[:5]),
                write.data.eq(result),
            ]

        # Errors. An opcode of no queue counts for SYS, and so does a PC past the program.
        m.d.comb += self.error.pc.eq(command.pc)
        failing = x_valid & ~self.halt & (state == State.ISSUE)
        with m.If(x_past_end):
            m.d.comb += [self.error.valid.eq(failing), self.error.code.eq(ErrorCode.RANGE), self.error_queue.eq(Queue.SYS)]
        with m.Elif(~legal):
            m.d.comb += [
                self.error.valid.eq(failing),
                self.error.code.eq(ErrorCode.ILLEGAL),
                self.error_queue.eq(Mux(queue > Queue.SYS, Queue.SYS, queue)),
            ]
        with m.Elif(range_error):
            m.d.comb += [self.error.valid.eq(failing), self.error.code.eq(ErrorCode.RANGE), self.error_queue.eq(Queue.SYS)]

        barrier = state == State.BARRIER
        busy = x_valid & serial & ~barrier & ~self.waits_token
        m.d.comb += self.activity.eq(
            Cat(
                dispatch,
                busy,
                x_valid & ~serial & ~dispatch,
                self.waits_token,
                x_valid & serial & barrier,
                ~x_valid,
            )
        )
        return m
