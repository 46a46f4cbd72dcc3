"""GroupFifo: written a whole word at a time, read a group of it at a time."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from headrace.hw.ram import RamSdp


class GroupFifo(wiring.Component):
    """A FIFO of `depth` words of `groups` x `width` bits; the reader chooses a group of the oldest word.

    `reserve` takes a place ahead of the write (only while `room`); `write` stores `data`. `available`: a written word
    is there, from the cycle after its write. `read` with `group` gives `q` two cycles later (`LATENCY`); `pop` (with
    the last read, or alone) drops the word. Cost: LUT RAM of the capacity, a groups-to-1 multiplexer of `width` bits.
    """

    LATENCY = 2
    INITIATION_INTERVAL = 1

    def __init__(self, *, groups: int, width: int, depth: int):
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"GroupFifo depth = {depth}: a power of two of at least 2 is allowed")
        self.groups, self.width, self.depth = groups, width, depth
        super().__init__(
            {
                "room": Out(1),
                "reserve": In(1),
                "write": In(1),
                "data": In(groups * width),
                "available": Out(1),
                "read": In(1),
                "group": In(max(1, ceil_log2(groups))),
                "pop": In(1),
                "q": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        used = Signal(range(self.depth + 1))
        ready = Signal(range(self.depth + 1))
        write_at = Signal(range(self.depth))
        read_at = Signal(range(self.depth))
        m.d.comb += [self.room.eq(used != self.depth), self.available.eq(ready != 0)]
        with m.If(self.reserve ^ self.pop):
            m.d.sync += used.eq(Mux(self.reserve, used + 1, used - 1))
        with m.If(self.write ^ self.pop):
            m.d.sync += ready.eq(Mux(self.write, ready + 1, ready - 1))
        with m.If(self.write):
            m.d.sync += write_at.eq(write_at + 1)
        with m.If(self.pop):
            m.d.sync += read_at.eq(read_at + 1)

        read_q = Signal()
        group_q = Signal(len(self.group), reset_less=True)
        outputs = []
        for g in range(self.groups):
            ram = RamSdp(width=self.width, depth=self.depth, style="distributed")
            m.submodules[f"group{g}"] = ram
            m.d.comb += [
                ram.w_en.eq(self.write),
                ram.w_addr.eq(write_at),
                ram.w_data.eq(self.data.word_select(g, self.width)),
                ram.r_en.eq(self.read & (self.group == g)),
                ram.r_addr.eq(read_at),
            ]
            outputs.append(ram.r_data)
        m.d.sync += [read_q.eq(self.read), group_q.eq(self.group)]
        held = Signal(self.width, reset_less=True)
        with m.If(read_q):
            m.d.sync += held.eq(Array(outputs)[group_q])
        m.d.comb += self.q.eq(held)
        return m
