"""VectorBuffer: the float32 scratchpad (VB), rows of 8 float32, one write and one read a cycle."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.ram import RamSdp

ROW_BITS = 256


class RowWrite(data.StructLayout):
    """Payload of a write stream."""

    def __init__(self, rows: int):
        super().__init__({"data": ROW_BITS, "row": exact_log2(rows)})


class RowWritePort(wiring.Signature):
    """A writer that never waits."""

    def __init__(self, rows: int):
        super().__init__({"valid": Out(1), "row": Out(exact_log2(rows)), "data": Out(ROW_BITS)})


class RowReadPort(wiring.Signature):
    """A reader that never waits: `data` belong to the request READ_LATENCY cycles before."""

    def __init__(self, rows: int):
        super().__init__({"valid": Out(1), "row": Out(exact_log2(rows)), "data": In(ROW_BITS)})


class RowReadStream(wiring.Signature):
    """A reader that may wait: `valid` pulses with `data` exactly READ_LATENCY cycles after `request` was accepted."""

    def __init__(self, rows: int):
        super().__init__(
            {"request": Out(stream.Signature(exact_log2(rows))), "valid": In(1), "data": In(ROW_BITS)}
        )


class VectorBuffer(wiring.Component):
    """`rows` rows (a power of two) of 8 float32; row address and data in one cycle.

    Writes, first to last: `w_sfu` (never waits), `w_mv`, `w_ld`. Reads: `r_sfu` (never waits), `r_mv`, `r_st`, `r_sys`.
    One write and one read are accepted a cycle; priority is fixed, so a unit that wants every cycle starves those
    after it: programs are finite, and the watchdog bounds the rest.
    A write accepted in cycle t is seen by reads accepted in t+1 and later; a read accepted in the very cycle in
    which its row is written returns unspecified data. Contents are not reset.
    READ_LATENCY = 2 cycles, initiation interval 1. Cost: 256 * rows bits of UltraRAM (4 per 4096 rows).
    """

    READ_LATENCY = 2
    LATENCY = READ_LATENCY
    INITIATION_INTERVAL = 1

    def __init__(self, *, rows: int, style: str = "ultra"):
        if rows < 2 or rows & (rows - 1):
            raise ValueError(f"VectorBuffer rows = {rows}: a power of two of at least 2 is allowed")
        self.rows, self.style = rows, style
        super().__init__(
            {
                "w_sfu": In(RowWritePort(rows)),
                "w_mv": In(stream.Signature(RowWrite(rows))),
                "w_ld": In(stream.Signature(RowWrite(rows))),
                "r_sfu": In(RowReadPort(rows)),
                "r_mv": In(RowReadStream(rows)),
                "r_st": In(RowReadStream(rows)),
                "r_sys": In(RowReadStream(rows)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = RamSdp(
            width=ROW_BITS, depth=self.rows, read_latency=self.READ_LATENCY, style=self.style
        )

        m.d.comb += [
            ram.w_en.eq(self.w_sfu.valid | self.w_mv.valid | self.w_ld.valid),
            self.w_mv.ready.eq(~self.w_sfu.valid),
            self.w_ld.ready.eq(~self.w_sfu.valid & ~self.w_mv.valid),
        ]
        with m.If(self.w_sfu.valid):
            m.d.comb += [ram.w_addr.eq(self.w_sfu.row), ram.w_data.eq(self.w_sfu.data)]
        with m.Elif(self.w_mv.valid):
            m.d.comb += [ram.w_addr.eq(self.w_mv.payload.row), ram.w_data.eq(self.w_mv.payload.data)]
        with m.Else():
            m.d.comb += [ram.w_addr.eq(self.w_ld.payload.row), ram.w_data.eq(self.w_ld.payload.data)]

        m.d.comb += [ram.r_addr.eq(self.r_sfu.row), self.r_sfu.data.eq(ram.r_data)]
        taken = self.r_sfu.valid
        for reader in (self.r_mv, self.r_st, self.r_sys):
            accepted = Signal()
            first = Signal()
            m.d.comb += [
                reader.request.ready.eq(~taken),
                accepted.eq(reader.request.valid & ~taken),
                reader.data.eq(ram.r_data),
            ]
            with m.If(accepted):
                m.d.comb += ram.r_addr.eq(reader.request.payload)
            m.d.sync += [first.eq(accepted), reader.valid.eq(first)]
            taken = taken | reader.request.valid
        m.d.comb += ram.r_en.eq(taken)
        return m
