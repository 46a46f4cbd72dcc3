"""ActivationBuffer: the INT8 scratchpad (AB), slices of 16 INT8, one write and two reads a cycle."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.ram import RamSdp

SLICE_BITS = 128
HALF_BITS = SLICE_BITS // 2


class SliceWrite(data.StructLayout):
    """Payload of the loader's write stream."""

    def __init__(self, slices: int):
        super().__init__({"data": SLICE_BITS, "slice": exact_log2(slices)})


class HalfWritePort(wiring.Signature):
    """The SFU's writes: `half` 0 is INT8 0..7 of the slice, 1 is 8..15. Never waits."""

    def __init__(self, slices: int):
        super().__init__(
            {"valid": Out(1), "slice": Out(exact_log2(slices)), "half": Out(1), "data": Out(HALF_BITS)}
        )


class SliceReadPort(wiring.Signature):
    """A reader that never waits: `data` belong to the request READ_LATENCY cycles before."""

    def __init__(self, slices: int):
        super().__init__({"valid": Out(1), "slice": Out(exact_log2(slices)), "data": In(SLICE_BITS)})


class SliceReadStream(wiring.Signature):
    """A reader that may wait: `valid` pulses with `data` exactly READ_LATENCY cycles after `request` was accepted."""

    def __init__(self, slices: int):
        super().__init__(
            {"request": Out(stream.Signature(exact_log2(slices))), "valid": In(1), "data": In(SLICE_BITS)}
        )


class ActivationBuffer(wiring.Component):
    """`slices` slices (a power of two) of 16 INT8, in two copies that are written alike.

    Writes: `w_sfu` (half a slice; never waits), then `w_ld` (a whole slice). Reads: `r_mv` has a copy of its own;
    the other serves `r_sfu` (never waits), then `r_st`.
    A write accepted in cycle t is seen by reads accepted in t+1 and later; a read accepted in the very cycle in
    which its slice is written returns unspecified data. Contents are not reset.
    READ_LATENCY = 2 cycles, initiation interval 1. Cost: 2 * 128 * slices bits of block or LUT RAM.
    """

    READ_LATENCY = 2
    LATENCY = READ_LATENCY
    INITIATION_INTERVAL = 1

    def __init__(self, *, slices: int, style: str = "auto"):
        if slices < 2 or slices & (slices - 1):
            raise ValueError(f"ActivationBuffer slices = {slices}: a power of two of at least 2 is allowed")
        self.slices, self.style = slices, style
        super().__init__(
            {
                "w_sfu": In(HalfWritePort(slices)),
                "w_ld": In(stream.Signature(SliceWrite(slices))),
                "r_mv": In(SliceReadPort(slices)),
                "r_sfu": In(SliceReadPort(slices)),
                "r_st": In(SliceReadStream(slices)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        copies = [
            RamSdp(
                width=SLICE_BITS, depth=self.slices, granularity=HALF_BITS, read_latency=self.READ_LATENCY,
                style=self.style,
            )
            for _ in range(2)
        ]  # fmt: skip
        m.submodules.copy_mv, m.submodules.copy_sfu = copy_mv, copy_sfu = copies

        for ram in copies:
            with m.If(self.w_sfu.valid):
                m.d.comb += [
                    ram.w_en.eq(Cat(~self.w_sfu.half, self.w_sfu.half)),
                    ram.w_addr.eq(self.w_sfu.slice),
                    ram.w_data.eq(Cat(self.w_sfu.data, self.w_sfu.data)),
                ]
            with m.Else():
                m.d.comb += [
                    ram.w_en.eq(self.w_ld.valid.replicate(2)),
                    ram.w_addr.eq(self.w_ld.payload.slice),
                    ram.w_data.eq(self.w_ld.payload.data),
                ]
        m.d.comb += self.w_ld.ready.eq(~self.w_sfu.valid)

        accepted = Signal()
        first = Signal()
        m.d.comb += [
            copy_mv.r_en.eq(self.r_mv.valid),
            copy_mv.r_addr.eq(self.r_mv.slice),
            self.r_mv.data.eq(copy_mv.r_data),
            copy_sfu.r_en.eq(self.r_sfu.valid | self.r_st.request.valid),
            self.r_st.request.ready.eq(~self.r_sfu.valid),
            accepted.eq(self.r_st.request.valid & ~self.r_sfu.valid),
            self.r_sfu.data.eq(copy_sfu.r_data),
            self.r_st.data.eq(copy_sfu.r_data),
        ]
        with m.If(self.r_sfu.valid):
            m.d.comb += copy_sfu.r_addr.eq(self.r_sfu.slice)
        with m.Else():
            m.d.comb += copy_sfu.r_addr.eq(self.r_st.request.payload)
        m.d.sync += [first.eq(accepted), self.r_st.valid.eq(first)]
        return m
