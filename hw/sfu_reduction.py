"""The SFU's reduction: the largest element of a rep, its index, and whether it is large enough to quantise by."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.ram import RamSdp
from headrace.hw.sfu_ucode import LANES, QUANT_MINIMUM, READ_LATENCY, REPS_MAX, TAP_ABSMAX, TAP_ARGMAX, TAP_NONE

INFINITY = 0x7F800000


class ReductionTag(data.StructLayout):
    """What accompanies a row into the reduction."""

    def __init__(self):
        super().__init__({"kind": 2, "first": 1, "last": 1, "rep": 4, "row": 18, "mask": LANES})


class SfuReduction(wiring.Component):
    """Running maximum over rows of 8 float32: absolute (TAP_ABSMAX), signed (TAP_MAX), signed with index (TAP_ARGMAX).

    Elements order as the contract says (sign-magnitude patterns, -0 = +0); masked lanes do not take part; the lowest
    index wins among equals. At a rep's last row its maximum goes to row `rep` of `best`, and bit `rep` of `large`
    says whether it is at least QMIN. The index lives on from call to call: a row with `first` and `fresh` starts anew.
    `nan` pulses for a row that holds a NaN in a lane that takes part.

    Rows enter with `tag.kind` other than TAP_NONE; results stand REDUCTION_STAGES cycles later, and `best` answers a
    read READ_LATENCY cycles after. Interval 1. Cost: 15 comparators of 32 bits, a 16 x 32 LUT RAM.
    """

    LATENCY = 4
    INITIATION_INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "tag": In(ReductionTag()),
                "values": In(32).array(LANES),
                "extra": In(32),  # index of element 0
                "fresh": In(1),
                "read": In(1),
                "read_rep": In(4),
                "best": Out(32),
                "large": Out(REPS_MAX),
                "index": Out(32),
                "nan": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Keys: unsigned integers in the order of the contract, 0 below all of them.
        entries = []
        nan = []
        for lane in range(LANES):
            value = self.values[lane]
            negative = value[31] & (self.tag.kind != TAP_ABSMAX) & value[:31].any()
            key = Signal(32, name=f"key_{lane}")
            m.d.comb += key.eq(
                Mux(self.tag.mask[lane], 0, Mux(negative, ~value, Cat(value[:31], 1)))
            )
            nan.append(~self.tag.mask[lane] & (value[:31] > INFINITY))
            entries.append((key, Const(0, 0)))
        valid = self.tag.kind != TAP_NONE
        m.d.sync += self.nan.eq(valid & Cat(nan).any())

        tag = self.tag
        level = 0
        while len(entries) > 1:
            active = tag.kind != TAP_NONE
            following = []
            for i in range(0, len(entries), 2):
                (key_0, at_0), (key_1, at_1) = entries[i : i + 2]
                key = Signal(32, name=f"key_{level}_{i}", reset_less=True)
                at = Signal(level + 1, name=f"at_{level}_{i}", reset_less=True)
                right = Signal(name=f"right_{level}_{i}")
                m.d.comb += right.eq(key_1 > key_0)
                with m.If(active):
                    m.d.sync += [key.eq(Mux(right, key_1, key_0)), at.eq(Cat(Mux(right, at_1, at_0), right))]
                following.append((key, at))
            next_tag = Signal(ReductionTag(), name=f"tag_{level}")
            m.d.sync += next_tag.eq(tag)
            entries, tag, level = following, next_tag, level + 1
        (row_key, row_at) = entries[0]

        running, best_key = Signal(32), Signal(32)
        write, write_rep = Signal(), Signal(4)
        with m.If((tag.kind != TAP_NONE) & (tag.kind != TAP_ARGMAX)):
            m.d.sync += running.eq(Mux(tag.first | (row_key > running), row_key, running))
        with m.If(tag.kind == TAP_ARGMAX):
            with m.If((tag.first & self.fresh) | (row_key > best_key)):
                m.d.sync += [best_key.eq(row_key), self.index.eq(self.extra + Cat(row_at, tag.row))]
        m.d.sync += [
            write.eq((tag.kind != TAP_NONE) & (tag.kind != TAP_ARGMAX) & tag.last),
            write_rep.eq(tag.rep),
        ]
        value = Signal(32)
        m.d.comb += value.eq(Mux(running[31], Cat(running[:31], 0), ~running))
        m.submodules.ram = ram = RamSdp(width=32, depth=REPS_MAX, read_latency=READ_LATENCY, style="distributed")
        m.d.comb += [
            ram.w_en.eq(write),
            ram.w_addr.eq(write_rep),
            ram.w_data.eq(value),
            ram.r_en.eq(self.read),
            ram.r_addr.eq(self.read_rep),
            self.best.eq(ram.r_data),
        ]
        with m.If(write):
            m.d.sync += self.large.bit_select(write_rep, 1).eq(value[:31] >= QUANT_MINIMUM)
        return m
