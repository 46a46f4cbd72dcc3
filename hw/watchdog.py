"""The watchdog: no instruction retired for too long."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.command_queue import WaitState
from headrace.hw.isa import Queue

UNITS = len(Queue) - 1


class Watchdog(wiring.Component):
    """``expired`` pulses after ``cycles`` cycles of ``running`` without a ``retire``, and names whom the machine waits for:
    the lowest queue whose oldest command waits for tokens, else the lowest with a command in its unit, else SYS
    (``pc`` is then ``sys_pc``). Cost: 32-bit counter.
    """

    LATENCY = 1

    waits: In(data.ArrayLayout(WaitState(), UNITS))
    sys_pc: In(16)
    retire: In(1)
    running: In(1)
    expired: Out(1)
    queue: Out(3)
    pc: Out(16)

    def __init__(self, *, cycles: int):
        if not 2 <= cycles < 1 << 31:
            raise ValueError(f"watchdog cycles = {cycles}: 2 to 2**31 - 1 are allowed")
        self.cycles = cycles
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(self.cycles))
        with m.If(self.retire | ~self.running):
            m.d.sync += count.eq(0)
        with m.Elif(count == self.cycles - 1):
            m.d.comb += self.expired.eq(1)
        with m.Else():
            m.d.sync += count.eq(count + 1)
        m.d.comb += [self.queue.eq(Queue.SYS), self.pc.eq(self.sys_pc)]
        # Later assignments win: the lowest queue last, waiting for tokens before being in a unit.
        for reason in ("unit", "token"):
            for i in reversed(range(UNITS)):
                with m.If(self.waits[i][reason]):
                    m.d.comb += [self.queue.eq(i), self.pc.eq(self.waits[i].pc)]
        return m
