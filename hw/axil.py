"""AXI4-Lite slave with the register map of docs/machine.md, section 5."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.counters import COUNTER_BASE
from headrace.hw.isa import AXIL_ID, ISA_VERSION

ADDRESS_BITS = 12
ID, VERSION, CAP0, CAP1, CONTROL, STATUS, ERROR, ERROR_PC, ARGUMENTS, HEADER_WORD = (
    0x00, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x40,
)  # fmt: skip
ARGUMENT_COUNT = 8
START_BIT, SNAPSHOT_BIT = 0, 1
OKAY, SLVERR = 0, 2


class AxiLite(wiring.Signature):
    """AXI4-Lite from the master's side: five valid/ready streams, 32 data bits."""

    def __init__(self):
        super().__init__(
            {
                "aw": Out(stream.Signature(data.StructLayout({"addr": ADDRESS_BITS}))),
                "w": Out(stream.Signature(data.StructLayout({"data": 32, "strb": 4}))),
                "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
                "ar": Out(stream.Signature(data.StructLayout({"addr": ADDRESS_BITS}))),
                "r": In(stream.Signature(data.StructLayout({"data": 32, "resp": 2}))),
            }
        )


class AxiLiteRegisters(wiring.Component):
    """Register map. One access at a time per direction; byte strobes are honoured in arguments and header word.

    Reads and writes of an address that does not exist (or a write to a read-only one) answer SLVERR and change
    nothing; addresses are taken modulo 4. ``start`` and ``snapshot`` pulse when a 1 is written to their bit.

    Latency: 2 cycles from AR to R, 1 from AW and W to B. Initiation interval: 3 and 2.
    Cost: 32 x 9 FF of registers, about 350 LUT.
    """

    LATENCY = 2
    INITIATION_INTERVAL = 3

    def __init__(self, *, cap0: int, cap1: int, counters: int):
        if COUNTER_BASE + 8 * counters > 1 << ADDRESS_BITS:
            raise ValueError(f"{counters} counters do not fit the {1 << ADDRESS_BITS} bytes of the register map")
        self.cap0, self.cap1, self.counters = cap0, cap1, counters
        super().__init__(
            {
                "axil": In(AxiLite()),
                "start": Out(1),
                "snapshot": Out(1),
                "arguments": Out(32 * ARGUMENT_COUNT),
                "header_word": Out(32),
                "busy": In(1),
                "done": In(1),
                "error": In(1),
                "error_code": In(8),
                "error_queue": In(8),
                "error_pc": In(16),
                "counter_index": Out(range(2 * counters + 1)),
                "counter_data": In(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus = self.axil

        # Writes: address and data are taken together.
        arguments = [Signal(32, name=f"argument_{i + 1}") for i in range(ARGUMENT_COUNT)]
        header_word = Signal(32)
        m.d.comb += [self.arguments.eq(Cat(*arguments)), self.header_word.eq(header_word)]
        accept = Signal()
        m.d.comb += [
            accept.eq(bus.aw.valid & bus.w.valid & ~bus.b.valid),
            bus.aw.ready.eq(accept),
            bus.w.ready.eq(accept),
        ]
        with m.If(bus.b.valid & bus.b.ready):
            m.d.sync += bus.b.valid.eq(0)
        with m.If(accept):
            m.d.sync += [bus.b.valid.eq(1), bus.b.payload.resp.eq(OKAY)]
            with m.Switch(bus.aw.payload.addr[2:]):
                with m.Case(CONTROL >> 2):
                    with m.If(bus.w.payload.strb[0]):
                        m.d.comb += [
                            self.start.eq(bus.w.payload.data[START_BIT]),
                            self.snapshot.eq(bus.w.payload.data[SNAPSHOT_BIT]),
                        ]
                registers = {ARGUMENTS + 4 * i: register for i, register in enumerate(arguments)}
                for address, register in (registers | {HEADER_WORD: header_word}).items():
                    with m.Case(address >> 2):
                        for i in range(4):
                            with m.If(bus.w.payload.strb[i]):
                                m.d.sync += register[8 * i : 8 * i + 8].eq(bus.w.payload.data[8 * i : 8 * i + 8])
                with m.Default():
                    m.d.sync += bus.b.payload.resp.eq(SLVERR)

        # Reads: cycle 0 takes the address, cycle 1 selects (the counters' own register is ready then), cycle 2 answers.
        address, pending = Signal(ADDRESS_BITS - 2), Signal()
        take = Signal()
        m.d.comb += [take.eq(bus.ar.valid & ~pending & ~bus.r.valid), bus.ar.ready.eq(~pending & ~bus.r.valid)]
        first = COUNTER_BASE >> 2
        m.d.comb += self.counter_index.eq(bus.ar.payload.addr[2:] - first)
        m.d.sync += pending.eq(take)
        with m.If(take):
            m.d.sync += address.eq(bus.ar.payload.addr[2:])
        with m.If(bus.r.valid & bus.r.ready):
            m.d.sync += bus.r.valid.eq(0)
        values = {
            ID: AXIL_ID,
            VERSION: ISA_VERSION,
            CAP0: self.cap0,
            CAP1: self.cap1,
            CONTROL: 0,
            STATUS: Cat(self.busy, self.done, self.error),
            ERROR: Cat(self.error_code, self.error_queue),
            ERROR_PC: self.error_pc,
            HEADER_WORD: header_word,
        } | {ARGUMENTS + 4 * i: register for i, register in enumerate(arguments)}
        with m.If(pending):
            m.d.sync += [bus.r.valid.eq(1), bus.r.payload.resp.eq(OKAY)]
            with m.Switch(address):
                for at, value in values.items():
                    with m.Case(at >> 2):
                        m.d.sync += bus.r.payload.data.eq(value)
                with m.Default():
                    m.d.sync += bus.r.payload.data.eq(self.counter_data)
                    with m.If((address < first) | (address >= first + 2 * self.counters)):
                        m.d.sync += [bus.r.payload.data.eq(0), bus.r.payload.resp.eq(SLVERR)]
        return m
