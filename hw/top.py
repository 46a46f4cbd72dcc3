"""Top: the whole machine, from memory ports to the host's AXI4-Lite port."""

import json

from amaranth.hdl import Cat, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from headrace.hw.activation_buffer import ActivationBuffer
from headrace.hw.axi import ADDRESS_BITS, BEAT_BYTES, MemoryPort
from headrace.hw.axil import AxiLite
from headrace.hw.control import Control, ControlParameters, TraceRecord
from headrace.hw.emit import to_verilog
from headrace.hw.isa import Queue
from headrace.hw.ld_unit import LdParameters, LdUnit
from headrace.hw.machine import Machine
from headrace.hw.mv_unit import MvUnit, mv_sources
from headrace.hw.sfu import Sfu, sfu_sources
from headrace.hw.sfu_sequencer import SfuParameters
from headrace.hw.st_unit import StParameters, StUnit
from headrace.hw.stream_fifo import StreamFifo
from headrace.hw.vector_buffer import VectorBuffer

MODULE = "headrace_top"
MEMORY_WORDS = (1 << ADDRESS_BITS) // BEAT_BYTES
"""Words that the ports' addresses reach: every port has `ADDRESS_BITS` of bytes, and a word is one beat of each."""


def control_parameters(machine: Machine) -> ControlParameters:
    return ControlParameters(
        machine=machine,
        stall_causes=(LdUnit.STALL_CAUSES, StUnit.STALL_CAUSES, MvUnit.STALL_CAUSES, Sfu.STALL_CAUSES),
    )


def top_signature(machine: Machine) -> wiring.Signature:
    """The ports of `Top`."""
    return wiring.Signature(
        {
            "mem": Out(MemoryPort()).array(machine.memory.ports),
            "axil": In(AxiLite()),
            "irq": Out(1),
            "retired": Out(data.ArrayLayout(TraceRecord(), len(Queue))),
            "cycle": Out(64),
        }
    )


class Top(wiring.Component):
    """The machine of docs/machine.md.

    ``mem``: one AXI3-shaped port for each memory port. ``axil``: the host. ``irq``: done or error. ``retired`` and
    ``cycle``: the retirement trace (`Control`), for simulation and in-system analysers; leave open otherwise.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.control = control_parameters(machine)
        super().__init__(top_signature(machine))

    def elaborate(self, platform):
        m = Module()
        machine = self.machine
        buffers = machine.buffers
        m.submodules.control = control = Control(self.control)
        m.submodules.ld = ld = LdUnit(LdParameters.of(machine, memory_words=MEMORY_WORDS))
        m.submodules.st = st = StUnit(StParameters.of(machine, memory_words=MEMORY_WORDS))
        m.submodules.mv = mv = MvUnit(machine=machine)
        m.submodules.sfu = sfu = Sfu(SfuParameters.of(machine))
        m.submodules.raw = raw = StreamFifo(machine.word_bits, depth=buffers.raw_fifo_words)
        m.submodules.vb = vb = VectorBuffer(rows=buffers.vector_rows)
        m.submodules.ab = ab = ActivationBuffer(slices=buffers.activation_slices)

        # Host and trace.
        connect(m, flipped(self.axil), control.axil)
        m.d.comb += [self.irq.eq(control.irq), self.retired.eq(control.retired), self.cycle.eq(control.cycle)]

        # Units.
        for port, unit in ((control.ld, ld), (control.st, st), (control.mv, mv), (control.vec, sfu)):
            connect(m, port.cmd, unit.cmd)
            m.d.comb += [
                port.done.eq(unit.done),
                port.error.eq(unit.error),
                port.active.eq(unit.active),
                port.stall.eq(unit.stall),
            ]
        connect(m, ld.sys, control.words)
        connect(m, ld.weights, raw.i)
        connect(m, raw.o, mv.weights)
        connect(m, ld.vb, vb.w_ld)
        connect(m, ld.ab, ab.w_ld)
        connect(m, st.vb, vb.r_st)
        connect(m, st.ab, ab.r_st)
        connect(m, mv.ab_read, ab.r_mv)
        connect(m, mv.vb_read, vb.r_mv)
        m.d.comb += [
            vb.w_mv.valid.eq(mv.vb_write.valid),
            vb.w_mv.payload.row.eq(mv.vb_write.payload.row),
            vb.w_mv.payload.data.eq(mv.vb_write.payload.data),
            mv.vb_write.ready.eq(vb.w_mv.ready),
        ]
        connect(m, sfu.vb_read, vb.r_sfu)
        connect(m, sfu.vb_write, vb.w_sfu)
        connect(m, sfu.ab_read, ab.r_sfu)
        connect(m, sfu.ab_write, ab.w_sfu)
        m.d.comb += [
            vb.r_sys.request.valid.eq(control.row_request.valid),
            vb.r_sys.request.payload.eq(control.row_request.payload),
            control.row_request.ready.eq(vb.r_sys.request.ready),
            control.row_response.valid.eq(vb.r_sys.valid),
            control.row_response.data.eq(vb.r_sys.data),
        ]

        # Memory ports: LD reads, ST writes.
        read_beats, write_beats = [], []
        for port, read, write in zip(self.mem, ld.mem, st.mem, strict=True):
            connect(m, read.ar, flipped(port.ar))
            connect(m, flipped(port.r), read.r)
            connect(m, write.aw, flipped(port.aw))
            connect(m, write.w, flipped(port.w))
            connect(m, flipped(port.b), write.b)
            read_beats.append(port.r.valid & port.r.ready)
            write_beats.append(port.w.valid & port.w.ready)
        m.d.comb += [
            control.read_beat.eq(Cat(*read_beats)),
            control.write_beat.eq(Cat(*write_beats)),
            # The array reads one activation slice for each slice of weights that it takes.
            control.mac_slice.eq(mv.ab_read.valid),
        ]
        return m


def top_sources(machine: Machine, *, simulation: bool) -> dict[str, str]:
    """File name to Verilog text of the whole machine, top module `MODULE`; with models of primitives if `simulation`."""
    return {f"{MODULE}.v": to_verilog(Top(machine), MODULE)} | sfu_sources() | mv_sources(simulation=simulation)


def memory_map(machine: Machine) -> str:
    """JSON of the host's registers and counters, to stand beside the Verilog."""
    from headrace.hw import axil

    parameters = control_parameters(machine)
    names = ("ID", "VERSION", "CAP0", "CAP1", "CONTROL", "STATUS", "ERROR", "ERROR_PC", "ARGUMENTS", "HEADER_WORD")
    registers = {name.lower(): getattr(axil, name) for name in names}
    return json.dumps({"registers": registers, "counters": parameters.counter_map()}, indent=1)
