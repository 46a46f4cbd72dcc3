"""DecodeUnit: memory words to weight slices and channel scales (docs/machine.md, section 3)."""

import enum

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from headrace.hw.decode_row import row_instance
from headrace.hw.machine import BLOCK, META_BITS, Machine


class Kind(enum.IntEnum):
    """What the next word is."""

    SCALE = 0
    META = 1
    CODE = 2


class MvSizes:
    """Widths and counts that the parts of the matrix-vector engine share, derived from one `Machine`."""

    def __init__(self, machine: Machine):
        self.rows = machine.stripe_rows
        self.word_bits = machine.word_bits
        self.meta_groups = machine.meta_groups_per_word
        self.scale_stripes = machine.stripes_per_scale_word
        self.parts4 = self.rows * BLOCK * 4 // machine.word_bits
        """Words of a 4-bit slice: 1 or 2."""
        self.parts = 2 * self.parts4
        """Words of an 8-bit slice; slices are stored in as many parts of rows."""
        self.part_rows = self.rows // self.parts
        self.rows8 = self.rows // 8
        """Vector-buffer rows of a stripe."""
        self.slice_bits = ceil_log2(machine.buffers.activation_slices + 1)
        self.stripe_bits = ceil_log2(machine.buffers.vector_rows // self.rows8 + 1)
        self.row_bits = max(1, ceil_log2(machine.buffers.vector_rows))
        self.ab_bits = max(1, ceil_log2(machine.buffers.activation_slices))
        self.scale_lanes = min(8, self.rows8)
        """Results scaled per cycle. A stripe takes 8 cycles (rows / 8 from 64 rows on), the time in which 8-bit
        slices of 64 columns arrive where a word has 8 * rows bytes."""
        self.result_groups = self.rows // self.scale_lanes


class DecodeUnit(wiring.Component):
    """One word per cycle; per-command parameters from `desc` (bits8, scales, stripes, slices).

    A word of codes or metadata is taken where it may be stored: `room` says that the weight FIFO has a slot for one
    more slice (`reserve` takes it with the slice's first word), `scale_room` the same for `scale_take`.

    `lane{k}` holds weight k of every row, row r in bits 8r .. 8r+7; `write` says which parts (rows p * R/parts ..) are
    new, `last` that the slice is complete. `scale_write` accompanies `scale_data`.

    Nothing stalls after a word is taken. Latency from word to `lane` 5 cycles (`LATENCY`), to `scale_data` 1.
    Initiation interval 1 word; commands follow each other without a gap if `desc` is valid in time.
    `run`: a command is being decoded, so a word is wanted.
    """

    LATENCY = 5
    INITIATION_INTERVAL = 1

    def __init__(self, *, machine: Machine):
        self.machine = machine
        self.sizes = sizes = MvSizes(machine)
        self.desc_layout = data.StructLayout(
            {"bits8": 1, "scales": 1, "stripes": sizes.stripe_bits, "slices": sizes.slice_bits}
        )
        super().__init__(
            {
                "desc": In(stream.Signature(self.desc_layout)),
                "weights": In(stream.Signature(sizes.word_bits)),
                "run": Out(1),
                "room": In(1),
                "reserve": Out(1),
                "write": Out(sizes.parts),
                "last": Out(1),
                "scale_room": In(1),
                "scale_take": Out(1),
                "scale_write": Out(1),
                "scale_data": Out(sizes.word_bits),
            }
            | {f"lane{k}": Out(8 * sizes.rows) for k in range(BLOCK)}
        )

    def elaborate(self, platform):
        m = Module()
        sizes = self.sizes
        part_bits = ceil_log2(sizes.parts)
        group_bits = max(1, ceil_log2(sizes.meta_groups))
        phases = 2 * sizes.meta_groups

        # ---- what the next word is ----
        run = Signal()
        kind = Signal(Kind)
        command = Signal(self.desc_layout)
        stripes_left = Signal(sizes.stripe_bits)
        slices_left = Signal(sizes.slice_bits)
        part = Signal(part_bits)
        phase = Signal(range(phases))
        scale_phase = Signal(range(max(2, sizes.scale_stripes)))
        take = Signal()
        part_last = Signal()
        slice_end = Signal()
        stripe_end = Signal()
        finish = Signal()
        is_code = kind == Kind.CODE
        m.d.comb += [
            self.run.eq(run),
            self.weights.ready.eq(
                run & Mux(is_code, self.room | (part != 0), (kind == Kind.META) | self.scale_room)
            ),
            take.eq(self.weights.valid & self.weights.ready),
            part_last.eq(part == Mux(command.bits8, sizes.parts - 1, sizes.parts4 - 1)),
            slice_end.eq(take & is_code & part_last),
            stripe_end.eq(slice_end & (slices_left == 1)),
            finish.eq(stripe_end & (stripes_left == 1)),
            self.desc.ready.eq(~run | finish),
            self.reserve.eq(take & is_code & (part == 0)),
            self.scale_take.eq(take & (kind == Kind.SCALE)),
        ]
        first_of_slice = Mux(command.bits8, Kind.CODE, Kind.META)
        with m.If(take):
            with m.Switch(kind):
                with m.Case(Kind.SCALE):
                    m.d.sync += kind.eq(first_of_slice)
                with m.Case(Kind.META):
                    m.d.sync += kind.eq(Kind.CODE)
                with m.Default():
                    m.d.sync += part.eq(Mux(part_last, 0, part + 1))
        with m.If(slice_end):
            m.d.sync += [slices_left.eq(slices_left - 1), phase.eq(phase + 1)]
            with m.If(phase == phases - 1):
                m.d.sync += [phase.eq(0), kind.eq(first_of_slice)]
        with m.If(stripe_end):
            scale_last = scale_phase == sizes.scale_stripes - 1
            m.d.sync += [
                slices_left.eq(command.slices),
                phase.eq(0),
                stripes_left.eq(stripes_left - 1),
                scale_phase.eq(Mux(scale_last, 0, scale_phase + 1)),
                kind.eq(Mux(command.scales & scale_last, Kind.SCALE, first_of_slice)),
            ]
        with m.If(self.desc.ready):
            new = self.desc.payload
            m.d.sync += [
                run.eq(self.desc.valid),
                command.eq(new),
                stripes_left.eq(new.stripes),
                slices_left.eq(new.slices),
                part.eq(0),
                phase.eq(0),
                scale_phase.eq(0),
                kind.eq(Mux(new.scales, Kind.SCALE, Mux(new.bits8, Kind.CODE, Kind.META))),
            ]

        # ---- stage A: the word, and what it is ----
        moving = Signal()
        word_a = Signal(sizes.word_bits, reset_less=True)
        code_a = Signal()
        meta_a = Signal()
        scale_a = Signal()
        m.d.sync += [code_a.eq(take & is_code), meta_a.eq(take & (kind == Kind.META)), scale_a.eq(self.scale_take)]
        flags = data.StructLayout({"is8": 1, "part": part_bits, "last": 1, "start": 1, "group": group_bits})
        flags_a = Signal(flags, reset_less=True)
        with m.If(take):
            m.d.sync += [
                word_a.eq(self.weights.payload),
                flags_a.is8.eq(command.bits8),
                flags_a.part.eq(part),
                flags_a.last.eq(part_last),
                flags_a.start.eq(~command.bits8 & (part == 0) & ~phase[0]),
                flags_a.group.eq(phase >> 1),
            ]
        m.d.comb += [self.scale_write.eq(scale_a), self.scale_data.eq(word_a)]

        # ---- stages B to D: metadata become tables, code words wait for them ----
        group_width = sizes.rows * META_BITS
        meta_word = Signal(group_width * sizes.meta_groups, reset_less=True)
        meta_b = Signal(group_width, reset_less=True)
        with m.If(meta_a):
            m.d.sync += meta_word.eq(word_a)
        with m.If(code_a & flags_a.start):
            m.d.sync += meta_b.eq(meta_word.word_select(flags_a.group, group_width))
        codes = [code_a] + [Signal(name=f"code_{s}") for s in "bcd"]
        words = [word_a] + [Signal(sizes.word_bits, name=f"word_{s}", reset_less=True) for s in "bcd"]
        tags = [flags_a] + [Signal(flags, name=f"flags_{s}", reset_less=True) for s in "bcd"]
        m.d.comb += moving.eq(Cat(*codes).any())
        for before, after in zip(codes, codes[1:]):
            m.d.sync += after.eq(before)
        # One enable for the whole pipe: a shift register of LUTs, and no work between commands.
        with m.If(moving):
            m.d.sync += [after.eq(before) for before, after in zip(words, words[1:])]
            m.d.sync += [after.eq(before) for before, after in zip(tags, tags[1:])]
        _, code_b, code_c, code_d = codes
        _, tag_b, tag_c, tag_d = tags
        word_d = words[-1]

        # ---- stage E: the rows ----
        enables = Signal(sizes.parts)
        for p in range(sizes.parts):
            m.d.comb += enables[p].eq(code_d & (tag_d.part == Mux(tag_d.is8, p, p * sizes.parts4 // sizes.parts)))
        m.d.sync += [self.write.eq(enables), self.last.eq(code_d & tag_d.last)]
        load_affine = Signal()
        load_table = Signal()
        m.d.comb += [load_affine.eq(code_b & tag_b.start), load_table.eq(code_c & tag_c.start)]
        part_rows4 = sizes.rows // sizes.parts4
        lanes = [[] for _ in range(BLOCK)]
        for r in range(sizes.rows):
            low, high = Signal(64, name=f"row{r}_low"), Signal(64, name=f"row{r}_high")
            at4, at8 = r % part_rows4 * 64, r % sizes.part_rows * 128
            m.submodules[f"row{r}"] = row_instance(
                load_affine=load_affine, meta=meta_b[r * META_BITS :][:META_BITS], load_table=load_table,
                load_output=enables[r // sizes.part_rows], is8=tag_d.is8, codes4=word_d[at4 : at4 + 64],
                codes8_low=word_d[at8 : at8 + 64], codes8_high=word_d[at8 + 64 : at8 + 128],
                bytes_low=low, bytes_high=high,
            )  # fmt: skip
            for k in range(BLOCK):
                lanes[k].append((low if k < 8 else high).word_select(k % 8, 8))
        m.d.comb += [getattr(self, f"lane{k}").eq(Cat(*lanes[k])) for k in range(BLOCK)]
        return m
