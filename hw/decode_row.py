"""DecodeRow: 4-bit codes of one row to INT8 weights; emitted once as Verilog module ``hr_decode_row``."""

from functools import cache

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.emit import to_verilog
from headrace.hw.machine import BLOCK, META_BITS

MODULE = "hr_decode_row"
CODE_BITS = 4
SHIFT = 3
BIAS = 2048
"""Added before the shift, so that nothing is negative: a multiple of 2**SHIFT, taken off after it."""
HALF = 1 << (SHIFT - 1)
LOW, HIGH = BIAS // 2**SHIFT - 127, BIAS // 2**SHIFT + 127
"""-127 and 127 after the shift, bias included."""


class DecodeRow(wiring.Component):
    """w8 = clip((code * mult + off + 4) >> 3, -127, 127) for 16 codes of a row; 8-bit codes pass.

    The map has 16 values per row and group, and a group lasts two slices: the values are computed once into a table
    of 16 bytes, and each code picks one. Every sum is biased by 2048, so that it is unsigned: 0 .. 7924 in 13 bits.

    Three steps, each a register with an enable, meant for consecutive cycles:
    `load_affine`  meta = off << 8 | mult   ->  off + c * mult for c = 0..3
    `load_table`   ->  the 16 bytes of the table
    `load_output`  codes                    ->  `bytes_low` (k = 0..7) and `bytes_high` (k = 8..15); is8 takes
                                                `codes8_low`, `codes8_high` as they are.
    Latency 1 cycle for codes, 3 for metadata; initiation interval 1. No reset. Cost: about 1,000 LUT, 330 FF.
    """

    LATENCY = 1
    META_LATENCY = 3
    INITIATION_INTERVAL = 1

    load_affine: In(1)
    meta: In(META_BITS)
    load_table: In(1)
    load_output: In(1)
    is8: In(1)
    codes4: In(CODE_BITS * BLOCK)
    codes8_low: In(64)
    codes8_high: In(64)
    bytes_low: Out(64)
    bytes_high: Out(64)

    def elaborate(self, platform):
        m = Module()
        mult, off = self.meta[:8], self.meta[8:]

        base = Signal(13)
        steps = [Signal(13, name=f"step{c}", reset_less=True) for c in range(4)]
        mult_q = Signal(8, reset_less=True)
        # off + 2048 is off with its sign bit turned.
        m.d.comb += base.eq((off ^ BIAS) + HALF)
        with m.If(self.load_affine):
            m.d.sync += [
                steps[0].eq(base),
                steps[1].eq(base + mult),
                steps[2].eq(base + (mult << 1)),
                steps[3].eq(base + (mult + (mult << 1))),
                mult_q.eq(mult),
            ]

        quads = [Signal(12, name=f"quad{j}") for j in range(4)]
        m.d.comb += [quads[1].eq(mult_q << 2), quads[2].eq(mult_q << 3), quads[3].eq(quads[1] + quads[2])]
        entries = []
        for c in range(16):
            total = Signal(13, name=f"total{c}")
            value = Signal(10, name=f"value{c}")
            m.d.comb += [total.eq(steps[c % 4] + quads[c // 4]), value.eq(total[SHIFT:])]
            entries.append(Mux(value < LOW, Const(LOW & 0xFF, 8), Mux(value > HIGH, Const(HIGH & 0xFF, 8), value[:8])))
        table_low = Signal(64, reset_less=True)
        table_high = Signal(64, reset_less=True)
        with m.If(self.load_table):
            m.d.sync += [table_low.eq(Cat(*entries[:8])), table_high.eq(Cat(*entries[8:]))]

        decoded = []
        for k in range(BLOCK):
            code = self.codes4.word_select(k, CODE_BITS)
            half = Signal(64, name=f"half{k}")
            byte = Signal(8, name=f"byte{k}")
            m.d.comb += [half.eq(Mux(code[3], table_high, table_low)), byte.eq(half.word_select(code[:3], 8))]
            decoded.append(byte)
        low = Signal(64, reset_less=True)
        high = Signal(64, reset_less=True)
        with m.If(self.load_output):
            with m.If(self.is8):
                m.d.sync += [low.eq(self.codes8_low), high.eq(self.codes8_high)]
            with m.Else():
                m.d.sync += [low.eq(Cat(*decoded[:8])), high.eq(Cat(*decoded[8:]))]
        m.d.comb += [self.bytes_low.eq(low), self.bytes_high.eq(high)]
        return m


@cache
def row_sources() -> dict[str, str]:
    """File name to text of the one row module that every instance shares."""
    return {f"{MODULE}.v": to_verilog(DecodeRow(), MODULE)}


def row_instance(*, bytes_low, bytes_high, **inputs) -> Instance:
    """An instance of the shared module; `inputs` by the component's port names."""
    return Instance(
        MODULE, i_clk=ClockSignal(), i_rst=ResetSignal(), o_bytes_low=bytes_low, o_bytes_high=bytes_high,
        **{f"i_{name}": value for name, value in inputs.items()},
    )  # fmt: skip
