"""MvWriter: rows to the vector buffer, signatures, retirement."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.decode_unit import MvSizes
from headrace.hw.isa import Done
from headrace.hw.machine import LANES, Machine
from headrace.hw.signature import fold, term
from headrace.hw.vector_buffer import RowWrite


class MvWriter(wiring.Component):
    """Gives the rows of each command (`desc`: row, count, pc) their addresses and writes them through `vb_write`.

    `done` pulses 3 cycles after the command's last row was accepted, with the sum of its rows' signatures
    (fold(row) xor rotl32(address, 16), modulo 2**32). A command of count 0 retires at once, with signature 0.
    One row a cycle, one cycle between commands.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    def __init__(self, *, machine: Machine):
        self.sizes = sizes = MvSizes(machine)
        self.desc_layout = data.StructLayout({"row": sizes.row_bits, "count": sizes.row_bits + 1, "pc": 16})
        self.row_layout = RowWrite(machine.buffers.vector_rows)
        super().__init__(
            {
                "desc": In(stream.Signature(self.desc_layout)),
                "rows": In(stream.Signature(32 * LANES)),
                "vb_write": Out(stream.Signature(self.row_layout)),
                "done": Out(Done()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        run = Signal()
        row = Signal(self.sizes.row_bits)
        left = Signal(self.sizes.row_bits + 1)
        pc = Signal(16, reset_less=True)
        out_valid = Signal()
        out = Signal(self.row_layout, reset_less=True)
        accepted = Signal()
        move = Signal()
        m.d.comb += [
            self.vb_write.valid.eq(out_valid),
            self.vb_write.payload.eq(out),
            accepted.eq(out_valid & self.vb_write.ready),
            self.rows.ready.eq(run & (left != 0) & (~out_valid | self.vb_write.ready)),
            move.eq(self.rows.valid & self.rows.ready),
            self.desc.ready.eq(~run),
        ]
        with m.If(accepted):
            m.d.sync += out_valid.eq(0)
        with m.If(move):
            m.d.sync += [
                out_valid.eq(1), out.row.eq(row), out.data.eq(self.rows.payload),
                row.eq(row + 1), left.eq(left - 1),
            ]  # fmt: skip

        # Signature: fold of an accepted row, then the sum.
        share = Signal(32, reset_less=True)
        share_valid = Signal()
        total = Signal(32)
        address = Signal(32)
        m.d.comb += address.eq(out.row)
        m.d.sync += share_valid.eq(accepted)
        with m.If(accepted):
            m.d.sync += share.eq(term(fold(out.data), address))
        with m.If(share_valid):
            m.d.sync += total.eq(total + share)

        finish = Signal()
        m.d.comb += finish.eq(run & (left == 0) & ~out_valid & ~share_valid)
        m.d.sync += [self.done.valid.eq(finish), self.done.pc.eq(pc), self.done.sig.eq(total)]
        with m.If(finish):
            m.d.sync += [run.eq(0), total.eq(0)]
        with m.If(self.desc.valid & self.desc.ready):
            new = self.desc.payload
            m.d.sync += [run.eq(1), row.eq(new.row), left.eq(new.count), pc.eq(new.pc), total.eq(0)]
        return m
