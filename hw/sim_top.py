"""SimTop: the machine's own Verilog, the simulated memory and the retirement trace, for co-simulation."""

from amaranth.hdl import Cat, ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw import top
from headrace.hw.axil import AxiLite
from headrace.hw.dram_ports import DramPorts, dram_of
from headrace.hw.emit import to_verilog
from headrace.hw.isa import Queue
from headrace.hw.machine import Machine
from headrace.hw.ram import read_verilog
from headrace.hw.sim_dram import SimDram, core_clock, sim_dram_sources
from headrace.hw.sim_memory import MemoryTiming, SimMemory, sim_memory_sources

MODULE = "headrace_sim"


class SimTop(wiring.Component):
    """`Top` as an instance of its emitted Verilog (the very file that is synthesised), with memory and trace.

    `memory_words`: size of the simulated memory, in machine words. `dram`: `dram_of(machine)`.
    Plusargs: those of ``hr_sim_store.v`` (+image, +dump.., +poison) and ``hr_sim_trace.v`` (+trace).
    Clock and reset are `clk` and `rst`. Where DRAM channels serve the ports, the clock is the memory's, `dram_clk`, and `clk`
    is an output: the core's, for a host that moves on its falling edges (`sim_dram.core_clock`).
    """

    def __init__(self, machine: Machine, *, memory_words: int, dram: DramPorts | None = None):
        self.machine, self.memory_words, self.dram = machine, memory_words, dram
        clocks = {} if self.dram is None else {"dram_clk": In(1), "rst": In(1), "clk": Out(1)}
        super().__init__({"axil": In(AxiLite()), "irq": Out(1), **clocks})

    def elaborate(self, platform):
        m = Module()
        ports = self.machine.memory.ports
        if self.dram is not None:
            m.d.comb += self.clk.eq(core_clock(m, self.dram, dram_clk=self.dram_clk, rst=self.rst))
        signature = top.top_signature(self.machine)
        core = signature.create()
        connections = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in signature.flatten(core):
            direction = "o" if member.flow == wiring.Out else "i"
            connections[f"{direction}_{'__'.join(map(str, path))}"] = value
        m.submodules.core = Instance(top.MODULE, **connections)

        depth_beats = self.memory_words * ports
        m.submodules.memory = memory = (
            SimMemory(MemoryTiming.of(self.machine), depth_beats=depth_beats)
            if self.dram is None
            else SimDram(self.dram, depth_beats=depth_beats)
        )
        for ours, theirs in zip(core.mem, memory.ports, strict=True):
            for name in ("ar", "aw", "w"):
                source, sink = getattr(ours, name), getattr(theirs, name)
                m.d.comb += [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
            for name in ("r", "b"):
                source, sink = getattr(theirs, name), getattr(ours, name)
                m.d.comb += [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
        for name in ("aw", "w", "ar"):
            source, sink = getattr(self.axil, name), getattr(core.axil, name)
            m.d.comb += [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
        for name in ("b", "r"):
            source, sink = getattr(core.axil, name), getattr(self.axil, name)
            m.d.comb += [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
        m.d.comb += self.irq.eq(core.irq)
        m.submodules.trace = Instance(
            "hr_sim_trace",
            p_QUEUES=len(Queue),
            i_clk=ClockSignal(),
            i_cycle=core.cycle,
            i_valid=Cat(record.valid for record in core.retired),
            i_pc=Cat(record.pc for record in core.retired),
            i_sig=Cat(record.sig for record in core.retired),
        )
        return m


def sim_sources(machine: Machine, *, memory_words: int) -> dict[str, str]:
    """File name to Verilog text of the simulation, top module `MODULE`."""
    dram = dram_of(machine)  # before any component: Amaranth warns of components that a mistake leaves unused
    return (
        {f"{MODULE}.v": to_verilog(SimTop(machine, memory_words=memory_words, dram=dram), MODULE)}
        | top.top_sources(machine, simulation=True)
        | (sim_memory_sources() if dram is None else sim_dram_sources(dram))
        | {"hr_sim_trace.v": read_verilog("hr_sim_trace.v")}
    )
