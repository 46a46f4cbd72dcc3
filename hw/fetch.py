"""Instruction memory and fetch: one instruction of 256 bits per cycle, in order, from a program counter."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.isa import INSTRUCTION_BYTES
from headrace.hw.ram import RamSdp

PC_BITS = 16


class Fetched(data.StructLayout):
    """An instruction as it lies in memory. `past_end`: the PC is past the program and `word` means nothing."""

    def __init__(self):
        super().__init__({"pc": PC_BITS, "past_end": 1, "word": 8 * INSTRUCTION_BYTES})


class Redirect(data.StructLayout):
    """Continue at `target` (a pulse of `valid`); what was fetched before is dropped."""

    def __init__(self):
        super().__init__({"valid": 1, "target": PC_BITS})


class Fetch(wiring.Component):
    """Streams the instructions from the program counter on.

    ``redirect`` sets the PC, drops the instruction that stands at the output and starts fetching; ``stop`` ends it.
    ``count`` is the length of the program (1 .. imem_words).

    Latency: the instruction at a redirect's target stands at ``instruction`` one cycle after the redirect. Initiation
    interval: 1. Cost: the RAM (256 x imem_words), about 40 FF.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    def __init__(self, *, imem_words: int):
        if not 2 <= imem_words <= 1 << PC_BITS:
            raise ValueError(f"imem_words = {imem_words}: 2 to {1 << PC_BITS} instructions are allowed")
        self.imem_words = imem_words
        super().__init__(
            {
                "w_en": In(1),
                "w_addr": In(range(imem_words)),
                "w_data": In(8 * INSTRUCTION_BYTES),
                "count": In(PC_BITS + 1),
                "redirect": In(Redirect()),
                "stop": In(1),
                "instruction": Out(stream.Signature(Fetched())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.imem = imem = RamSdp(width=8 * INSTRUCTION_BYTES, depth=self.imem_words, read_latency=1)
        m.d.comb += [imem.w_en.eq(self.w_en), imem.w_addr.eq(self.w_addr), imem.w_data.eq(self.w_data)]
        pc = Signal(PC_BITS + 1)
        here = Signal(PC_BITS)
        past_end, running = Signal(), Signal()
        read, address = Signal(), Signal(PC_BITS + 1)
        with m.If(self.redirect.valid):
            m.d.comb += [read.eq(1), address.eq(self.redirect.target)]
        with m.Elif(running & self.instruction.ready):
            m.d.comb += [read.eq(1), address.eq(pc)]
        m.d.comb += [
            imem.r_en.eq(read),
            imem.r_addr.eq(address),
            self.instruction.valid.eq(running & ~self.redirect.valid),
            self.instruction.payload.pc.eq(here),
            self.instruction.payload.past_end.eq(past_end),
            self.instruction.payload.word.eq(imem.r_data),
        ]
        with m.If(read):
            # The memory holds its output while r_en is 0, so the output register is the RAM's own.
            m.d.sync += [running.eq(1), here.eq(address), past_end.eq(address >= self.count), pc.eq(address + 1)]
        with m.If(self.stop):
            m.d.sync += running.eq(0)
        return m
