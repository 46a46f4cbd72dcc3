"""LdUnit: the DMA engine of the LD queue, from all memory ports to raw FIFO, vector and activation buffer."""

import enum
from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.activation_buffer import SLICE_BITS, SliceWrite
from headrace.hw.axi import BEAT_BITS, BEAT_BYTES, ReadPort
from headrace.hw.burst_generator import BurstGenerator
from headrace.hw.isa import Command, Done, Error, ErrorCode, Op
from headrace.hw.machine import Machine
from headrace.hw.signature import fold, term
from headrace.hw.stream_fifo import StreamFifo
from headrace.hw.vector_buffer import RowWrite


def check_port_width(machine: Machine) -> None:
    """ISA version 1 has 32-byte beats and VB rows of 8 float32. Raises ValueError for other machines."""
    if machine.memory.port_bytes != BEAT_BYTES:
        raise ValueError(
            f"memory.port_bytes = {machine.memory.port_bytes}: only {BEAT_BYTES} is built (a beat is one VB row)"
        )
    if machine.sfu.lanes * 4 != BEAT_BYTES:
        raise ValueError(f"sfu.lanes = {machine.sfu.lanes}: only {BEAT_BYTES // 4} is built (a VB row is one beat)")


@dataclass(frozen=True, kw_only=True)
class LdParameters:
    """Sizes of an LdUnit; see `hw.machine` for the names."""

    ports: int
    vector_rows: int
    activation_slices: int
    memory_words: int
    """Words of the memory; loads past them are errors."""
    outstanding_bursts: int
    burst_beats: int
    queue_depth: int = 8
    """Commands whose data may be under way at once, a power of two of at least 4."""

    @classmethod
    def of(cls, machine: Machine, *, memory_words: int) -> "LdParameters":
        check_port_width(machine)
        return cls(
            ports=machine.memory.ports,
            vector_rows=machine.buffers.vector_rows,
            activation_slices=machine.buffers.activation_slices,
            memory_words=memory_words,
            outstanding_bursts=machine.memory.outstanding_bursts,
            burst_beats=machine.memory.burst_beats,
        )

    @property
    def word_bits(self) -> int:
        return BEAT_BITS * self.ports

    @property
    def port_fifo_beats(self) -> int:
        """Beats that each port's read FIFO holds: all that can be under way (at least 4)."""
        return max(4, self.outstanding_bursts * self.burst_beats)


class Kind(enum.IntEnum):
    """Low bits of the opcode: what becomes of the words."""

    NOP = Op.LD_NOP
    WEIGHTS = Op.LDW
    ROWS = Op.LDV
    SLICES = Op.LDA
    SYS = Op.LD_SYS


class _Load(data.StructLayout):
    """A command as the receiving half keeps it."""

    def __init__(self):
        super().__init__(
            {"pc": 16, "kind": 3, "base": 32, "words": 32, "count": 32, "stride": 32, "place": 32, "chunk": 32}
        )


class LdUnit(wiring.Component):
    """LDW, LDV, LDA and control's own LD_SYS (docs/machine.md, section 2).

    The issuing half (`BurstGenerator`) takes commands as they come and sends reads to all ports in lockstep, up to
    `port_fifo_beats` words and `queue_depth` commands ahead of the data. The receiving half joins one beat of every
    port to a word and routes it in command order:

    - LDW: to `weights`; LD_SYS: to `sys`; one word a cycle, also from one command to the next;
    - LDV: to `vb`, one row (a port's beat) a cycle, so a word takes P cycles;
    - LDA: to `ab`, one slice a word: bytes 16 * o6 of it; o2 is taken as 1.

    A word stays in its port FIFOs until its destination has taken it, so a slow destination stops the issue and
    never the ports (`r.ready` is always high).

    `done` comes 2 cycles after the last unit of data was accepted, which it is then visible to readers of the
    buffers. Zero words, zero runs and NOP complete without data. Signatures: docs/machine.md, section 6.

    Errors: ILLEGAL (opcode), RANGE (memory, VB row, AB slice, chunk), MEMORY (a response other than OKAY). After
    one the unit neither issues nor delivers anything until reset.

    STALL_CAUSES (at most one bit a cycle): `memory` waits for data, `raw_fifo` for `weights` or `sys`, `buffer` for
    VB's or AB's write port.

    LATENCY: cycles from a command to its first AR, and from the last port's R beat to the output.
    Cost (Yosys, xcup, nano): 1737 FF, 1647 LUT, 112 CARRY4, 16 RAM32M16, 8 RAMB36 (P * 257 * port_fifo_beats bits).
    """

    STALL_CAUSES = ("memory", "raw_fifo", "buffer")
    LATENCY = BurstGenerator.LATENCY + StreamFifo.LATENCY
    INITIATION_INTERVAL = 1

    def __init__(self, parameters: LdParameters):
        self.parameters = parameters
        super().__init__(
            {
                "cmd": In(stream.Signature(Command())),
                "done": Out(Done()),
                "error": Out(Error()),
                "active": Out(1),
                "stall": Out(len(self.STALL_CAUSES)),
                "mem": Out(ReadPort()).array(parameters.ports),
                "weights": Out(stream.Signature(parameters.word_bits)),
                "sys": Out(stream.Signature(parameters.word_bits)),
                "vb": Out(stream.Signature(RowWrite(parameters.vector_rows))),
                "ab": Out(stream.Signature(SliceWrite(parameters.activation_slices))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command = self.cmd.payload
        dead = Signal()
        accept = Signal()

        # Issue. Both halves take a command in the same cycle.
        m.submodules.bursts = bursts = BurstGenerator(
            ports=p.ports, burst_beats=p.burst_beats, capacity=p.port_fifo_beats, memory_words=p.memory_words
        )
        m.submodules.loads = loads = StreamFifo(_Load(), depth=p.queue_depth, style="distributed")
        legal = Signal()
        words = Signal(32)
        m.d.comb += [
            legal.eq(command.op <= max(Kind)),
            # LDA's o2 is 1 by definition; NOP moves nothing whatever its operands hold.
            words.eq(Mux(command.op == Kind.SLICES, 1, Mux(command.op == Kind.NOP, 0, command.o2))),
            self.cmd.ready.eq(bursts.runs.ready & loads.i.ready & ~dead),
            accept.eq(self.cmd.valid & self.cmd.ready & legal),
            bursts.runs.valid.eq(self.cmd.valid & loads.i.ready & ~dead & legal),
            bursts.runs.payload.base.eq(command.o1),
            bursts.runs.payload.words.eq(words),
            bursts.runs.payload.count.eq(command.o3),
            bursts.runs.payload.stride.eq(command.o4),
            bursts.runs.payload.pc.eq(command.pc),
            loads.i.valid.eq(accept),
            loads.i.payload.pc.eq(command.pc),
            loads.i.payload.kind.eq(command.op),
            loads.i.payload.base.eq(command.o1),
            loads.i.payload.words.eq(words),
            loads.i.payload.count.eq(command.o3),
            loads.i.payload.stride.eq(command.o4),
            loads.i.payload.place.eq(command.o5),
            loads.i.payload.chunk.eq(command.o6),
        ]

        # Ports. Credits leave room for every beat that was asked for.
        beats, faults = [], []
        joined = 1
        pop = Signal()
        for index, port in enumerate(self.mem):
            m.submodules[f"fifo{index}"] = fifo = StreamFifo(BEAT_BITS + 1, depth=p.port_fifo_beats)
            m.d.comb += [
                port.ar.valid.eq(bursts.ar[index].valid),
                port.ar.payload.eq(bursts.ar[index].payload),
                bursts.ar[index].ready.eq(port.ar.ready),
                fifo.i.valid.eq(port.r.valid),
                fifo.i.payload.eq(Cat(port.r.payload.data, port.r.payload.resp != 0)),
                port.r.ready.eq(fifo.i.ready),
                fifo.o.ready.eq(pop),
            ]
            beats.append(fifo.o.payload[:BEAT_BITS])
            faults.append(fifo.o.payload[BEAT_BITS])
            joined = joined & fifo.o.valid
        m.d.comb += bursts.returned.eq(pop)
        word = Cat(beats)

        # Receive: the current command and where its next word came from and goes to.
        busy = Signal()
        load = Signal(_Load())
        address = Signal(32)
        run_base = Signal(32)
        left = Signal(32)
        count = Signal(32)
        place = Signal(32)
        empty = Signal()
        part = Signal(range(max(2, p.ports)))
        available = Signal()
        moved = Signal()
        finish = Signal()
        last_part = (load.kind != Kind.ROWS) | (part == p.ports - 1)
        m.d.comb += [
            loads.o.ready.eq(~busy | finish),
            available.eq(busy & ~empty & joined & ~dead),
            pop.eq(moved & last_part),
            finish.eq(busy & ~dead & (empty | (pop & (left == 1) & (count == 1)))),
        ]
        with m.If(pop):
            with m.If(left == 1):
                m.d.sync += [
                    address.eq(run_base + load.stride),
                    run_base.eq(run_base + load.stride),
                    left.eq(load.words),
                    count.eq(count - 1),
                ]
            with m.Else():
                m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        with m.If(moved):
            m.d.sync += place.eq(place + 1)
            with m.If(load.kind == Kind.ROWS):
                m.d.sync += part.eq(Mux(last_part, 0, part + 1))
        with m.If(loads.o.valid & loads.o.ready):
            new = loads.o.payload
            m.d.sync += [
                busy.eq(1),
                load.eq(new),
                address.eq(new.base),
                run_base.eq(new.base),
                left.eq(new.words),
                count.eq(new.count),
                place.eq(new.place),
                empty.eq((new.words == 0) | (new.count == 0)),
            ]
        with m.Elif(finish):
            m.d.sync += busy.eq(0)

        # Route.
        row = Signal(BEAT_BITS)
        piece = Signal(SLICE_BITS)
        with m.If(load.kind == Kind.ROWS):
            with m.Switch(part):
                for index, beat in enumerate(beats):
                    with m.Case(index):
                        m.d.comb += row.eq(beat)
        with m.If(load.kind == Kind.SLICES):
            with m.Switch(load.chunk[: exact_log2(2 * p.ports)]):
                for index in range(2 * p.ports):
                    with m.Case(index):
                        m.d.comb += piece.eq(word[SLICE_BITS * index : SLICE_BITS * (index + 1)])
        fault = Signal()
        outside = Signal()
        m.d.comb += [
            fault.eq(Cat(faults).any()),
            outside.eq(
                ((load.kind == Kind.ROWS) & (place >= p.vector_rows))
                | ((load.kind == Kind.SLICES) & ((place >= p.activation_slices) | (load.chunk >= 2 * p.ports)))
            ),
        ]
        good = available & ~fault & ~outside
        routes = {Kind.WEIGHTS: self.weights, Kind.SYS: self.sys, Kind.ROWS: self.vb, Kind.SLICES: self.ab}
        for kind, out in routes.items():
            m.d.comb += out.valid.eq(good & (load.kind == kind))
            with m.If(out.valid & out.ready):
                m.d.comb += moved.eq(1)
        m.d.comb += [
            self.weights.payload.eq(word),
            self.sys.payload.eq(word),
            self.vb.payload.row.eq(place),
            self.vb.payload.data.eq(row),
            self.ab.payload.slice.eq(place),
            self.ab.payload.data.eq(piece),
        ]

        # Retire: one stage folds the unit of data, the next adds it up.
        unit = Signal(32)
        unit_address = Signal(32)
        unit_valid = Signal()
        unit_last = Signal()
        unit_pc = Signal(16)
        total = Signal(32)
        sum_ = Signal(32)
        m.d.sync += [unit_valid.eq(moved), unit_last.eq(finish)]
        with m.If(moved):
            with m.Switch(load.kind):
                with m.Case(Kind.ROWS):
                    m.d.sync += [unit.eq(fold(row)), unit_address.eq(place)]
                with m.Case(Kind.SLICES):
                    m.d.sync += [unit.eq(fold(piece)), unit_address.eq(place)]
                with m.Default():
                    m.d.sync += [unit.eq(fold(word)), unit_address.eq(address)]
        with m.If(finish):
            m.d.sync += unit_pc.eq(load.pc)
        m.d.comb += total.eq(sum_ + Mux(unit_valid, term(unit, unit_address), 0))
        m.d.sync += self.done.valid.eq(unit_last)
        with m.If(unit_valid | unit_last):
            m.d.sync += sum_.eq(Mux(unit_last, 0, total))
        with m.If(unit_last):
            m.d.sync += [self.done.pc.eq(unit_pc), self.done.sig.eq(total)]

        # Commands inside: the FIFO, the receiver and the retiring stage.
        inside = Signal(range(p.queue_depth + 4))
        m.d.sync += inside.eq(inside + accept - unit_last)
        m.d.comb += [
            self.active.eq(inside != 0),
            self.stall[0].eq(busy & ~empty & ~joined),
            self.stall[1].eq((self.weights.valid & ~self.weights.ready) | (self.sys.valid & ~self.sys.ready)),
            self.stall[2].eq((self.vb.valid & ~self.vb.ready) | (self.ab.valid & ~self.ab.ready)),
        ]

        # Errors: one pulse, then silence.
        m.d.sync += self.error.valid.eq(0)
        with m.If(~dead):
            with m.If(available & (fault | outside)):
                m.d.sync += [
                    dead.eq(1),
                    self.error.valid.eq(1),
                    self.error.code.eq(Mux(fault, ErrorCode.MEMORY, ErrorCode.RANGE)),
                    self.error.pc.eq(load.pc),
                ]
            with m.Elif(bursts.error):
                m.d.sync += [
                    dead.eq(1),
                    self.error.valid.eq(1),
                    self.error.code.eq(ErrorCode.RANGE),
                    self.error.pc.eq(bursts.error_pc),
                ]
            with m.Elif(self.cmd.valid & self.cmd.ready & ~legal):
                m.d.sync += [
                    dead.eq(1),
                    self.error.valid.eq(1),
                    self.error.code.eq(ErrorCode.ILLEGAL),
                    self.error.pc.eq(command.pc),
                ]
        return m
