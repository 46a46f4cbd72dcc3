"""WeightFifo: decoded slices between decode unit and array, read with the skew that the cascades need."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.decode_unit import MvSizes
from headrace.hw.machine import BLOCK, Machine
from headrace.hw.ram import RamSdp

MINIMUM_SLICES = 32
"""A slot is given back only when lane 15 has read it, BLOCK cycles after lane 0: a smaller FIFO would stall."""


class WeightFifo(wiring.Component):
    """16 banks, one per stage of the cascades; bank k is read k cycles after bank 0, so that the FIFO is the skew too.

    Write side: `reserve` takes a slot (only while `room`), `write[p]` stores part p of the slice at the write
    pointer, `last` completes it. Read side: `available` counts slices that may be issued; `issue` takes one from the
    count, and `reading[k]` (the issue, delayed by the caller) makes `weights{k}` = lane k of the next slice appear
    one cycle later. `release` gives the slot back, no earlier than bank 15's read.

    Depth: `buffers.weight_fifo_slices`. Latency from `last` to `available` 1 cycle. Cost: LUT RAM of R x 16 bytes x
    depth.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    def __init__(self, *, machine: Machine):
        self.depth = machine.buffers.weight_fifo_slices
        if self.depth < MINIMUM_SLICES:
            raise ValueError(
                f"buffers.weight_fifo_slices = {self.depth} is too small: slices stay for the {BLOCK} cycles of the "
                f"skew, so at least {MINIMUM_SLICES} are needed to feed the array every cycle."
            )
        self.sizes = sizes = MvSizes(machine)
        super().__init__(
            {
                "room": Out(1),
                "reserve": In(1),
                "write": In(sizes.parts),
                "last": In(1),
                "available": Out(1),
                "issue": In(1),
                "reading": In(BLOCK),
                "release": In(1),
            }
            | {f"lane{k}": In(8 * sizes.rows) for k in range(BLOCK)}
            | {f"weights{k}": Out(8 * sizes.rows) for k in range(BLOCK)}
        )

    def elaborate(self, platform):
        m = Module()
        sizes = self.sizes
        used = Signal(range(self.depth + 1))
        ready = Signal(range(self.depth + 1))
        m.d.comb += [self.room.eq(used != self.depth), self.available.eq(ready != 0)]
        with m.If(self.reserve ^ self.release):
            m.d.sync += used.eq(Mux(self.reserve, used + 1, used - 1))
        with m.If(self.last ^ self.issue):
            m.d.sync += ready.eq(Mux(self.last, ready + 1, ready - 1))

        write_at = Signal(range(self.depth))
        with m.If(self.last):
            m.d.sync += write_at.eq(write_at + 1)
        addresses = [Signal(range(self.depth), name=f"read_at{k}") for k in range(BLOCK)]
        with m.If(self.reading[0]):
            m.d.sync += addresses[0].eq(addresses[0] + 1)
        m.d.sync += [after.eq(before) for before, after in zip(addresses, addresses[1:])]

        width = 8 * sizes.part_rows
        for k in range(BLOCK):
            pieces = []
            for p in range(sizes.parts):
                ram = RamSdp(width=width, depth=self.depth, style="distributed")
                m.submodules[f"bank{k}_{p}"] = ram
                m.d.comb += [
                    ram.w_en.eq(self.write[p]),
                    ram.w_addr.eq(write_at),
                    ram.w_data.eq(getattr(self, f"lane{k}").word_select(p, width)),
                    ram.r_en.eq(self.reading[k]),
                    ram.r_addr.eq(addresses[k]),
                ]
                pieces.append(ram.r_data)
            m.d.comb += getattr(self, f"weights{k}").eq(Cat(*pieces))
        return m
