"""Control: fetch, sequencer, queues, tokens, boot, counters, error latch, AXI4-Lite."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from headrace.hw.axil import AxiLite, AxiLiteRegisters
from headrace.hw.boot import Boot
from headrace.hw.command_queue import CommandQueue, CommandQueueParameters
from headrace.hw.counters import Counters, counter_address
from headrace.hw.fetch import Fetch
from headrace.hw.isa import Command, Done, Error, Queue
from headrace.hw.machine import Machine
from headrace.hw.sequencer import UNITS, RowResponse, Sequencer
from headrace.hw.tokens import TokenCounters
from headrace.hw.watchdog import Watchdog

UNIT_QUEUES = (Queue.LD, Queue.ST, Queue.MV, Queue.VEC)
WIDTH_BITS = {4: 0, 8: 1}
"""Bit of cap1's widths mask for each weight width of version 1."""


@dataclass(frozen=True, kw_only=True)
class ControlParameters:
    """machine: the machine. stall_causes: for LD, ST, MV, VEC in this order, the names of their `stall` bits."""

    machine: Machine
    stall_causes: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...] = (4, 8)

    def __post_init__(self):
        if len(self.stall_causes) != UNITS:
            raise ValueError(f"stall_causes has {len(self.stall_causes)} entries; one for each of LD, ST, MV, VEC")
        if not self.widths or set(self.widths) - set(WIDTH_BITS):
            raise ValueError(f"widths = {self.widths}: some of {sorted(WIDTH_BITS)} are allowed")

    @property
    def capabilities(self) -> tuple[int, int]:
        """(cap0, cap1) as docs/machine.md, section 5 defines them."""
        machine = self.machine
        cap0 = machine.array.macs_per_cycle | machine.memory.ports << 16 | machine.sfu.lanes << 24
        return cap0, sum(1 << WIDTH_BITS[width] for width in self.widths) | 1 << 12

    @property
    def counter_names(self) -> tuple[str, ...]:
        """Names of the counters in the order of their addresses.

        All but ``boot_cycles`` and ``errors`` count while a program runs. For each unit, ``active``, the stalls,
        ``wait_token`` and ``idle`` partition ``cycles``; ``busy`` = active + stalls. For the sequencer the six ``sys_*``
        activities do.
        """
        names = ["cycles", "boot_cycles"]
        names += [f"instructions_{queue.name.lower()}" for queue in Queue]
        for queue, causes in zip(UNIT_QUEUES, self.stall_causes, strict=True):
            unit = queue.name.lower()
            names += [f"{unit}_busy", f"{unit}_active", *(f"{unit}_stall_{cause}" for cause in causes)]
            names += [f"{unit}_wait_token", f"{unit}_idle"]
        names += [f"sys_{activity}" for activity in Sequencer.ACTIVITY]
        for kind in ("read", "write"):
            names += [f"{kind}_beats_port{i}" for i in range(self.machine.memory.ports)]
        return (*names, "mac_slices", "errors")

    def counter_map(self) -> dict[str, int]:
        """Name to AXI-Lite address, for JSON beside the Verilog."""
        return {name: counter_address(i) for i, name in enumerate(self.counter_names)}

    def partitions(self) -> dict[str, tuple[str, ...]]:
        """For each unit and "sys": the counters that add up to ``cycles``."""
        result = {}
        for queue, causes in zip(UNIT_QUEUES, self.stall_causes, strict=True):
            unit = queue.name.lower()
            stalls = (f"{unit}_stall_{cause}" for cause in causes)
            result[unit] = (f"{unit}_active", *stalls, f"{unit}_wait_token", f"{unit}_idle")
        return result | {"sys": tuple(f"sys_{activity}" for activity in Sequencer.ACTIVITY)}


class TraceRecord(data.StructLayout):
    """A retired instruction, as a pulse of `valid`."""

    def __init__(self):
        super().__init__({"valid": 1, "pc": 16, "sig": 32})


class UnitPort(wiring.Signature):
    """A unit from control's side."""

    def __init__(self, causes: int):
        super().__init__(
            {
                "cmd": Out(stream.Signature(Command())),
                "done": In(Done()),
                "error": In(Error()),
                "active": In(1),
                "stall": In(causes),
            }
        )


class Control(wiring.Component):
    """Everything between the host, the instruction stream and the four units.

    ``start`` (AXI-Lite) clears tokens and counters, boots, runs from instruction 0 and ends with ``irq`` and `done`
    (HALT) or `error`. The first error is kept with queue, code and PC until reset: nothing is dispatched or started
    any more, and a new start is ignored. In one cycle the order is: units (LD first), token overflow, sequencer,
    boot, watchdog.

    ``retired[q]`` pulses one cycle after an instruction of queue q retired, with ``cycle`` = cycles since instruction 0
    was fetched, at the retirement. ``row_request`` -> ``row_response`` is VB's r_sys. ``read_beat``, ``write_beat`` (one
    bit per port) and ``mac_slice`` pulse for the counters.
    """

    LATENCY = Sequencer.LATENCY + CommandQueue.LATENCY
    """From fetch of an instruction to its earliest start in a unit."""
    INITIATION_INTERVAL = 1

    def __init__(self, parameters: ControlParameters):
        self.parameters = parameters
        machine = parameters.machine
        ports = machine.memory.ports
        super().__init__(
            {
                "axil": In(AxiLite()),
                "irq": Out(1),
                "words": In(stream.Signature(machine.word_bits)),
                "row_request": Out(stream.Signature(range(machine.buffers.vector_rows))),
                "row_response": In(RowResponse(32 * machine.sfu.lanes)),
                "read_beat": In(ports),
                "write_beat": In(ports),
                "mac_slice": In(1),
                "retired": Out(data.ArrayLayout(TraceRecord(), len(Queue))),
                "cycle": Out(64),
            }
            | {
                queue.name.lower(): Out(UnitPort(len(causes)))
                for queue, causes in zip(UNIT_QUEUES, parameters.stall_causes, strict=True)
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters, machine = self.parameters, self.parameters.machine
        cap0, cap1 = parameters.capabilities
        imem_words = machine.buffers.imem_words
        names = parameters.counter_names
        m.submodules.registers = registers = AxiLiteRegisters(cap0=cap0, cap1=cap1, counters=len(names))
        m.submodules.boot = boot = Boot(word_bytes=machine.word_bytes, imem_words=imem_words, cap0=cap0, cap1=cap1)
        m.submodules.fetch = fetch = Fetch(imem_words=imem_words)
        m.submodules.sequencer = sequencer = Sequencer(
            widths=parameters.widths, vector_rows=machine.buffers.vector_rows, lanes=machine.sfu.lanes
        )
        m.submodules.tokens = tokens = TokenCounters()
        m.submodules.watchdog = watchdog = Watchdog(cycles=machine.control.watchdog_cycles)
        m.submodules.counters = counters = Counters(names)
        units = [getattr(self, queue.name.lower()) for queue in UNIT_QUEUES]
        queues = []
        for queue in UNIT_QUEUES:
            queues.append(CommandQueue(CommandQueueParameters(depth=machine.control.queue_depth)))
            m.submodules[f"queue_{queue.name.lower()}"] = queues[-1]

        # Host.
        connect(m, registers.axil, flipped(self.axil))
        running, done, error = Signal(), Signal(), Signal()
        start = Signal()
        m.d.comb += [
            start.eq(registers.start & ~registers.busy & ~error),
            registers.busy.eq(boot.load | running),
            registers.done.eq(done),
            registers.error.eq(error),
        ]
        m.d.sync += self.irq.eq(done | error)
        with m.If(start):
            m.d.sync += done.eq(0)
        with m.If(boot.run):
            m.d.sync += running.eq(1)
        with m.If(sequencer.halted):
            m.d.sync += [running.eq(0), done.eq(1)]

        # Boot and fetch.
        m.d.comb += [
            boot.start.eq(start),
            boot.stop.eq(error),
            boot.arguments.eq(registers.arguments),
            boot.header_word.eq(registers.header_word),
            boot.done.eq(self.ld.done.valid),
            fetch.w_en.eq(boot.w_en),
            fetch.w_addr.eq(boot.w_addr),
            fetch.w_data.eq(boot.w_data),
            fetch.count.eq(boot.count),
            fetch.redirect.valid.eq(boot.run | sequencer.redirect.valid),
            fetch.redirect.target.eq(Mux(boot.run, 0, sequencer.redirect.target)),
            fetch.stop.eq(sequencer.halted | error),
            sequencer.count.eq(boot.count),
            sequencer.register_write.eq(boot.register_write),
            sequencer.halt.eq(~running | error),
        ]
        connect(m, boot.words, flipped(self.words))
        connect(m, fetch.instruction, sequencer.instruction)
        connect(m, sequencer.row_request, flipped(self.row_request))
        m.d.comb += sequencer.row_response.eq(self.row_response)

        # Queues, units, tokens.
        retires = [queue.retire for queue in queues] + [sequencer.retire]
        for i, (queue, unit) in enumerate(zip(queues, units, strict=True)):
            m.d.comb += [
                queue.push.valid.eq(sequencer.push_valid[i]),
                queue.push.payload.eq(sequencer.push),
                sequencer.push_ready[i].eq(queue.push.ready),
                queue.ok.eq(tokens.ok[i]),
                queue.halt.eq(error),
                queue.clear.eq(start),
                queue.done.eq(unit.done),
                unit.cmd.valid.eq(queue.cmd.valid),
                unit.cmd.payload.eq(queue.cmd.payload),
                queue.cmd.ready.eq(unit.cmd.ready),
                tokens.wait[i].eq(queue.wait),
                tokens.take[i].eq(queue.take),
                watchdog.waits[i].eq(queue.waits),
            ]
        with m.If(boot.load):
            # Boot borrows LD before the program runs; its loads are no instructions of the program.
            m.d.comb += [
                self.ld.cmd.valid.eq(boot.cmd.valid),
                self.ld.cmd.payload.eq(boot.cmd.payload),
                queues[Queue.LD].done.valid.eq(0),
            ]
        m.d.comb += [
            boot.cmd.ready.eq(boot.load & self.ld.cmd.ready),
            sequencer.ok.eq(tokens.ok[Queue.SYS]),
            tokens.wait[Queue.SYS].eq(sequencer.wait),
            tokens.take[Queue.SYS].eq(sequencer.take),
            tokens.clear.eq(start),
            sequencer.drained.eq(Cat(*(queue.empty for queue in queues)).all()),
        ]
        for i, retire in enumerate(retires):
            m.d.comb += tokens.release[i].eq(Mux(retire.valid, retire.release, 0))
        retired = Cat(*(retire.valid for retire in retires))
        m.d.comb += [
            # While the program loads, every instruction written is progress.
            watchdog.retire.eq(retired.any() | boot.w_en),
            watchdog.running.eq((boot.load | running) & ~error),
            watchdog.sys_pc.eq(sequencer.pc),
        ]

        # Trace.
        cycle = Signal(64)
        with m.If(running):
            m.d.sync += cycle.eq(cycle + 1)
        with m.If(start):
            m.d.sync += cycle.eq(0)
        m.d.sync += self.cycle.eq(cycle)
        for i, retire in enumerate(retires):
            m.d.sync += self.retired[i].valid.eq(retire.valid)
            with m.If(retire.valid):
                m.d.sync += [self.retired[i].pc.eq(retire.pc), self.retired[i].sig.eq(retire.sig)]

        # Errors: (pulse, queue, code, pc), the first in the list wins.
        sources = [(unit.error.valid, i, unit.error.code, unit.error.pc) for i, unit in enumerate(units)]
        sources += [(tokens.overflow[i], i, 3, retire.pc) for i, retire in enumerate(retires)]
        sources += [
            (sequencer.error.valid, sequencer.error_queue, sequencer.error.code, sequencer.error.pc),
            (boot.error, int(Queue.SYS), boot.error_code, 0),
            (watchdog.expired, watchdog.queue, 5, watchdog.pc),
        ]
        any_error = Signal()
        m.d.comb += any_error.eq(Cat(*(source[0] for source in sources)).any())
        with m.If(any_error & ~error):
            m.d.sync += [error.eq(1), running.eq(0), done.eq(0)]
            for pulse, queue, code, pc in reversed(sources):
                with m.If(pulse):
                    m.d.sync += [
                        registers.error_queue.eq(queue),
                        registers.error_code.eq(code),
                        registers.error_pc.eq(pc),
                    ]

        # Counters.
        events = [running, boot.load]
        gated = [*(retired[i] for i in range(len(Queue)))]
        for queue, unit in zip(queues, units, strict=True):
            gated += [unit.active, unit.active & ~unit.stall.any()]
            gated += [unit.active & unit.stall[c] & ~unit.stall[:c].any() for c in range(len(unit.stall))]
            gated += [~unit.active & queue.waits.token, ~unit.active & ~queue.waits.token]
        gated += list(sequencer.activity)
        gated += [*self.read_beat, *self.write_beat, self.mac_slice]
        events += [running & event for event in gated] + [any_error]
        m.d.comb += [
            counters.events.eq(Cat(*events)),
            counters.clear.eq(start),
            counters.snapshot.eq(registers.snapshot),
            counters.read_index.eq(registers.counter_index),
            registers.counter_data.eq(counters.read_data),
        ]
        return m
