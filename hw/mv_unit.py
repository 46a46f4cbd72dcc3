"""MvUnit: the matrix-vector engine, y = W x over a weight stream (docs/machine.md, sections 2, 3 and 7)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from headrace.hw.activation_buffer import SliceReadPort
from headrace.hw.decode_row import row_sources
from headrace.hw.decode_unit import DecodeUnit, MvSizes
from headrace.hw.dsp48e2 import dsp_sources
from headrace.hw.dsp_chain import chain_sources
from headrace.hw.isa import SCALES_FLAG_BIT, Command, Done, Error, ErrorCode, Op
from headrace.hw.machine import BLOCK, Machine
from headrace.hw.mv_array import MvArray
from headrace.hw.mv_writer import MvWriter
from headrace.hw.ram import ram_sources
from headrace.hw.scale_lane import lane_sources
from headrace.hw.scale_unit import ScaleUnit
from headrace.hw.vector_buffer import RowReadStream, VectorBuffer

COMMANDS = 4
"""Commands waiting at each of the stages decode, issue, scale, write."""

MAX_SLICES = 133_144 // BLOCK
"""A longer sum of products of magnitude 127**2 could leave int32 (docs/contract.md)."""


def mv_sources(*, simulation: bool) -> dict[str, str]:
    """Verilog beside the text of `MvUnit`: shared modules and the RAM; with `simulation`, the DSP48E2 model."""
    shared = ram_sources() | row_sources() | chain_sources() | lane_sources()
    return shared | dsp_sources() if simulation else shared


class MvUnit(wiring.Component):
    """Executes MV and MV_NOP commands in order; several overlap, each in another stage.

    `vb_read` fetches s_a (lane 0 of row o3) when the command arrives, `ab_read` the activations, never waiting;
    `vb_write` takes the results, row by row in order.

    Rate: one memory word per cycle in steady state, across stripes and commands, as long as a stripe brings the scale
    unit at least `ScaleUnit.INITIATION_INTERVAL` words. An MV occupies the front for `FRONT_CYCLES` (7), an MV_NOP for 3;
    the first word is taken `START_CYCLES` (4) after the command, beside the fetch of s_a.

    Errors: ILLEGAL for another opcode or a width that is not 4 or 8 bits; RANGE where slices, rows or s_a lie past
    their buffers, or stripes or slices are 0, or the sum could leave int32; NAN where s_a is NaN. (A NaN from a channel
    scale alone is no error: rows past a cache's length may hold any bytes, and no program reads them.) After an error
    no command is taken.

    `active` covers a command from its acceptance to `done`. In every active cycle in which no word is taken exactly
    one bit of `stall` is set: no_weights (a word is wanted), write_wait (nothing can go on until the vector buffer
    takes a row), no_credit (a word waits for room behind it), drain (all words taken, results on their way).
    """

    STALL_CAUSES = ("no_weights", "write_wait", "no_credit", "drain")
    LATENCY = DecodeUnit.LATENCY + MvArray.LATENCY
    """Cycles from the last word of a stripe to its results at the scale unit, with nothing in the way."""
    INITIATION_INTERVAL = 1
    """Cycles per memory word."""
    FRONT_CYCLES = 5 + VectorBuffer.READ_LATENCY
    """Cycles that an MV occupies the front, with nothing in the way: IDLE, CHECK, HAND, REQUEST, GIVE, and SCALE until s_a is there."""
    START_CYCLES = 4
    """Cycles from a command's acceptance to the first word taken: IDLE, CHECK, HAND, then the descriptor queue of the decode unit."""

    def __init__(self, *, machine: Machine):
        self.machine = machine
        self.sizes = sizes = MvSizes(machine)
        self.decode = DecodeUnit(machine=machine)
        self.array = MvArray(machine=machine)
        self.scale = ScaleUnit(machine=machine)
        self.writer = MvWriter(machine=machine)
        super().__init__(
            {
                "cmd": In(stream.Signature(Command())),
                "done": Out(Done()),
                "error": Out(Error()),
                "active": Out(1),
                "stall": Out(len(self.STALL_CAUSES)),
                "weights": In(stream.Signature(sizes.word_bits)),
                "ab_read": Out(SliceReadPort(machine.buffers.activation_slices)),
                "vb_read": Out(RowReadStream(machine.buffers.vector_rows)),
                "vb_write": Out(stream.Signature(self.writer.row_layout)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.decode = decode = self.decode
        m.submodules.array = array = self.array
        m.submodules.scale = scale = self.scale
        m.submodules.writer = writer = self.writer
        self._front(m)

        wiring.connect(m, scale.rows, writer.rows)
        m.d.comb += [
            decode.weights.payload.eq(self.weights.payload),
            decode.weights.valid.eq(self.weights.valid),
            self.weights.ready.eq(decode.weights.ready),
            decode.room.eq(array.room),
            array.reserve.eq(decode.reserve),
            array.write.eq(decode.write),
            array.last.eq(decode.last),
            decode.scale_room.eq(scale.scale_room),
            scale.scale_take.eq(decode.scale_take),
            scale.scale_write.eq(decode.scale_write),
            scale.scale_data.eq(decode.scale_data),
            scale.result_available.eq(array.result_available),
            array.result_read.eq(scale.result_read),
            array.result_group.eq(scale.result_group),
            array.result_pop.eq(scale.result_pop),
            scale.result_q.eq(array.result_q),
            self.ab_read.valid.eq(array.ab_read.valid),
            self.ab_read.slice.eq(array.ab_read.slice),
            array.ab_read.data.eq(self.ab_read.data),
            self.vb_write.payload.eq(writer.vb_write.payload),
            self.vb_write.valid.eq(writer.vb_write.valid),
            writer.vb_write.ready.eq(self.vb_write.ready),
            self.done.eq(writer.done),
        ]
        m.d.comb += [getattr(array, f"lane{k}").eq(getattr(decode, f"lane{k}")) for k in range(BLOCK)]

        # Accepted and not yet retired: at most COMMANDS waiting, one being written, one at the front.
        commands = Signal(range(COMMANDS + 3))
        accepted = Signal()
        m.d.comb += [accepted.eq(self.cmd.valid & self.cmd.ready), self.active.eq(commands != 0)]
        with m.If(accepted ^ writer.done.valid):
            m.d.sync += commands.eq(Mux(accepted, commands + 1, commands - 1))

        no_weights, write_wait, no_credit, drain = (self.stall[i] for i in range(len(self.STALL_CAUSES)))
        stuck = self.vb_write.valid & ~self.vb_write.ready
        with m.If(self.active):
            with m.If(decode.run & ~self.weights.valid):
                m.d.comb += no_weights.eq(1)
            with m.Elif(~(decode.run & decode.weights.ready)):
                m.d.comb += [
                    write_wait.eq(stuck),
                    no_credit.eq(~stuck & decode.run),
                    drain.eq(~stuck & ~decode.run),
                ]
        return m

    def _front(self, m):
        """Checks a command, hands its parts to the stages, fetches s_a."""
        machine, sizes = self.machine, self.sizes
        queues = {}
        for name, consumer in (("decode", self.decode), ("issue", self.array), ("scale", self.scale), ("write", self.writer)):
            queue = SyncFIFO(width=len(consumer.desc.payload.as_value()), depth=COMMANDS)
            m.submodules[f"{name}_queue"] = queue
            m.d.comb += [
                consumer.desc.payload.eq(queue.r_data),
                consumer.desc.valid.eq(queue.r_rdy),
                queue.r_en.eq(consumer.desc.ready),
            ]
            queues[name] = queue

        command = Signal(Command(), reset_less=True)
        bits = command.flags[:4]
        scales = command.flags[SCALES_FLAG_BIT]
        slices, stripes = command.o5, command.o4
        stripe_shift = (sizes.rows8).bit_length() - 1
        # Operands of 32 bits: whatever lies above the width of a legal one is out of range, and sums cannot wrap.
        legal = Signal()
        in_range = Signal()
        nop = Signal()
        slices_end = Signal(32 + 1)
        rows_end = Signal(32 + stripe_shift + 1)
        m.d.comb += [
            nop.eq(command.op == Op.MV_NOP),
            legal.eq((command.op == Op.MV) & ((bits == 4) | (bits == 8))),
            slices_end.eq(command.o1 + slices),
            rows_end.eq(command.o2 + (stripes << stripe_shift)),
            in_range.eq(
                (slices_end <= machine.buffers.activation_slices)
                & (rows_end <= machine.buffers.vector_rows)
                & (command.o3 < machine.buffers.vector_rows)
                & (slices != 0)
                & (stripes != 0)
                & (slices <= MAX_SLICES)
            ),
        ]
        is_nop, is_legal, is_in_range = Signal(), Signal(), Signal()
        s_a = Signal(32, reset_less=True)

        def payload(name, consumer, **fields):
            view = Signal(consumer.desc_layout, name=f"{name}_desc")
            m.d.comb += [getattr(view, field).eq(value) for field, value in fields.items()]
            m.d.comb += queues[name].w_data.eq(view)

        payload("decode", self.decode, bits8=bits[3], scales=scales, stripes=stripes, slices=slices)
        payload("issue", self.array, base=command.o1, stripes=stripes, slices=slices)
        payload("scale", self.scale, stripes=stripes, scales=scales, s_a=s_a)
        payload("write", self.writer, row=command.o2, count=Mux(is_nop, 0, stripes << stripe_shift), pc=command.pc)

        def fail(code):
            m.d.sync += [self.error.valid.eq(1), self.error.code.eq(code), self.error.pc.eq(command.pc)]

        m.d.sync += self.error.valid.eq(0)
        m.d.comb += self.vb_read.request.payload.eq(command.o3)
        heads = ("decode", "issue", "write")
        with m.FSM(name="front"):
            with m.State("IDLE"):
                m.d.comb += self.cmd.ready.eq(1)
                with m.If(self.cmd.valid):
                    m.d.sync += command.eq(self.cmd.payload)
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += [is_nop.eq(nop), is_legal.eq(legal), is_in_range.eq(in_range)]
                m.next = "HAND"
            with m.State("HAND"):
                room = queues["write"].w_rdy & queues["decode"].w_rdy & queues["issue"].w_rdy
                with m.If(is_nop):
                    with m.If(queues["write"].w_rdy):
                        m.d.comb += queues["write"].w_en.eq(1)
                        m.next = "IDLE"
                with m.Elif(~is_legal):
                    fail(ErrorCode.ILLEGAL)
                    m.next = "FAILED"
                with m.Elif(~is_in_range):
                    fail(ErrorCode.RANGE)
                    m.next = "FAILED"
                with m.Elif(room):
                    m.d.comb += [queues[name].w_en.eq(1) for name in heads]
                    m.next = "REQUEST"
            with m.State("REQUEST"):
                m.d.comb += self.vb_read.request.valid.eq(1)
                with m.If(self.vb_read.request.ready):
                    m.next = "SCALE"
            with m.State("SCALE"):
                with m.If(self.vb_read.valid):
                    m.d.sync += s_a.eq(self.vb_read.data[:32])
                    m.next = "GIVE"
            with m.State("GIVE"):
                with m.If(s_a[23:31].all() & s_a[:23].any()):
                    fail(ErrorCode.NAN)
                    m.next = "FAILED"
                with m.Elif(queues["scale"].w_rdy):
                    m.d.comb += queues["scale"].w_en.eq(1)
                    m.next = "IDLE"
            with m.State("FAILED"):
                pass
