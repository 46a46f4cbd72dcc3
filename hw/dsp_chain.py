"""DspChain: a cascade of 16 DSP48E2, two weights to a DSP; emitted once as Verilog module ``hr_dsp_chain``."""

from functools import cache

import numpy as np
from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, ResetSignal, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.dsp48e2 import A_BITS, B_BITS, D_BITS, P_BITS, dsp48e2
from headrace.hw.emit import to_verilog
from headrace.hw.machine import CHAIN_LENGTH

MODULE = "hr_dsp_chain"
FIELD_BITS = 19
"""Place of the upper weight: a sum of 16 products of magnitude 128 * 127 at most fits 19 signed bits."""


class DspChain(wiring.Component):
    """low = sum of w0[k] * b[k], high = sum of w1[k] * b[k], k = 0..15.

    P = sum of ((w1 << 19) + w0) * b over the cascade; low = sext19(P); high = (P - low) >> 19, given here as
    `high` = P[37:19] and `carry` = P[18], with high + carry the sum: the accumulator's adder takes the carry in.
    The pre-adder makes (w1 << 19) + w0, so packing costs no LUT.

    Ranges: b in -127 .. 127. A weight may be any byte: low is exact for every w0 and w1, for the upper field wraps
    outside the lower 19 bits and low never reaches 2**18; high is exact for w1 in -127 .. 127 and every w0. So a
    padding row of arbitrary bytes never disturbs the row it shares its DSPs with.

    Operands of stage k (`w{k}` = w1 << 8 | w0, `b{k}`) belong k cycles after those of stage 0: the caller skews.
    Latency from stage 15's operands to P: `LATENCY` = 3 (pre-adder, M, P); from stage 0's: LATENCY + 15.
    Initiation interval 1. `en` is the clock enable of every register. No reset; P is unspecified until operands
    have passed. Cost: 16 DSP48E2, nothing else.
    """

    LATENCY = 3
    INITIATION_INTERVAL = 1

    def __init__(self):
        super().__init__(
            {"en": In(1), "low": Out(signed(FIELD_BITS)), "high": Out(signed(FIELD_BITS)), "carry": Out(1)}
            | {f"w{k}": In(16) for k in range(CHAIN_LENGTH)}
            | {f"b{k}": In(8) for k in range(CHAIN_LENGTH)}
        )

    def elaborate(self, platform):
        m = Module()
        cascade = None
        p = Signal(P_BITS)
        for k in range(CHAIN_LENGTH):
            w, b = getattr(self, f"w{k}"), getattr(self, f"b{k}")
            w0, w1 = w[:8], w[8:]
            last = k == CHAIN_LENGTH - 1
            out = None if last else Signal(P_BITS, name=f"pcout{k}")
            m.submodules[f"dsp{k}"] = dsp48e2(
                a=Cat(Const(0, FIELD_BITS), w1, w1[7].replicate(A_BITS - FIELD_BITS - 8)),
                d=Cat(w0, w0[7].replicate(D_BITS - 8)),
                b=Cat(b, b[7].replicate(B_BITS - 8)),
                pcin=cascade, pcout=out, p=p if last else None, enable=self.en,
                # The weights come from a RAM's output register; A and D need none of their own.
                a_registers=0, d_register=0, preadd_register=1, b_registers=1,
            )  # fmt: skip
            cascade = out
        m.d.comb += [
            self.low.eq(p[:FIELD_BITS].as_signed()),
            self.high.eq(p[FIELD_BITS : 2 * FIELD_BITS].as_signed()),
            self.carry.eq(p[FIELD_BITS - 1]),
        ]
        return m


@cache
def chain_sources() -> dict[str, str]:
    """File name to text of the one chain module that every instance shares."""
    return {f"{MODULE}.v": to_verilog(DspChain(), MODULE)}


def chain_instance(*, en, w, b, low, high, carry) -> Instance:
    """An instance of the shared module; `w` and `b` are sequences of 16 values."""
    ports = {f"i_w{k}": value for k, value in enumerate(w)} | {f"i_b{k}": value for k, value in enumerate(b)}
    return Instance(MODULE, i_clk=ClockSignal(), i_rst=ResetSignal(), i_en=en, o_low=low, o_high=high, o_carry=carry, **ports)


def chain_twin(w0, w1, b) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) as int64 of one pass through the cascade, through the 48 bits of P as the device computes them.

    w0, w1, b: integer arrays [..., 16], any int8.
    """
    w0, w1, b = (np.asarray(x, np.int64) for x in (w0, w1, b))
    packed = (w1 << FIELD_BITS) + w0
    packed = ((packed + (1 << 26)) & ((1 << 27) - 1)) - (1 << 26)
    p = (packed * b).sum(axis=-1)
    half, mask = 1 << (FIELD_BITS - 1), (1 << FIELD_BITS) - 1
    low = ((p + half) & mask) - half
    high = (((p - low) >> FIELD_BITS) + half & mask) - half
    return low, high
