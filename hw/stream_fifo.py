"""StreamFifo: a stream FIFO of any width on a `RamSdp`, for the raw weight FIFO and the ports' read FIFOs."""

from amaranth.hdl import Module, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.ram import RamSdp


class StreamFifo(wiring.Component):
    """First in, first out; one item a cycle in and out at any fill.

    shape
        Payload of both streams.
    depth
        Items held, exactly: a power of two, at least 4. `i.ready` is low when `level` = depth.
    style
        Of the RAM, see `RamSdp`.

    `level` counts every item inside, from the cycle after it entered to the cycle in which it leaves.
    Behind the RAM stand its read register and the output register; both refill while the output is stalled.
    `o.payload` comes straight from registers; it is unspecified while `o.valid` is low.
    Latency: 3 cycles from an accepted item to `o.valid` (LATENCY). Initiation interval 1. Reset empties it.
    Cost: width * depth bits of RAM, width + 3 * log2(depth) registers (the RAM absorbs the output register).
    """

    LATENCY = 3
    INITIATION_INTERVAL = 1

    def __init__(self, shape, *, depth: int, style: str = "auto"):
        if depth < 4 or depth & (depth - 1):
            raise ValueError(f"StreamFifo depth = {depth}: a power of two of at least 4 is allowed")
        self.shape, self.depth, self.style = shape, depth, style
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self.shape).width
        m.submodules.ram = ram = RamSdp(width=width, depth=self.depth, style=self.style)

        pointer_bits = exact_log2(self.depth) + 1
        written = Signal(pointer_bits)
        read = Signal(pointer_bits)
        fetched = Signal()  # the RAM's read register holds the next item
        enter = Signal()
        leave = Signal()
        fetch = Signal()
        move = Signal()

        m.d.comb += [
            # Depth is a power of two and level never exceeds it: its top bit means full.
            self.i.ready.eq(~self.level[-1]),
            enter.eq(self.i.valid & self.i.ready),
            leave.eq(self.o.valid & self.o.ready),
            move.eq(fetched & (~self.o.valid | self.o.ready)),
            # Only items written in an earlier cycle are fetched, so a read never meets the write of its address.
            fetch.eq((written != read) & (~fetched | move)),
            ram.w_en.eq(enter),
            ram.w_addr.eq(written[:-1]),
            ram.w_data.eq(Value.cast(self.i.payload)),
            ram.r_en.eq(fetch),
            ram.r_addr.eq(read[:-1]),
        ]
        output = Signal(width, reset_less=True)
        m.d.comb += Value.cast(self.o.payload).eq(output)
        with m.If(move):
            m.d.sync += output.eq(ram.r_data)
        m.d.sync += [
            written.eq(written + enter),
            read.eq(read + fetch),
            fetched.eq(fetch | (fetched & ~move)),
            self.o.valid.eq(fetched | (self.o.valid & ~self.o.ready)),
            self.level.eq(self.level + enter - leave),
        ]
        return m
