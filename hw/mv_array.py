"""MvArray: issue of slices, weight FIFO, activation skew, DSP chains, accumulators."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.accumulate import Accumulate
from headrace.hw.activation_buffer import ActivationBuffer, SliceReadPort
from headrace.hw.activation_skew import ActivationSkew
from headrace.hw.decode_unit import MvSizes
from headrace.hw.dsp_chain import FIELD_BITS, DspChain, chain_instance
from headrace.hw.machine import BLOCK, Machine
from headrace.hw.weight_fifo import WeightFifo

AB_LATENCY = ActivationBuffer.READ_LATENCY


class MvArray(wiring.Component):
    """acc[row] = sum over slices q of weights[row, 16 q + k] * activations[base + q][k], for every stripe of `desc`.

    A slice is issued when it is in the weight FIFO and, if it is its stripe's last, a place for the results is
    reserved; then nothing stalls. `desc` (base, stripes, slices) holds one command; the next one's slices follow
    without a gap. The activation buffer answers `ab_read` 2 cycles later.

    Timing, cycles from the request to the activation buffer (= 0): data 2; first skew register 3; stage k of the
    chain takes its operands at 3 + k and gives P at 6 + k; accumulator 22. From issue to `available`: `LATENCY`.
    """

    LATENCY = 1 + AB_LATENCY + ActivationSkew.LATENCY + BLOCK - 1 + DspChain.LATENCY + Accumulate.LATENCY
    INITIATION_INTERVAL = 1

    def __init__(self, *, machine: Machine):
        self.sizes = sizes = MvSizes(machine)
        self.fifo = WeightFifo(machine=machine)
        self.accumulate = Accumulate(machine=machine)
        self.desc_layout = data.StructLayout(
            {"base": sizes.ab_bits, "stripes": sizes.stripe_bits, "slices": sizes.slice_bits}
        )
        fifo, results = self.fifo.signature.members, self.accumulate.signature.members
        super().__init__(
            {
                "desc": In(stream.Signature(self.desc_layout)),
                "ab_read": Out(SliceReadPort(machine.buffers.activation_slices)),
            }
            | {name: fifo[name] for name in ("room", "reserve", "write", "last", *(f"lane{k}" for k in range(BLOCK)))}
            | {f"result_{name}": results[name] for name in ("available", "read", "group", "pop", "q")}
        )

    def elaborate(self, platform):
        m = Module()
        sizes = self.sizes
        m.submodules.fifo = fifo = self.fifo
        m.submodules.accumulate = accumulate = self.accumulate
        m.submodules.skew = skew = ActivationSkew()
        for name in ("reserve", "write", "last", *(f"lane{k}" for k in range(BLOCK))):
            m.d.comb += getattr(fifo, name).eq(getattr(self, name))
        for name in ("read", "group", "pop"):
            m.d.comb += getattr(accumulate, name).eq(getattr(self, f"result_{name}"))
        m.d.comb += [
            self.room.eq(fifo.room),
            self.result_available.eq(accumulate.available),
            self.result_q.eq(accumulate.q),
        ]

        # ---- issue ----
        run = Signal()
        command = Signal(self.desc_layout)
        stripes_left = Signal(sizes.stripe_bits)
        slices_left = Signal(sizes.slice_bits)
        at = Signal(sizes.ab_bits)
        first = Signal()
        issue = Signal()
        last = Signal()
        finish = Signal()
        m.d.comb += [
            last.eq(slices_left == 1),
            issue.eq(run & fifo.available & (~last | accumulate.room)),
            finish.eq(issue & last & (stripes_left == 1)),
            fifo.issue.eq(issue),
            accumulate.reserve.eq(issue & last),
            self.desc.ready.eq(~run | finish),
        ]
        m.d.sync += self.ab_read.valid.eq(issue)
        with m.If(issue):
            m.d.sync += [self.ab_read.slice.eq(at), at.eq(at + 1), slices_left.eq(slices_left - 1), first.eq(0)]
            with m.If(last):
                m.d.sync += [
                    at.eq(command.base),
                    slices_left.eq(command.slices),
                    stripes_left.eq(stripes_left - 1),
                    first.eq(1),
                ]
        with m.If(self.desc.ready):
            new = self.desc.payload
            m.d.sync += [
                run.eq(self.desc.valid),
                command.eq(new),
                at.eq(new.base),
                stripes_left.eq(new.stripes),
                slices_left.eq(new.slices),
                first.eq(1),
            ]

        # ---- what travels beside the data: bit i is the issue i + 1 cycles ago ----
        read_first = AB_LATENCY + ActivationSkew.LATENCY - 1
        sum_at = read_first + 1 + BLOCK - 1 + DspChain.LATENCY
        valids = Signal(sum_at + 1)
        firsts = Signal(sum_at + 1, reset_less=True)
        lasts = Signal(sum_at + 1, reset_less=True)
        moving = Signal()
        m.d.comb += moving.eq(valids[1:].any())
        m.d.sync += valids.eq((valids << 1) | issue)
        # An idle array stands still: nothing that is valid is left in it.
        with m.If(moving | issue | valids[0]):
            m.d.sync += [firsts.eq((firsts << 1) | first), lasts.eq((lasts << 1) | last)]
        m.d.comb += [
            fifo.reading.eq(valids[read_first : read_first + BLOCK]),
            fifo.release.eq(valids[read_first + BLOCK - 1]),
            skew.en.eq(moving),
            skew.data.eq(self.ab_read.data),
            accumulate.valid.eq(valids[sum_at]),
            accumulate.first.eq(firsts[sum_at]),
            accumulate.last.eq(lasts[sum_at]),
        ]

        for c in range(sizes.rows // 2):
            low = Signal(signed(FIELD_BITS), name=f"low{c}")
            high = Signal(signed(FIELD_BITS), name=f"high{c}")
            carry = Signal(name=f"carry{c}")
            m.submodules[f"chain{c}"] = chain_instance(
                en=moving,
                w=[getattr(fifo, f"weights{k}").word_select(c, 16) for k in range(BLOCK)],
                b=[getattr(skew, f"act{k}") for k in range(BLOCK)],
                low=low, high=high, carry=carry,
            )  # fmt: skip
            m.d.comb += [
                getattr(accumulate, f"low{c}").eq(low),
                getattr(accumulate, f"high{c}").eq(high),
                getattr(accumulate, f"carry{c}").eq(carry),
            ]
        return m
