"""The queue before a unit: holds dispatched commands, takes their tokens, starts them, and retires them in order."""

from dataclasses import dataclass

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from headrace.hw.isa import Command, Done
from headrace.hw.tokens import QUEUES


class QueuedCommand(data.StructLayout):
    """A command with its token masks, as the sequencer dispatches it."""

    def __init__(self):
        super().__init__({"command": Command(), "wait": QUEUES, "release": QUEUES})


class Retire(data.StructLayout):
    """Retirement of an instruction: a pulse of `valid` with its release mask."""

    def __init__(self):
        super().__init__({"valid": 1, "pc": 16, "sig": 32, "release": QUEUES})


class WaitState(data.StructLayout):
    """What a queue waits for, for the watchdog: its oldest unfinished instruction is at `pc`."""

    def __init__(self):
        super().__init__({"token": 1, "unit": 1, "pc": 16})


@dataclass(frozen=True, kw_only=True)
class CommandQueueParameters:
    """depth: commands held before they start; in_flight: commands started and not retired. Powers of two."""

    depth: int
    in_flight: int = 8

    def __post_init__(self):
        for name in ("depth", "in_flight"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name} = {value}: it must be a power of two of at least 2")


class CommandQueue(wiring.Component):
    """FIFO of commands in front of one unit.

    The head is offered to the unit (``cmd``) when the token counters say ``ok`` for its ``wait`` mask; ``take``
    pulses when it starts. A NOP (op[4:0] = 0) starts without the unit. Started commands stand in an in-order list;
    each leaves it, as a ``retire`` pulse, on the unit's ``done`` for it; a NOP does so by itself once it is the
    oldest. A ``done`` that comes while an older NOP is still there is kept, so no pulse is lost.
    ``halt`` stops starting (the machine has failed; only a reset or ``clear`` follows).

    Latency: a command pushed in cycle t can start in t + 1; a NOP that starts in t retires in t + 1; a ``done`` with
    nothing older retires in its own cycle. Initiation interval: 1. Cost: (272 + 54) * depth bits of distributed RAM,
    about 320 FF.
    """

    LATENCY = 1
    INITIATION_INTERVAL = 1

    def __init__(self, parameters: CommandQueueParameters):
        self.parameters = parameters
        super().__init__(
            {
                "push": In(stream.Signature(QueuedCommand())),
                "cmd": Out(stream.Signature(Command())),
                "done": In(Done()),
                "wait": Out(QUEUES),
                "ok": In(1),
                "take": Out(1),
                "retire": Out(Retire()),
                "halt": In(1),
                "clear": In(1),
                "empty": Out(1),
                "waits": Out(WaitState()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth, flights = self.parameters.depth, self.parameters.in_flight

        # Waiting commands: the oldest in the register `head`, the others in a memory behind it.
        m.submodules.waiting = waiting = Memory(shape=QueuedCommand(), depth=depth, init=[])
        write, read = waiting.write_port(), waiting.read_port(domain="comb")
        head, head_valid = Signal(QueuedCommand()), Signal()
        behind = Signal(range(depth + 1))
        push, start = Signal(), Signal()
        m.d.comb += [
            self.push.ready.eq(behind < depth - 1),
            push.eq(self.push.valid & self.push.ready),
            write.data.eq(self.push.payload),
        ]
        load = ~head_valid | start
        with m.If(load):
            m.d.sync += head_valid.eq(push | (behind != 0))
            with m.If(behind != 0):
                m.d.sync += [head.eq(read.data), read.addr.eq(read.addr + 1)]
            with m.Elif(push):
                m.d.sync += head.eq(self.push.payload)
        bypass = load & (behind == 0)
        pop = load & (behind != 0)
        with m.If(push & ~bypass):
            m.d.comb += write.en.eq(1)
            m.d.sync += write.addr.eq(write.addr + 1)
        m.d.sync += behind.eq(behind + (push & ~bypass) - pop)

        # Started commands.
        entry = data.StructLayout({"pc": 16, "release": QUEUES, "nop": 1})
        m.submodules.started = started = Memory(shape=entry, depth=flights, init=[])
        enter, oldest = started.write_port(), started.read_port(domain="comb")
        count = Signal(range(flights + 1))
        is_nop = head.command.op[:5] == 0
        may_start = head_valid & self.ok & ~self.halt & (count != flights)
        m.d.comb += [
            self.wait.eq(Mux(head_valid, head.wait, 0)),
            self.cmd.payload.eq(head.command),
            self.cmd.valid.eq(may_start & ~is_nop),
            start.eq(may_start & (is_nop | self.cmd.ready)),
            self.take.eq(start),
            enter.en.eq(start),
            enter.data.pc.eq(head.command.pc),
            enter.data.release.eq(head.release),
            enter.data.nop.eq(is_nop),
        ]
        with m.If(start):
            m.d.sync += enter.addr.eq(enter.addr + 1)

        # `done` pulses that an older NOP keeps from retiring at once.
        m.submodules.kept = kept = Memory(shape=Done(), depth=flights, init=[])
        keep, first = kept.write_port(), kept.read_port(domain="comb")
        kept_count = Signal(range(flights + 1))
        finished = Signal(Done())
        direct, use_kept, retire = Signal(), Signal(), Signal()
        m.d.comb += [
            finished.eq(Mux(kept_count != 0, first.data.as_value(), self.done.as_value())),
            use_kept.eq((count != 0) & ~oldest.data.nop & (kept_count != 0)),
            direct.eq((count != 0) & ~oldest.data.nop & (kept_count == 0) & self.done.valid),
            retire.eq((count != 0) & (oldest.data.nop | use_kept | direct)),
            keep.data.eq(self.done),
            keep.en.eq(self.done.valid & ~direct),
            self.retire.valid.eq(retire),
            self.retire.pc.eq(Mux(oldest.data.nop, oldest.data.pc, finished.pc)),
            self.retire.sig.eq(Mux(oldest.data.nop, 0, finished.sig)),
            self.retire.release.eq(oldest.data.release),
        ]
        with m.If(retire):
            m.d.sync += oldest.addr.eq(oldest.addr + 1)
        with m.If(keep.en):
            m.d.sync += keep.addr.eq(keep.addr + 1)
        with m.If(use_kept):
            m.d.sync += first.addr.eq(first.addr + 1)
        m.d.sync += [
            count.eq(count + start - retire),
            kept_count.eq(kept_count + keep.en - use_kept),
        ]

        m.d.comb += [
            self.empty.eq(~head_valid & (count == 0)),
            self.waits.token.eq(head_valid & ~self.ok),
            self.waits.unit.eq(count != 0),
            self.waits.pc.eq(Mux(head_valid & ~self.ok, head.command.pc, oldest.data.pc)),
        ]
        with m.If(self.clear):
            m.d.sync += [head_valid.eq(0), behind.eq(0), count.eq(0), kept_count.eq(0)]
            m.d.sync += [port.addr.eq(0) for port in (write, read, enter, oldest, keep, first)]
        return m
