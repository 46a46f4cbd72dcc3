"""Sfu: the VEC queue's engine, eight float32 lanes that run microprograms over rows of the vector buffer."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.activation_buffer import ActivationBuffer, HalfWritePort, SliceReadPort
from headrace.hw.isa import Command, Done, Error
from headrace.hw.sfu_lane import ADDRESS_BITS, SfuLaneInstance, lane_sources
from headrace.hw.sfu_programs import Microprogram
from headrace.hw.sfu_reduction import ReductionTag, SfuReduction
from headrace.hw.sfu_sequencer import POINTER_BITS, SfuParameters, SfuSequencer, UopLayout
from headrace.hw.sfu_ucode import (
    ADDEND_STAGE, BLOCK_ROWS, B_CONSTANTS, COMMON_BEST, COMMON_LANE, C_CONSTANTS, LANES, OPERAND_STAGE, OUTPUT_STAGE,
    POST_CLAMP, POST_INDEX, READ_LATENCY, REDUCTION_STAGES, RESULT_STAGE, TAP_ABSMAX,
)  # fmt: skip
from headrace.hw.signature import fold, term
from headrace.hw.vector_buffer import RowReadPort, RowWritePort, VectorBuffer

assert {VectorBuffer.READ_LATENCY, ActivationBuffer.READ_LATENCY} == {READ_LATENCY}, "the lanes expect memory in time"
assert SfuReduction.LATENCY == REDUCTION_STAGES

ONE = 0x3F800000


class _Row(data.StructLayout):
    """What travels beside a row from its issue to its result."""

    def __init__(self):
        super().__init__(
            {
                "write": 1, "address": ADDRESS_BITS, "store_vb": 1, "store_ab": 1, "target": POINTER_BITS, "mask": LANES,
                "post": 2, "check": 1, "accumulate": 1, "parity": 1, "start": 1,
                "tap": 1, "first": 1, "last": 1, "rep": 4,
            }
        )  # fmt: skip


class Sfu(wiring.Component):
    """VEC programs of docs/machine.md, section 4, in the arithmetic of docs/contract.md.

    Eight lanes, one row a cycle, one command at a time. Cycles per command: `sfu_timing.sfu_cycles`, exact. `r_sfu` and
    `w_sfu` of both buffers are used in the cycle chosen here, they never wait.

    An output may be stored over an input row for row (equal pointers); other overlaps of the operands of one command
    give unspecified data. Errors: see `SfuSequencer`; a NaN is an error when it is stored, clipped, compared or
    quantised, and not when it stays in a vector register. After an error the rows stored by its command are
    unspecified.

    LATENCY (of a row, from read to write): OUTPUT_STAGE. Cost: 8 SfuLane, SfuReduction, 106 words of 62 bits of microcode.
    """

    STALL_CAUSES = SfuSequencer.STALL_CAUSES
    LATENCY = OUTPUT_STAGE

    def __init__(self, parameters: SfuParameters, *, programs: tuple[Microprogram, ...] | None = None):
        self.parameters = parameters
        self.programs = programs
        super().__init__(
            {
                "cmd": In(stream.Signature(Command())),
                "done": Out(Done()),
                "error": Out(Error()),
                "active": Out(1),
                "stall": Out(len(self.STALL_CAUSES)),
                "vb_read": Out(RowReadPort(parameters.vector_rows)),
                "vb_write": Out(RowWritePort(parameters.vector_rows)),
                "ab_read": Out(SliceReadPort(parameters.activation_slices)),
                "ab_write": Out(HalfWritePort(parameters.activation_slices)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        vb_bits = exact_log2(self.parameters.vector_rows)
        ab_bits = exact_log2(self.parameters.activation_slices)
        m.submodules.sequencer = sequencer = SfuSequencer(self.parameters, programs=self.programs)
        m.submodules.reduction = reduction = SfuReduction()
        lanes = [SfuLaneInstance() for _ in range(LANES)]
        for i, lane in enumerate(lanes):
            m.submodules[f"lane_{i}"] = lane
        wiring.connect(m, wiring.flipped(self.cmd), sequencer.cmd)
        m.d.comb += [
            self.done.eq(sequencer.done),
            self.error.eq(sequencer.error),
            self.active.eq(sequencer.active),
            self.stall.eq(sequencer.stall),
        ]
        uop, issue = sequencer.uop, sequencer.issue

        def delayed(value, layout, stages, name):
            """[value at stage 0, 1, ... stages]."""
            chain = [value]
            for stage in range(1, stages + 1):
                later = Signal(layout, name=f"{name}_{stage}")
                m.d.sync += later.eq(chain[-1])
                chain.append(later)
            return chain

        # ---- stage 0: reads, and the row's tag ----
        def register(number, scalar):
            return Cat(Mux(scalar, issue.rep, issue.row)[: (BLOCK_ROWS - 1).bit_length()], number)

        m.d.comb += [
            self.vb_read.valid.eq(issue.valid & uop.memory & ~uop.int8),
            self.vb_read.row.eq(issue.source[:vb_bits]),
            self.ab_read.valid.eq(issue.valid & uop.memory & uop.int8),
            self.ab_read.slice.eq(issue.source[1 : ab_bits + 1]),
            reduction.read.eq(issue.valid),
            reduction.read_rep.eq(issue.rep),
            reduction.extra.eq(sequencer.extra),
            reduction.fresh.eq(sequencer.fresh),
        ]
        mask = Signal(LANES)
        small = uop.gate & ~reduction.large.bit_select(issue.rep, 1)
        m.d.comb += mask.eq(issue.mask | small.replicate(LANES))
        row = Signal(_Row())
        valid = issue.valid
        m.d.comb += [
            row.write.eq(valid & uop.store_register),
            row.address.eq(
                Mux(
                    uop.accumulate,
                    register(Cat(uop.register[0] | issue.rep_row[0], uop.register[1:]), 1),
                    register(uop.register, 0),
                )
            ),
            row.store_vb.eq(valid & uop.store_vb),
            row.store_ab.eq(valid & uop.store_ab),
            row.target.eq(issue.target),
            # A masked lane of a sum adds +0, but its accumulator is not to be masked.
            row.mask.eq(Mux(uop.accumulate, 0, mask)),
            row.post.eq(uop.post),
            row.check.eq(
                valid
                & (uop.post != POST_INDEX)
                & (uop.store_vb | uop.store_ab | (uop.post == POST_CLAMP) | uop.tap_result)
            ),
            row.accumulate.eq(valid & uop.accumulate),
            row.parity.eq(issue.rep_row[0]),
            row.start.eq(~issue.rep_row[1:].any()),
            row.tap.eq(valid & uop.tap_result),
            row.first.eq(issue.first),
            row.last.eq(issue.last),
            row.rep.eq(issue.rep),
        ]
        rows = delayed(row, _Row(), OUTPUT_STAGE, "row")

        tag = Signal(ReductionTag())
        m.d.comb += [
            tag.kind.eq(Mux(valid & ~uop.tap_result, uop.tap, 0)),
            tag.first.eq(issue.first),
            tag.last.eq(issue.last),
            tag.rep.eq(issue.rep),
            tag.row.eq(issue.rep_row),
            tag.mask.eq(mask),
        ]
        tags = delayed(tag, ReductionTag(), OPERAND_STAGE, "tag")
        uops = delayed(uop, UopLayout, READ_LATENCY, "uop")
        masks = delayed(mask, LANES, READ_LATENCY, "mask")
        halves = delayed(issue.source[0], 1, READ_LATENCY, "half")

        # ---- READ_LATENCY: operands ----
        now = uops[READ_LATENCY]
        before = uops[READ_LATENCY - 1]
        b_constant, c_constant = Signal(32), Signal(32)
        m.d.sync += [
            b_constant.eq(_table(B_CONSTANTS)[before.b_constant]),
            c_constant.eq(_table(C_CONSTANTS)[before.c_constant]),
        ]
        vb_words = [self.vb_read.data[32 * i : 32 * i + 32] for i in range(LANES)]
        ab_bytes = [
            Mux(halves[-1], self.ab_read.data[64 + 8 * i : 72 + 8 * i], self.ab_read.data[8 * i : 8 * i + 8])
            for i in range(LANES)
        ]
        one_lane, a_common, b_common, c_common = (
            Signal(32, name=name) for name in ("one_lane", "a_common", "b_common", "c_common")
        )
        m.d.comb += [
            one_lane.eq(Array(vb_words)[sequencer.extra[:3]]),
            a_common.eq(
                Mux(
                    now.a_common == COMMON_BEST,
                    reduction.best,
                    Mux(now.a_common == COMMON_LANE, one_lane, Const(ONE, 32)),
                )
            ),
            b_common.eq(Mux(now.b_common == COMMON_BEST, reduction.best, b_constant)),
            c_common.eq(Mux(now.c_common == COMMON_BEST, reduction.best, c_constant)),
        ]
        addend_row, sum_row, out = rows[ADDEND_STAGE], rows[RESULT_STAGE], rows[OUTPUT_STAGE]
        for i, lane in enumerate(lanes):
            number = Signal(32, name=f"int8_{i}")
            m.d.comb += number.eq(_float_of_int8(m, ab_bytes[i], i))
            m.d.comb += [
                lane.read.eq(valid),
                lane.a_address.eq(register(uop.a_register, uop.a_scalar)),
                lane.b_address.eq(register(uop.b_register, uop.b_scalar)),
                lane.c_address.eq(register(uop.c_register, 0)),
                lane.memory.eq(Mux(now.int8, number, vb_words[i])),
                lane.memory_mask.eq(masks[-1][i]),
                lane.a_common.eq(a_common),
                lane.b_common.eq(b_common),
                lane.c_common.eq(c_common),
                lane.c_swapped.eq(Array(lanes[i ^ distance].c_register for distance in (0, 1, 2, 4))[now.swap]),
                lane.a_select.eq(now.a_select),
                lane.a_negate.eq(now.a_negate),
                lane.b_select.eq(now.b_select),
                lane.pre.eq(now.pre),
                lane.c_select.eq(now.c_select),
                lane.c_negate.eq(now.c_negate),
                lane.accumulate.eq(addend_row.accumulate),
                lane.first.eq(addend_row.start),
                lane.parity.eq(addend_row.parity),
                lane.sum_parity.eq(sum_row.parity),
                lane.sum_store.eq(sum_row.accumulate),
                lane.post.eq(sum_row.post),
                lane.mask.eq(sum_row.mask[i]),
                lane.check.eq(sum_row.check),
                lane.index.eq(reduction.index),
                lane.write.eq(sum_row.write),
                lane.write_address.eq(sum_row.address),
            ]

        # ---- reduction, of operands or of results ----
        late = Signal(ReductionTag())
        m.d.comb += [
            late.kind.eq(TAP_ABSMAX),
            late.first.eq(out.first),
            late.last.eq(out.last),
            late.rep.eq(out.rep),
            late.mask.eq(out.mask),
            reduction.tag.eq(Mux(out.tap, late, tags[OPERAND_STAGE])),
        ]
        for i, lane in enumerate(lanes):
            m.d.comb += reduction.values[i].eq(Mux(out.tap, lane.y, lane.a_operand))

        # ---- OUTPUT_STAGE: stores and their signature ----
        y_row = Cat(lane.y for lane in lanes)
        y_bytes = Cat(lane.y[:8] for lane in lanes)
        m.d.comb += [
            self.vb_write.valid.eq(out.store_vb),
            self.vb_write.row.eq(out.target[:vb_bits]),
            self.vb_write.data.eq(y_row),
            self.ab_write.valid.eq(out.store_ab),
            self.ab_write.slice.eq(out.target[1 : ab_bits + 1]),
            self.ab_write.half.eq(out.target[0]),
            self.ab_write.data.eq(y_bytes),
        ]
        folded, target = Signal(32), Signal(POINTER_BITS)
        stored = Signal()
        total, nan = Signal(32), Signal()
        m.d.sync += stored.eq(out.store_vb | out.store_ab)
        with m.If(out.store_vb | out.store_ab):
            # Of a row of eight words, or of the two words that eight bytes make.
            m.d.sync += [folded.eq(Mux(out.store_ab, fold(y_bytes), fold(y_row))), target.eq(out.target)]
        address = Signal(32)
        m.d.comb += address.eq(target)
        with m.If(sequencer.start):
            m.d.sync += [total.eq(0), nan.eq(0)]
        with m.Else():
            with m.If(stored):
                m.d.sync += total.eq(total + term(folded, address))
            with m.If(reduction.nan | Cat(lane.nan for lane in lanes).any()):
                m.d.sync += nan.eq(1)
        m.d.comb += [sequencer.total.eq(total), sequencer.nan.eq(nan)]
        return m


def _table(constants: dict[str, int]) -> Array:
    """Sixteen entries; those past the last constant are never selected."""
    values = list(constants.values())
    return Array(Const(values[i] if i < len(values) else 0, 32) for i in range(16))


def _float_of_int8(m, byte, lane: int):
    """float32 of -128 .. 127, exact: the leading one of the magnitude gives exponent and fraction."""
    magnitude = Signal(8, name=f"magnitude_{lane}")
    m.d.comb += magnitude.eq(Mux(byte[7], -byte, byte))
    choice = Const(0, 31)
    for top in range(8):
        fraction = Cat(Const(0, 23 - top), magnitude[:top])
        choice = Mux(magnitude[top], Cat(fraction, Const(127 + top, 8)), choice)
    return Cat(choice, byte[7])


def sfu_sources() -> dict[str, str]:
    """File name to text of the Verilog that a design with an `Sfu` needs beside its own."""
    return lane_sources()
