"""ScaleUnit: int32 results of stripes to rows of 8 float32."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.decode_unit import MvSizes
from headrace.hw.group_fifo import GroupFifo
from headrace.hw.machine import LANES, Machine
from headrace.hw.scale_lane import ScaleLane, lane_instance
from headrace.hw.stream_fifo import StreamFifo

ONE = 0x3F800000
SCALE_WORDS = 8
ROWS = 16
"""Finished rows, those on their way included: the float pipeline is free-running, so a row's place is reserved first."""


class ScaleUnit(wiring.Component):
    """y = f32(acc) (*) (s_a (*) s_w); s_w = 1 where the command has no channel scales.

    `desc` (stripes, scales, s_a) holds one command. Results come from the array's FIFO (`result_*`), channel scales
    from the word FIFO inside (`scale_*`, filled by the decode unit); scale_stripes stripes share a word, and a
    command's last word is dropped with its last stripe. `scale_lanes` results a cycle, 8 cycles a stripe (rows / 8
    from 64 rows on). `rows`: rows of 8 float32, in order.

    Latency from `result_available` to a row whose 8 results take n cycles: n + 2 + ScaleLane.LATENCY + 1 + 3.
    `INITIATION_INTERVAL` cycles per stripe. Cost: scale_lanes ScaleLane, LUT RAM of 8 words and 16 rows.
    """

    def __init__(self, *, machine: Machine):
        self.sizes = sizes = MvSizes(machine)
        self.LATENCY = self.latency_cycles(machine)
        self.INITIATION_INTERVAL = sizes.result_groups
        self.desc_layout = data.StructLayout({"stripes": sizes.stripe_bits, "scales": 1, "s_a": 32})
        self.width = width = 32 * sizes.scale_lanes
        self.words = GroupFifo(groups=sizes.word_bits // width, width=width, depth=SCALE_WORDS)
        super().__init__(
            {
                "desc": In(stream.Signature(self.desc_layout)),
                "scale_room": Out(1),
                "scale_take": In(1),
                "scale_write": In(1),
                "scale_data": In(sizes.word_bits),
                "result_available": In(1),
                "result_read": Out(1),
                "result_group": Out(range(sizes.result_groups)),
                "result_pop": Out(1),
                "result_q": In(width),
                "rows": Out(stream.Signature(32 * LANES)),
            }
        )

    @staticmethod
    def latency_cycles(machine: Machine) -> int:
        """From results at the FIFO to their row at `rows`, nothing in the way."""
        beats = LANES // MvSizes(machine).scale_lanes
        return beats + GroupFifo.LATENCY + ScaleLane.LATENCY + 1 + StreamFifo.LATENCY

    def elaborate(self, platform):
        m = Module()
        sizes, width = self.sizes, self.width
        m.submodules.words = words = self.words
        m.submodules.rows_fifo = rows = StreamFifo(32 * LANES, depth=ROWS, style="distributed")
        m.d.comb += [
            self.scale_room.eq(words.room),
            words.reserve.eq(self.scale_take),
            words.write.eq(self.scale_write),
            words.data.eq(self.scale_data),
        ]

        # ---- which results go ----
        beats = LANES // sizes.scale_lanes
        run = Signal()
        command = Signal(self.desc_layout)
        stripes_left = Signal(sizes.stripe_bits)
        group = Signal(range(sizes.result_groups))
        phase = Signal(range(max(2, sizes.scale_stripes)))
        places = Signal(range(ROWS + 1), init=ROWS)
        go = Signal()
        row_start = Signal()
        stripe_end = Signal()
        finish = Signal()
        m.d.comb += [
            row_start.eq((group & (beats - 1)) == 0),
            go.eq(run & self.result_available & (words.available | ~command.scales) & (~row_start | (places != 0))),
            stripe_end.eq(go & (group == sizes.result_groups - 1)),
            finish.eq(stripe_end & (stripes_left == 1)),
            self.desc.ready.eq(~run | finish),
            self.result_read.eq(go),
            self.result_group.eq(group),
            self.result_pop.eq(stripe_end),
            words.read.eq(go & command.scales),
            words.group.eq(Cat(group, phase) if sizes.scale_stripes > 1 else group),
            words.pop.eq(stripe_end & command.scales & (finish | (phase == sizes.scale_stripes - 1))),
        ]
        with m.If(go):
            m.d.sync += group.eq(group + 1)
        with m.If(stripe_end):
            m.d.sync += [
                stripes_left.eq(stripes_left - 1),
                phase.eq(Mux(phase == sizes.scale_stripes - 1, 0, phase + 1)),
            ]
        with m.If(self.desc.ready):
            new = self.desc.payload
            m.d.sync += [run.eq(self.desc.valid), command.eq(new), stripes_left.eq(new.stripes), phase.eq(0)]
        taken = Signal()
        m.d.comb += taken.eq(self.rows.valid & self.rows.ready)
        reserved = Signal()
        m.d.comb += reserved.eq(go & row_start)
        with m.If(reserved ^ taken):
            m.d.sync += places.eq(Mux(taken, places + 1, places - 1))

        # ---- the command's scale meets its results, two cycles after the read ----
        s_a, scales = command.s_a, command.scales
        for i in range(GroupFifo.LATENCY):
            s_a_next, scales_next = Signal(32, name=f"s_a{i}", reset_less=True), Signal(name=f"scales{i}", reset_less=True)
            m.d.sync += [s_a_next.eq(s_a), scales_next.eq(scales)]
            s_a, scales = s_a_next, scales_next
        results = []
        for lane in range(sizes.scale_lanes):
            y = Signal(32, name=f"y{lane}")
            m.submodules[f"lane{lane}"] = lane_instance(
                acc=self.result_q.word_select(lane, 32), s_a=s_a,
                s_w=Mux(scales, words.q.word_select(lane, 32), Const(ONE, 32)), y=y,
            )  # fmt: skip
            results.append(y)
        depth = GroupFifo.LATENCY + ScaleLane.LATENCY
        flow = Signal(depth)
        m.d.sync += flow.eq((flow << 1) | go)
        arrived = flow[depth - 1]

        # ---- rows ----
        row = Signal(32 * LANES, reset_less=True)
        beat = Signal(range(max(2, beats)))
        complete = Signal()
        m.d.sync += complete.eq(arrived & (beat == beats - 1))
        with m.If(arrived):
            m.d.sync += [row.eq(Cat(row[width:], *results)), beat.eq(Mux(beat == beats - 1, 0, beat + 1))]
        m.d.comb += [
            rows.i.payload.eq(row),
            rows.i.valid.eq(complete),
            self.rows.payload.eq(rows.o.payload),
            self.rows.valid.eq(rows.o.valid),
            rows.o.ready.eq(self.rows.ready),
        ]
        return m
