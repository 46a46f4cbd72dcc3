"""SimMemory: the memory behind the core's ports in simulation. Timing rules here, bytes in ``hr_sim_store.v``.

`PortTiming` decides when a beat moves; replacing it by another component with its signature replaces the memory's
timing and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from headrace.hw.axi import ADDRESS_BITS, BEAT_BITS, BEAT_BYTES, MemoryPort
from headrace.hw.machine import Machine
from headrace.hw.ram import ram_sources, read_verilog
from headrace.hw.stream_fifo import StreamFifo

BEAT_ADDRESS_BITS = ADDRESS_BITS - exact_log2(BEAT_BYTES)
TIME_BITS = 32
"""Of the cycle stamps in the queues: nothing waits in one for as long as 2**31 cycles."""


@dataclass(frozen=True, kw_only=True)
class MemoryTiming:
    """Timing of all ports, in core cycles."""

    ports: int
    p: int
    q: int
    read_latency: int
    trefi: int
    trfc: int
    queue_bursts: int = 64
    """Addresses that a port's queue holds: the memory's own limit on outstanding reads and, apart, on writes."""

    @classmethod
    def of(cls, machine: Machine) -> "MemoryTiming":
        memory = machine.memory
        return cls(
            ports=memory.ports,
            p=memory.p,
            q=memory.q,
            read_latency=memory.read_latency_cycles,
            trefi=machine.trefi_cycles,
            trfc=machine.trfc_cycles,
        )

    def refresh_start(self, port: int) -> int:
        """Cycle after reset (modulo trefi) in which `port`'s refresh begins: staggered evenly."""
        return port * self.trefi // self.ports


def port_timing() -> wiring.Signature:
    """A port as `attach_store` wants it, seen from what decides its timing: handshakes, and which beats are read and written in this cycle."""
    return wiring.Signature(
        {
            "ar": In(MemoryPort().members["ar"].signature),
            "aw_valid": In(1),
            "w_valid": In(1),
            "aw_addr": In(ADDRESS_BITS),
            "r_valid": Out(1),
            "r_last": Out(1),
            "r_ready": In(1),
            "b_valid": Out(1),
            "b_ready": In(1),
            "read": Out(1),
            "write": Out(1),
            "read_address": Out(BEAT_ADDRESS_BITS),
            "write_address": Out(BEAT_ADDRESS_BITS),
        }
    )


class PortTiming(wiring.Component):
    """When one port moves beats: an in-order queue, a fixed latency, a beat rate and an all-bank refresh.

    A *slot* comes in p of q cycles (phase accumulator), except in the `trfc` cycles after `refresh_start` of every
    `trefi`. A slot moves one beat, read or write; a waiting write goes first. A slot that nothing uses is lost.

    - Read: the first beat of a burst is on R `read_latency` cycles after its AR was accepted, or later: beats leave in
      order, one a slot, while R is not held up.
    - Write: AW and W of a single beat are taken together in their slot; B follows `read_latency` cycles later.

    `read`, `write` tell the store what happens in this cycle, at which beats of the port.
    """

    def __init__(self, timing: MemoryTiming, *, port: int):
        if timing.read_latency < StreamFifo.LATENCY + 2 or timing.read_latency >= 1 << 20:
            raise ValueError(f"read_latency = {timing.read_latency} cycles: {StreamFifo.LATENCY + 2}..{(1 << 20) - 1} is allowed")
        if not 0 < timing.p <= timing.q:
            raise ValueError(f"p/q = {timing.p}/{timing.q}: more than 0 and at most 1 is allowed")
        if not 0 <= timing.trfc < timing.trefi:
            raise ValueError(f"trfc = {timing.trfc} cycles must be below trefi = {timing.trefi}")
        self.timing, self.port = timing, port
        super().__init__(port_timing())

    def elaborate(self, platform):
        m = Module()
        t = self.timing
        now = Signal(TIME_BITS)
        m.d.sync += now.eq(now + 1)

        # The slot.
        rate = Signal()
        if t.p == t.q:
            m.d.comb += rate.eq(1)
        else:
            phase = Signal(range(t.q))
            m.d.comb += rate.eq(phase + t.p >= t.q)
            m.d.sync += phase.eq(Mux(rate, phase + t.p - t.q, phase + t.p))
        refresh = Signal()
        since = Signal(range(t.trefi), init=(-t.refresh_start(self.port)) % t.trefi)
        m.d.sync += since.eq(Mux(since == t.trefi - 1, 0, since + 1))
        m.d.comb += refresh.eq(since < t.trfc)
        slot = Signal()
        m.d.comb += slot.eq(rate & ~refresh)

        # Queues hold the cycle from which on their head may move.
        m.submodules.reads = reads = StreamFifo(
            data.StructLayout({"beat": BEAT_ADDRESS_BITS, "len": 4, "due": TIME_BITS}), depth=t.queue_bursts
        )
        m.submodules.answers = answers = StreamFifo(TIME_BITS, depth=t.queue_bursts)

        # Reads. The head burst is copied out so that a new one follows without a gap. A read in cycle c shows on R in
        # c + 1, so it is due one cycle before its latency is over.
        busy = Signal()
        due = Signal()
        beat = Signal(BEAT_ADDRESS_BITS)
        left = Signal(4)
        take = Signal()
        finish = Signal()
        arrived = Signal()
        m.d.comb += [
            reads.i.valid.eq(self.ar.valid),
            self.ar.ready.eq(reads.i.ready),
            reads.i.payload.beat.eq(self.ar.payload.addr >> exact_log2(BEAT_BYTES)),
            reads.i.payload.len.eq(self.ar.payload.len),
            reads.i.payload.due.eq(now + (t.read_latency - 1)),
            arrived.eq((now - reads.o.payload.due)[-1] == 0),
            due.eq(busy | (reads.o.valid & arrived)),
            self.write.eq(slot & self.aw_valid & self.w_valid & answers.i.ready),
            self.read.eq(slot & ~self.write & due & (~self.r_valid | self.r_ready)),
            take.eq(self.read & ~busy),
            finish.eq(self.read & Mux(busy, left == 1, reads.o.payload.len == 0)),
            reads.o.ready.eq(take),
        ]
        with m.If(take):
            m.d.sync += [beat.eq(reads.o.payload.beat + 1), left.eq(reads.o.payload.len), busy.eq(~finish)]
        with m.Elif(self.read):
            m.d.sync += [beat.eq(beat + 1), left.eq(left - 1), busy.eq(~finish)]
        m.d.sync += self.r_valid.eq(self.read | (self.r_valid & ~self.r_ready))
        with m.If(self.read):
            m.d.sync += self.r_last.eq(finish)

        # Writes.
        m.d.comb += [
            answers.i.valid.eq(self.write),
            answers.i.payload.eq(now + t.read_latency),
            self.b_valid.eq(answers.o.valid & ((now - answers.o.payload)[-1] == 0)),
            answers.o.ready.eq(self.b_valid & self.b_ready),
            self.read_address.eq(Mux(busy, beat, reads.o.payload.beat)),
            self.write_address.eq(self.aw_addr >> exact_log2(BEAT_BYTES)),
        ]
        return m


class SimMemory(wiring.Component):
    """All ports of the memory: `PortTiming` each, one `hr_sim_store` for the bytes.

    `ports` are seen from the memory. `depth_beats` is the size of the store in 32-byte beats, over all ports.
    Responses are OKAY, except that a read past `depth_beats`, and every write after one that was, answer SLAVE_ERROR.
    Writes are single beats.
    Simulation only; plusargs are those of ``hr_sim_store.v``.
    """

    def __init__(self, timing: MemoryTiming, *, depth_beats: int):
        check_depth(depth_beats, timing.ports)
        self.timing, self.depth_beats = timing, depth_beats
        super().__init__({"ports": In(MemoryPort()).array(timing.ports)})

    def elaborate(self, platform):
        m = Module()
        timings = []
        for number in range(self.timing.ports):
            m.submodules[f"timing{number}"] = timing = PortTiming(self.timing, port=number)
            timings.append(timing)
        attach_store(m, self.ports, timings, depth_beats=self.depth_beats)
        return m


def check_depth(depth_beats: int, ports: int) -> None:
    """ValueError where a memory cannot have this size."""
    if depth_beats < ports or depth_beats % ports or depth_beats > 1 << 30:
        raise ValueError(f"depth_beats = {depth_beats}: a multiple of {ports} ports up to {1 << 30} is allowed")


def attach_store(m: Module, ports: Sequence, timings: Sequence, *, depth_beats: int) -> None:
    """Give `ports` their bytes: one `hr_sim_store` (submodule ``store``) of `depth_beats`, moved as `timings` say.

    A timing has the signals of `port_timing`; its `read_address` and `write_address` go with `read` and `write`.
    """
    r_en, r_addr, r_data = [], [], []
    w_en, w_addr, w_data, w_strb = [], [], [], []
    limit = depth_beats // len(ports)
    for number, (port, timing) in enumerate(zip(ports, timings, strict=True)):
        fetched = Signal(BEAT_BITS, name=f"fetched{number}")
        past = Signal(name=f"read_past{number}")
        with m.If(timing.read):
            m.d.sync += past.eq(timing.read_address >= limit)
        wrote_past = Signal(name=f"wrote_past{number}")
        with m.If(timing.write & (timing.write_address >= limit)):
            m.d.sync += wrote_past.eq(1)
        m.d.comb += [
            timing.ar.valid.eq(port.ar.valid),
            timing.ar.payload.eq(port.ar.payload),
            port.ar.ready.eq(timing.ar.ready),
            timing.aw_valid.eq(port.aw.valid),
            timing.aw_addr.eq(port.aw.payload.addr),
            timing.w_valid.eq(port.w.valid),
            port.aw.ready.eq(timing.write),
            port.w.ready.eq(timing.write),
            port.r.valid.eq(timing.r_valid),
            timing.r_ready.eq(port.r.ready),
            port.r.payload.data.eq(fetched),
            port.r.payload.last.eq(timing.r_last),
            port.r.payload.resp.eq(Cat(Const(0, 1), past)),
            port.b.valid.eq(timing.b_valid),
            port.b.payload.resp.eq(Cat(Const(0, 1), wrote_past)),
            timing.b_ready.eq(port.b.ready),
        ]
        r_en.append(timing.read)
        w_en.append(timing.write)
        r_addr.append(timing.read_address)
        w_addr.append(timing.write_address)
        r_data.append(fetched)
        w_data.append(port.w.payload.data)
        w_strb.append(port.w.payload.strb)
    m.submodules.store = Instance(
        "hr_sim_store",
        p_PORTS=len(ports),
        p_DEPTH=depth_beats,
        p_ADDR_BITS=BEAT_ADDRESS_BITS,
        i_clk=ClockSignal(),
        i_r_en=Cat(r_en),
        i_r_addr=Cat(r_addr),
        o_r_data=Cat(r_data),
        i_w_en=Cat(w_en),
        i_w_addr=Cat(w_addr),
        i_w_data=Cat(w_data),
        i_w_strb=Cat(w_strb),
    )


def sim_memory_sources() -> dict[str, str]:
    """File name to text of the Verilog that a simulation with a `SimMemory` needs beside its own."""
    return ram_sources() | {"hr_sim_store.v": read_verilog("hr_sim_store.v")}
