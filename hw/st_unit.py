"""StUnit: the ST queue's engine, from vector and activation buffer to memory in single-beat writes."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from headrace.hw.activation_buffer import SLICE_BITS, SliceReadStream
from headrace.hw.axi import BEAT_BITS, BEAT_BYTES, WritePort
from headrace.hw.isa import Command, Done, Error, ErrorCode, Op
from headrace.hw.ld_unit import check_port_width
from headrace.hw.machine import Machine
from headrace.hw.signature import fold, term
from headrace.hw.stream_fifo import StreamFifo
from headrace.hw.vector_buffer import RowReadStream, VectorBuffer

FIFO_BEATS = 16


@dataclass(frozen=True, kw_only=True)
class StParameters:
    """Sizes of an StUnit; see `hw.machine` for the names."""

    ports: int
    stripe_rows: int
    vector_rows: int
    activation_slices: int
    memory_words: int
    """Words of the memory; stores past them are errors."""
    outstanding_writes: int = 64
    """Writes without a response, over all ports."""

    @classmethod
    def of(cls, machine: Machine, *, memory_words: int) -> "StParameters":
        check_port_width(machine)
        return cls(
            ports=machine.memory.ports,
            stripe_rows=machine.stripe_rows,
            vector_rows=machine.buffers.vector_rows,
            activation_slices=machine.buffers.activation_slices,
            memory_words=memory_words,
        )


class _Place(data.StructLayout):
    """Where the data of a read request go: `shift` counts units (4-byte floats or 16-byte chunks) within the beat."""

    def __init__(self):
        super().__init__({"beat": 32, "shift": 3, "low": 1})


class _Write(data.StructLayout):
    """One single-beat write; bytes without strobe are 0."""

    def __init__(self):
        super().__init__({"data": BEAT_BITS, "strb": BEAT_BYTES, "beat": 32})


class StUnit(wiring.Component):
    """STV, STS, STK, STT (docs/machine.md, section 2), one command at a time.

    Each item is one buffer read and one write of one beat: STV a row; STS a float (4 strobes); STK a slice (16
    strobes); STT two neighbouring channels, bytes d and d + 1 for even d, which share a beat because o1, o5 and o7
    are even (2 strobes). Beat b goes to port b mod P at address (b div P) * 32. An item is the unit of the
    signature, with its unstrobed bytes 0.

    Rate: one item a cycle. A command starts when the one before has completed: all its B responses are in.

    Errors: ILLEGAL (opcode), RANGE (VB row, AB slice, memory, byte lane of STT past 15, an odd o1, o5 or o7 of
    STT), MEMORY (a response other than OKAY); after one, nothing more is written until reset.

    STALL_CAUSES (at most one bit a cycle): `buffer` waits for a read port, `memory` for a write port or responses.

    LATENCY: cycles from a command to its first AW. Cost (Yosys, xcup, nano): 2273 FF, 1325 LUT, 83 CARRY4, 23 RAM32M16 (16 x 320 bits).
    """

    STALL_CAUSES = ("buffer", "memory")
    LATENCY = 2 + VectorBuffer.READ_LATENCY + StreamFifo.LATENCY + 1
    INITIATION_INTERVAL = 1

    def __init__(self, parameters: StParameters):
        if parameters.stripe_rows < 2 or parameters.stripe_rows & (parameters.stripe_rows - 1):
            raise ValueError(f"stripe_rows = {parameters.stripe_rows}: a power of two of at least 2 is allowed")
        self.parameters = parameters
        super().__init__(
            {
                "cmd": In(stream.Signature(Command())),
                "done": Out(Done()),
                "error": Out(Error()),
                "active": Out(1),
                "stall": Out(len(self.STALL_CAUSES)),
                "vb": Out(RowReadStream(parameters.vector_rows)),
                "ab": Out(SliceReadStream(parameters.activation_slices)),
                "mem": Out(WritePort()).array(parameters.ports),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        new = self.cmd.payload
        command = Signal(Command())
        running = Signal()
        dead = Signal()
        is_stv, is_sts, is_stk, is_stt = (Signal(name=f"is_{op.name.lower()}") for op in (Op.STV, Op.STS, Op.STK, Op.STT))
        m.d.comb += [
            flag.eq(command.op == op)
            for flag, op in ((is_stv, Op.STV), (is_sts, Op.STS), (is_stk, Op.STK), (is_stt, Op.STT))
        ]

        # Items: source row or slice, and unit address (beats, floats or chunks), for heads of `length` items each.
        issuing = Signal()
        source = Signal(32)
        place = Signal(32)
        head = Signal(32)  # place of the head's first item
        stripe = Signal(32)  # STT: place of the stripe's first item
        index = Signal(32)  # item within the head
        length = Signal(32)
        heads = Signal(32)
        head_step = Signal(32)
        request = Signal()
        last_item = Signal()
        pairs_per_stripe = p.stripe_rows // 2
        stripe_end = (index & (pairs_per_stripe - 1)) == pairs_per_stripe - 1
        step = Signal(32)
        m.d.comb += [
            head_step.eq(head + command.o5),
            last_item.eq(index == length - 1),
        ]
        with m.If(is_stv):
            m.d.comb += step.eq(1)
        with m.Elif(is_sts):
            m.d.comb += step.eq(command.o5)
        with m.Elif(is_stk):
            m.d.comb += step.eq(p.stripe_rows)
        with m.Else():
            m.d.comb += step.eq(2)
        with m.If(request):
            with m.If(last_item):
                m.d.sync += [index.eq(0), heads.eq(heads - 1), place.eq(head_step), head.eq(head_step), stripe.eq(head_step)]
                with m.If(heads == 1):
                    m.d.sync += issuing.eq(0)
            with m.Else():
                m.d.sync += [index.eq(index + 1), place.eq(place + step)]
                with m.If(is_stt & stripe_end):
                    m.d.sync += [place.eq(stripe + command.o7), stripe.eq(stripe + command.o7)]
            with m.If(is_sts):
                m.d.sync += source.eq(source + command.o4)
            with m.Elif(~is_stt | (index[:3] == 7)):
                m.d.sync += source.eq(source + 1)

        # Start: derived sizes take one cycle after the command.
        start = Signal()
        with m.If(self.cmd.valid & self.cmd.ready):
            m.d.sync += [command.eq(new), start.eq(1), running.eq(1)]
        with m.If(start):
            m.d.sync += [
                start.eq(0),
                source.eq(command.o2),
                place.eq(command.o1),
                head.eq(command.o1),
                stripe.eq(command.o1),
                index.eq(0),
                length.eq(Mux(is_stt, command.o3 << 3, command.o3)),
                heads.eq(Mux(is_stk | is_stt, command.o4, 1)),
                issuing.eq((command.op != Op.ST_NOP) & (command.o3 != 0) & ((command.o4 != 0) | is_stv | is_sts)),
            ]
        m.d.comb += self.cmd.ready.eq(~running & ~dead)

        # Checks, on the item about to be read.
        beat = Signal(32)
        unit_limit = p.memory_words * p.ports
        outside = Signal()
        odd = is_stt & (command.o1[0] | command.o5[0] | command.o7[0] | (command.o6 > 15))
        m.d.comb += [
            beat.eq(Mux(is_stv, place, Mux(is_sts, place >> 3, place >> 1))),
            outside.eq(
                (beat >= unit_limit) | odd
                | Mux(is_stv | is_sts, source >= p.vector_rows, source >= p.activation_slices)
            ),
        ]  # fmt: skip

        # Read requests, with room for their data in the write FIFO.
        m.submodules.fifo = fifo = StreamFifo(_Write(), depth=FIFO_BEATS, style="distributed")
        room = Signal(range(FIFO_BEATS + 1), init=FIFO_BEATS)
        pop = Signal()
        go = Signal()
        from_vb = is_stv | is_sts
        m.d.comb += [
            go.eq(issuing & ~outside & ~dead & (room != 0)),
            self.vb.request.valid.eq(go & from_vb),
            self.vb.request.payload.eq(source),
            self.ab.request.valid.eq(go & ~from_vb),
            self.ab.request.payload.eq(source),
            request.eq(go & Mux(from_vb, self.vb.request.ready, self.ab.request.ready)),
        ]
        m.d.sync += room.eq(room - request + pop)

        # Where the data go travels beside the read.
        target = Signal(_Place())
        low = Signal(3)  # STT: byte pair of the slice
        targets = [target]
        pairs = [low]
        m.d.comb += [
            target.beat.eq(beat),
            target.shift.eq(Mux(is_sts, place[:3], place[0])),
            low.eq(index[:3]),
        ]
        for stage in range(VectorBuffer.READ_LATENCY):
            targets.append(Signal(_Place(), name=f"target{stage}"))
            pairs.append(Signal(3, name=f"pair{stage}"))
            m.d.sync += [targets[-1].eq(targets[-2]), pairs[-1].eq(pairs[-2])]
        target, pair = targets[-1], pairs[-1]

        # Form the beat: the data at every place it could have, then the strobes' bytes of it.
        arrived = Signal()
        write = Signal(_Write())
        write_valid = Signal()
        strobes = Signal(BEAT_BYTES)
        spread = Signal(BEAT_BITS)
        byte_pair = Signal(16)
        m.d.comb += arrived.eq(self.vb.valid | self.ab.valid)
        with m.Switch(pair):
            for i in range(8):
                with m.Case(i):
                    m.d.comb += byte_pair.eq(self.ab.data[16 * i : 16 * i + 16])
        with m.If(is_stv):
            m.d.comb += [spread.eq(self.vb.data), strobes.eq(-1)]
        with m.Elif(is_sts):
            m.d.comb += [
                spread.eq(self.vb.data[:32].replicate(8)),
                strobes.eq(Cat(((target.shift == i).replicate(4)) for i in range(8))),
            ]
        with m.Elif(is_stk):
            m.d.comb += [
                spread.eq(self.ab.data.replicate(2)),
                strobes.eq(Cat(((target.shift[0] == i).replicate(SLICE_BITS // 8)) for i in range(2))),
            ]
        with m.Else():
            lane = Cat((command.o6[:4] == i) for i in range(16))
            m.d.comb += [
                spread.eq(Cat(byte_pair[:8].replicate(16), byte_pair[8:].replicate(16))),
                strobes.eq(Cat(lane, lane)),
            ]
        m.d.sync += write_valid.eq(arrived)
        with m.If(arrived):
            m.d.sync += [
                write.data.eq(Cat(Mux(strobes[i], spread[8 * i : 8 * i + 8], 0) for i in range(BEAT_BYTES))),
                write.strb.eq(strobes),
                write.beat.eq(target.beat),
            ]
        total = Signal(32)
        m.d.comb += [fifo.i.valid.eq(write_valid), fifo.i.payload.eq(write)]
        with m.If(write_valid):
            m.d.sync += total.eq(total + term(fold(write.data), write.beat))
        with m.If(start):
            m.d.sync += total.eq(0)

        # Dispatch to the ports: AW and W of one beat wait in registers of their port.
        out = fifo.o.payload
        port_bits = ceil_log2(p.ports)
        selected = out.beat[:port_bits] if port_bits else Const(0, 1)
        unanswered = Signal(range(p.outstanding_writes + 1))
        may_send = Signal()
        m.d.comb += may_send.eq(fifo.o.valid & ~dead & (unanswered != p.outstanding_writes))
        answers, faults = [], []
        for number, port in enumerate(self.mem):
            aw_valid, w_valid = Signal(name=f"aw_valid_{number}"), Signal(name=f"w_valid_{number}")
            address = Signal(32, name=f"aw_line_{number}")
            payload = Signal(BEAT_BITS, name=f"w_data_{number}")
            strobe = Signal(BEAT_BYTES, name=f"w_strb_{number}")
            take = Signal(name=f"take_{number}")
            m.d.comb += take.eq(
                may_send & (selected == number) & (~aw_valid | port.aw.ready) & (~w_valid | port.w.ready)
            )
            with m.If(take):
                m.d.comb += pop.eq(1)
                m.d.sync += [address.eq(out.beat >> port_bits), payload.eq(out.data), strobe.eq(out.strb)]
            m.d.sync += [aw_valid.eq(take | (aw_valid & ~port.aw.ready)), w_valid.eq(take | (w_valid & ~port.w.ready))]
            m.d.comb += [
                port.aw.valid.eq(aw_valid),
                port.aw.payload.addr.eq(address << exact_log2(BEAT_BYTES)),
                port.w.valid.eq(w_valid),
                port.w.payload.data.eq(payload),
                port.w.payload.strb.eq(strobe),
                port.w.payload.last.eq(1),
                port.b.ready.eq(1),
            ]
            answers.append(port.b.valid)
            faults.append(port.b.valid & (port.b.payload.resp != 0))
        m.d.comb += fifo.o.ready.eq(pop)
        m.d.sync += unanswered.eq(unanswered + pop - sum(answers))

        # Completion: nothing left to issue, every slot of the FIFO free again, every write answered.
        complete = Signal()
        m.d.comb += complete.eq(running & ~start & ~issuing & (room == FIFO_BEATS) & (unanswered == 0) & ~dead)
        m.d.sync += self.done.valid.eq(complete)
        with m.If(complete):
            m.d.sync += [running.eq(0), self.done.pc.eq(command.pc), self.done.sig.eq(total)]
        m.d.comb += [
            self.active.eq(running),
            self.stall[0].eq(go & ~request),
            self.stall[1].eq(running & ~start & ~go & ~complete),
        ]

        known = Cat(is_stv, is_sts, is_stk, is_stt, command.op == Op.ST_NOP).any()
        code = Signal(8)
        with m.If(Cat(faults).any()):
            m.d.comb += code.eq(ErrorCode.MEMORY)
        with m.Elif(start & ~known):
            m.d.comb += code.eq(ErrorCode.ILLEGAL)
        with m.Elif(issuing & outside):
            m.d.comb += code.eq(ErrorCode.RANGE)
        m.d.sync += self.error.valid.eq(0)
        with m.If((code != 0) & ~dead):
            m.d.sync += [dead.eq(1), self.error.valid.eq(1), self.error.code.eq(code), self.error.pc.eq(command.pc)]
        return m
