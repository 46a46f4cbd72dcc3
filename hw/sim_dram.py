"""SimDram: the memory behind the core's ports where DRAM channels serve them (``docs/memory.md``, section 12). Simulation only.

Two clocks, whose edges meet: the core's (domain ``sync``) and the memory's command clock (domain ``dram``), from which
``hr_sim_clock.v`` makes the core's. What crosses is only registers of one side that the other reads: counters of the
places of a ring, and what stands in the places.
"""

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, DomainRenamer, Instance, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from headrace.hw.axi import BEAT_BYTES, MemoryPort
from headrace.hw.dram_channel import DramChannel
from headrace.hw.dram_ports import ADDRESS_QUEUE, READ_RING, WRITE_RING, DramPorts
from headrace.hw.emit import to_verilog
from headrace.hw.ram import read_verilog
from headrace.hw.sim_memory import BEAT_ADDRESS_BITS, TIME_BITS, attach_store, check_depth, port_timing, sim_memory_sources
from headrace.hw.stream_fifo import StreamFifo

MODULE = "hr_sim_dram"
"""Of the emitted `SimDramChannel`: channels are alike, so all are instances of one module."""

READ_TAG_BITS = exact_log2(READ_RING) + 1
"""A place of the read ring, and above it the parity of the lap round the ring."""


class Burst(data.StructLayout):
    """Where a beat lies in its pseudo-channel; `bank` is ``bank_group * banks_per_group + bank``."""

    def __init__(self, config: DramPorts):
        banks = config.timing.bank_groups * config.timing.banks_per_group
        rows = sum(bits for name, bits in config.fields if name == "row")
        super().__init__({"bank": max(1, (banks - 1).bit_length()), "row": max(1, rows)})


def split_beat(config: DramPorts, beat: Value) -> tuple[Value, Value]:
    """(bank within the pseudo-channel, row) of a port's beat address: `DramPorts.split` in hardware."""
    parts = {"bank_group": [], "bank": [], "row": [], "column": []}
    at = 0
    for name, bits in config.fields:
        parts[name].append(beat[at : at + bits])
        at += bits
    return Cat(parts["bank_group"]) * config.timing.banks_per_group + Cat(parts["bank"]), Cat(parts["row"])


class DramPort(wiring.Component):
    """Queues and rings of one port: section 12 from AR to the channel, from completions to R, and the same for writes.

    port
        The core's side, in its clock.
    read_waits, read, read_tag; write_waits, write
        The oldest beats that have not entered the channel, from registers of both clocks; `read_enters`, `write_enters`
        (command clock) take them.
    read_done, read_done_tag; write_done
        A beat's completion cycle (command clock).

    A ring's places are counted by pointers of one bit more than an index: places put in and places freed by the core's
    clock, places entered by the command clock. A completed read writes the parity of its lap to a bit of its place,
    so that nothing has to clear it; a new lap finds it wrong. Therefore one reset, at the start.
    """

    def __init__(self, config: DramPorts):
        self.config = config
        super().__init__(
            {
                "port": Out(port_timing()),
                "read_waits": Out(1),
                "read": Out(Burst(config)),
                "read_tag": Out(READ_TAG_BITS),
                "read_enters": In(1),
                "read_done": In(1),
                "read_done_tag": In(READ_TAG_BITS),
                "write_waits": Out(1),
                "write": Out(Burst(config)),
                "write_enters": In(1),
                "write_done": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        now = Signal(TIME_BITS)
        m.d.sync += now.eq(now + 1)
        self._reads(m, now)
        self._writes(m, now)
        return m

    def _reads(self, m: Module, now: Signal) -> None:
        port, config = self.port, self.config
        m.submodules.reads = reads = StreamFifo(
            data.StructLayout({"beat": BEAT_ADDRESS_BITS, "len": 4, "due": TIME_BITS}), depth=ADDRESS_QUEUE
        )
        put, entered, moved = (Signal(READ_TAG_BITS, name=f"read_{name}") for name in ("put", "entered", "moved"))

        # From the queue into the ring. The head burst is copied out, so that the next one follows without a gap.
        busy, fill, final = Signal(), Signal(), Signal()
        beat, left = Signal(BEAT_ADDRESS_BITS), Signal(4)
        head = Signal(BEAT_ADDRESS_BITS)
        m.d.comb += [
            reads.i.valid.eq(port.ar.valid),
            port.ar.ready.eq(reads.i.ready),
            reads.i.payload.beat.eq(port.ar.payload.addr >> exact_log2(BEAT_BYTES)),
            reads.i.payload.len.eq(port.ar.payload.len),
            reads.i.payload.due.eq(now + config.latency),
            fill.eq(((put ^ moved) != READ_RING) & (busy | (reads.o.valid & _reached(now, reads.o.payload.due)))),
            final.eq(Mux(busy, left == 1, reads.o.payload.len == 0)),
            reads.o.ready.eq(fill & ~busy),
            head.eq(Mux(busy, beat, reads.o.payload.beat)),
        ]
        with m.If(fill):
            m.d.sync += [
                put.eq(put + 1),
                beat.eq(head + 1),
                left.eq(Mux(busy, left - 1, reads.o.payload.len)),
                busy.eq(~final),
            ]

        # The ring: one entry enters the channel, one moves to R.
        m.submodules.read_ring = ring = Memory(shape=data.StructLayout({"beat": BEAT_ADDRESS_BITS, "last": 1}), depth=READ_RING, init=[])
        m.submodules.read_done = done = Memory(shape=1, depth=READ_RING, init=[])
        fill_port, done_port = ring.write_port(), done.write_port(domain="dram")
        entering, moving, seen = ring.read_port(domain="comb"), ring.read_port(domain="comb"), done.read_port(domain="comb")
        bank, row = split_beat(config, entering.data.beat)
        m.d.comb += [
            fill_port.en.eq(fill),
            fill_port.addr.eq(put[:-1]),
            fill_port.data.beat.eq(head),
            fill_port.data.last.eq(final),
            entering.addr.eq(entered[:-1]),
            self.read_waits.eq(put != entered),
            self.read.bank.eq(bank),
            self.read.row.eq(row),
            self.read_tag.eq(entered),
            done_port.en.eq(self.read_done),
            done_port.addr.eq(self.read_done_tag[:-1]),
            done_port.data.eq(~self.read_done_tag[-1]),
            moving.addr.eq(moved[:-1]),
            seen.addr.eq(moved[:-1]),
            port.read.eq((seen.data != moved[-1]) & (~port.r_valid | port.r_ready)),
            port.read_address.eq(moving.data.beat),
        ]
        m.d.dram += entered.eq(entered + self.read_enters)
        m.d.sync += [moved.eq(moved + port.read), port.r_valid.eq(port.read | (port.r_valid & ~port.r_ready))]
        with m.If(port.read):
            m.d.sync += port.r_last.eq(moving.data.last)

    def _writes(self, m: Module, now: Signal) -> None:
        port, config = self.port, self.config
        burst = Burst(config)
        m.submodules.writes = writes = StreamFifo(data.StructLayout({"burst": burst, "due": TIME_BITS}), depth=ADDRESS_QUEUE)
        pointer_bits = exact_log2(WRITE_RING) + 1
        put, entered, answered, completed = (
            Signal(pointer_bits, name=f"write_{name}") for name in ("put", "entered", "answered", "completed")
        )
        beat, fill = Signal(BEAT_ADDRESS_BITS), Signal()
        bank, row = split_beat(config, beat)
        m.submodules.write_ring = ring = Memory(shape=burst, depth=WRITE_RING, init=[])
        fill_port, entering = ring.write_port(), ring.read_port(domain="comb")
        m.d.comb += [
            beat.eq(port.aw_addr >> exact_log2(BEAT_BYTES)),
            port.write.eq(port.aw_valid & port.w_valid & writes.i.ready),
            port.write_address.eq(beat),
            writes.i.valid.eq(port.write),
            writes.i.payload.burst.bank.eq(bank),
            writes.i.payload.burst.row.eq(row),
            writes.i.payload.due.eq(now + config.latency),
            fill.eq(writes.o.valid & _reached(now, writes.o.payload.due) & ((put ^ answered) != WRITE_RING)),
            writes.o.ready.eq(fill),
            fill_port.en.eq(fill),
            fill_port.addr.eq(put[:-1]),
            fill_port.data.eq(writes.o.payload.burst),
            entering.addr.eq(entered[:-1]),
            self.write_waits.eq(put != entered),
            self.write.eq(entering.data),
            port.b_valid.eq(completed != answered),
        ]
        m.d.sync += [put.eq(put + fill), answered.eq(answered + (port.b_valid & port.b_ready))]
        m.d.dram += [entered.eq(entered + self.write_enters), completed.eq(completed + self.write_done)]


def _reached(now: Signal, due: Value) -> Value:
    """Cycle stamps wrap; nothing waits for half of their range."""
    return ~(now - due)[TIME_BITS - 1]


def channel_signature(config: DramPorts) -> wiring.Signature:
    """The ports of `SimDramChannel`."""
    return wiring.Signature({"ports": Out(port_timing()).array(config.timing.pcs)})


class SimDramChannel(wiring.Component):
    """One channel with its ports: `DramPort` each, the arbiter of section 12, `DramChannel`, and the delays to completion."""

    def __init__(self, config: DramPorts):
        self.config = config
        super().__init__(channel_signature(config))

    def elaborate(self, platform):
        m = Module()
        config, t = self.config, self.config.timing
        pcs, banks_per_pc = t.pcs, t.bank_groups * t.banks_per_group
        ports = [DramPort(config) for _ in range(pcs)]
        for number, port in enumerate(ports):
            m.submodules[f"port{number}"] = port
            connect(m, port.port, flipped(self.ports[number]))

        channel = DramChannel(t, row_bits=len(ports[0].read.row), tag_bits=READ_TAG_BITS + 1)
        m.submodules.channel = DomainRenamer("dram")(channel)
        request, done = channel.request, channel.done

        # Arbiter. What is ready is accepted: the channel's queue had room as the cycle began, and there are no tokens.
        sources = [(number, write) for number in range(pcs) for write in (0, 1)]
        ready, chosen = Signal(len(sources)), Signal(len(sources))
        turn = Signal(range(len(sources)))
        for i, (number, write) in enumerate(sources):
            port = ports[number]
            m.d.comb += [
                ready[i].eq((port.write_waits if write else port.read_waits) & channel.room[write]),
                (port.write_enters if write else port.read_enters).eq(chosen[i]),
            ]
        with m.Switch(turn):
            for first in range(len(sources)):
                with m.Case(first):
                    for step in range(len(sources)):
                        i = (first + step) % len(sources)
                        with m.If(ready[i]) if step == 0 else m.Elif(ready[i]):
                            m.d.comb += chosen[i].eq(1)
        m.d.comb += request.valid.eq(chosen.any())
        for i, (number, write) in enumerate(sources):
            port = ports[number]
            burst = port.write if write else port.read
            with m.If(chosen[i]):
                m.d.comb += [
                    request.payload.write.eq(write),
                    request.payload.bank.eq(number * banks_per_pc + burst.bank),
                    request.payload.row.eq(burst.row),
                    request.payload.tag.eq(Cat(Const(0, READ_TAG_BITS) if write else port.read_tag, number)),
                ]
                m.d.dram += turn.eq((i + 1) % len(sources))

        # Completion: the last bit of a delay line is 1 in the completion cycle. A read's tag waits in a queue.
        read_delay, write_delay = t.cl + t.bl, t.cwl + t.bl
        read_line, write_lines = Signal(read_delay), [Signal(write_delay, name=f"write_line{number}") for number in range(pcs)]
        of_port = [done.payload.tag[READ_TAG_BITS:] == number for number in range(pcs)]
        m.d.dram += read_line.eq(Cat(done.valid & ~done.payload.write, read_line))
        for number, line in enumerate(write_lines):
            m.d.dram += line.eq(Cat(done.valid & done.payload.write & of_port[number], line))
            m.d.comb += ports[number].write_done.eq(line[-1])
        pointer_bits = max(1, read_delay.bit_length())
        m.submodules.tags = tags = Memory(shape=READ_TAG_BITS + 1, depth=1 << pointer_bits, init=[])
        tag_in, tag_out = tags.write_port(domain="dram"), tags.read_port(domain="comb")
        newest, oldest = Signal(pointer_bits), Signal(pointer_bits)
        m.d.comb += [
            tag_in.en.eq(done.valid & ~done.payload.write),
            tag_in.addr.eq(newest),
            tag_in.data.eq(done.payload.tag),
            tag_out.addr.eq(oldest),
        ]
        m.d.dram += [newest.eq(newest + tag_in.en), oldest.eq(oldest + read_line[-1])]
        for number, port in enumerate(ports):
            m.d.comb += [
                port.read_done.eq(read_line[-1] & (tag_out.data[READ_TAG_BITS:] == number)),
                port.read_done_tag.eq(tag_out.data[:READ_TAG_BITS]),
            ]
        return m


class SimDram(wiring.Component):
    """All ports of the memory, with the interface of `SimMemory` and the timing of ``docs/memory.md`` section 12.

    `ports` are seen from the memory. `depth_beats` is the size of the store in 32-byte beats, over all ports.
    Responses as `SimMemory`. A write's bytes change when AW and W are taken; a read gives those of the cycle in which its
    beat moves to R. Needs domain ``dram`` beside ``sync``: `core_clock`. Reset once, before the first beat.
    """

    def __init__(self, config: DramPorts, *, depth_beats: int):
        check_depth(depth_beats, config.ports)
        self.config, self.depth_beats = config, depth_beats
        super().__init__({"ports": In(MemoryPort()).array(config.ports)})

    def elaborate(self, platform):
        m = Module()
        signature = channel_signature(self.config)
        timings = []
        for number in range(self.config.channels):
            channel = signature.create()
            connections = {"i_clk": ClockSignal(), "i_rst": ResetSignal(), "i_dram_clk": ClockSignal("dram"), "i_dram_rst": ResetSignal("dram")}
            for path, member, value in signature.flatten(channel):
                direction = "o" if member.flow == wiring.Out else "i"
                connections[f"{direction}_{'__'.join(map(str, path))}"] = value
            m.submodules[f"channel{number}"] = Instance(MODULE, **connections)
            timings += channel.ports
        attach_store(m, self.ports, timings, depth_beats=self.depth_beats)
        return m


def core_clock(m: Module, config: DramPorts, *, dram_clk: Signal, rst: Signal) -> Signal:
    """Adds the domains ``dram`` (clock `dram_clk`) and ``sync`` (the core's, made of it) to `m`; both are reset by `rst`.

    Returns the core's clock. `rst` changes on falling edges of it; cycle 0 of both clocks begins at its first rising edge after `rst` fell.
    """
    m.domains.sync = sync = ClockDomain()
    m.domains.dram = dram = ClockDomain()
    reset = Signal()
    m.submodules.clock = Instance(
        "hr_sim_clock", p_P=config.p, p_Q=config.q, i_dram_clk=dram_clk, i_rst=rst, o_clk=sync.clk, o_reset=reset
    )
    m.d.comb += [sync.rst.eq(reset), dram.rst.eq(reset), dram.clk.eq(dram_clk)]
    return sync.clk


def sim_dram_sources(config: DramPorts) -> dict[str, str]:
    """File name to text of the Verilog that a simulation with a `SimDram` needs beside its own."""
    return sim_memory_sources() | {
        f"{MODULE}.v": to_verilog(SimDramChannel(config), MODULE),
        "hr_sim_clock.v": read_verilog("hr_sim_clock.v"),
    }
