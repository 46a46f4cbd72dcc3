"""Token counters: one 4-bit counter for every ordered pair of queues (docs/machine.md, section 2)."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.isa import TOKEN_LIMIT, Queue

QUEUES = len(Queue)


class QueueMasks(data.ArrayLayout):
    """One mask of queues per queue."""

    def __init__(self):
        super().__init__(QUEUES, QUEUES)


class TokenCounters(wiring.Component):
    """count[b][q] = tokens that queue b has released to queue q and q has not taken.

    ``ok[q]`` is 1 when every counter [b -> q] with b in ``wait[q]`` holds a token; it depends on registers and
    ``wait`` only, and stays 1 until q takes. ``take[q]`` (only while ``ok[q]``) takes one from each of them, all
    at once. ``release[b]`` adds one to [b -> q] for each q of the mask. Taking and adding in one cycle cancel, also
    at 15. ``overflow[b]`` pulses, in the cycle of the release, when b adds to a counter that holds 15 and nothing is
    taken from it; that counter stays at 15.

    Latency: a released token can be taken one cycle later. Initiation interval: 1. Reset and ``clear``: all 0.
    Cost: 100 FF, about 150 LUT; no memory, no DSP.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    wait: In(QueueMasks())
    ok: Out(QUEUES)
    take: In(QUEUES)
    release: In(QueueMasks())
    overflow: Out(QUEUES)
    clear: In(1)

    def elaborate(self, platform):
        m = Module()
        count = [[Signal(4, name=f"count_{b.name}_{q.name}") for q in Queue] for b in Queue]
        for q in Queue:
            missing = [self.wait[q][b] & (count[b][q] == 0) for b in Queue]
            m.d.comb += self.ok[q].eq(~(missing[0] | missing[1] | missing[2] | missing[3] | missing[4]))
        release = self.release.as_value()
        with m.If(release.any() | self.take.any()):
            for b in Queue:
                for q in Queue:
                    add = self.release[b][q]
                    sub = self.take[q] & self.wait[q][b]
                    with m.If(add & ~sub):
                        with m.If(count[b][q] == TOKEN_LIMIT):
                            m.d.comb += self.overflow[b].eq(1)
                        with m.Else():
                            m.d.sync += count[b][q].eq(count[b][q] + 1)
                    with m.If(sub & ~add):
                        m.d.sync += count[b][q].eq(count[b][q] - 1)
        with m.If(self.clear):
            m.d.sync += [counter.eq(0) for row in count for counter in row]
        return m
