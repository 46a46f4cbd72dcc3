"""One lane of the SFU: vector registers, operand selection, multiplier, adder, two accumulators, and the result's last step.

The machine has several lanes and each is large, so the lane is one Verilog module of its own, instantiated by name;
`lane_sources` gives its text.
"""

from functools import cache

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.emit import to_verilog
from headrace.hw.f32_add import F32Add
from headrace.hw.f32_mul import F32Mul
from headrace.hw.ram import RamSdp, ram_sources
from headrace.hw.sfu_ucode import (
    ADD_LATENCY, A_COMMON, A_MEMORY, BLOCK_ROWS, B_COMMON, B_MEMORY, CLAMP_HIGH, CLAMP_LOW, C_COMMON, MAGIC, MUL_LATENCY,
    POST_CLAMP, POST_INDEX, POST_QUANT, PRE_EXP, PRE_RECIP, PRE_RSQRT, READ_LATENCY, RECIP_SEED, RSQRT_SEED,
    VECTOR_REGISTERS,
)  # fmt: skip

assert (F32Mul.LATENCY, F32Add.LATENCY) == (MUL_LATENCY, ADD_LATENCY), "the SFU's stages are those of its float units"

MODULE = "hr_sfu_lane"
ADDRESS_BITS = (VECTOR_REGISTERS * BLOCK_ROWS - 1).bit_length()
MAGNITUDE = 0x7FFFFFFF


class SfuLane(wiring.Component):
    """``y = post((a (*) pre(b)) (+) c)``, one row per cycle; float32 as section 2 of the contract.

    Inputs belong to the stage in their comment, counted in cycles from the issue of the row (hw/sfu_ucode.py).

    pre:  (not of memory) none; RECIP_SEED - b; RSQRT_SEED - (b >> 1); b + (register c << 23)   (32-bit integers, wrap-around)
    post: none; clip to -87 .. 80; INT8 of a sum that had MAGIC added (clipped to +-127, in bits 7..0); the index input
    An accumulating row adds accumulator `parity` instead of c, or +0 if `first`, and the sum replaces the accumulator.
    A masked row reads +0 from memory and gives +0. `nan` reports a NaN result of a row with `check`.

    Latency OUTPUT_STAGE from addresses to `y`, one more stage than the write of a vector register; interval 1
    (ACCUMULATE_PACE for accumulating rows). Reset: none, contents are unspecified until written.
    Cost: one F32Mul, one F32Add, three copies of the vector registers (8 kbit each).
    """

    INITIATION_INTERVAL = 1

    # stage 0: register addresses
    read: In(1)
    a_address: In(ADDRESS_BITS)
    b_address: In(ADDRESS_BITS)
    c_address: In(ADDRESS_BITS)
    # READ_LATENCY: operands
    memory: In(32)
    a_common: In(32)
    b_common: In(32)
    c_common: In(32)
    c_swapped: In(32)
    a_select: In(2)
    a_negate: In(1)
    b_select: In(2)
    pre: In(2)
    c_select: In(1)
    c_negate: In(1)
    memory_mask: In(1)
    c_register: Out(32)
    # OPERAND_STAGE
    a_operand: Out(32)
    # ADDEND_STAGE
    accumulate: In(1)
    first: In(1)
    parity: In(1)
    # RESULT_STAGE
    sum_parity: In(1)
    sum_store: In(1)
    post: In(2)
    mask: In(1)
    check: In(1)
    index: In(32)
    write: In(1)
    write_address: In(ADDRESS_BITS)
    # OUTPUT_STAGE
    y: Out(32)
    nan: Out(1)

    def elaborate(self, platform):
        m = Module()
        result = Signal(32)
        ports = {}
        for name in "abc":
            ram = RamSdp(width=32, depth=VECTOR_REGISTERS * BLOCK_ROWS, read_latency=READ_LATENCY, style="block")
            m.submodules[f"registers_{name}"] = ram
            m.d.comb += [
                ram.r_en.eq(self.read),
                ram.r_addr.eq(getattr(self, f"{name}_address")),
                ram.w_en.eq(self.write),
                ram.w_addr.eq(self.write_address),
                ram.w_data.eq(result),
            ]
            ports[name] = ram.r_data
        m.d.comb += self.c_register.eq(ports["c"])

        # Operands into the multiplier's input registers.
        memory = Signal(32)
        m.d.comb += memory.eq(Mux(self.memory_mask, 0, self.memory))
        a, b, b_source, c = (Signal(32, name=name) for name in ("a", "b", "b_source", "c"))
        with m.Switch(self.a_select):
            with m.Case(A_MEMORY):
                m.d.comb += a.eq(memory)
            with m.Case(A_COMMON):
                m.d.comb += a.eq(self.a_common)
            with m.Default():
                m.d.comb += a.eq(ports["a"])
        m.d.comb += b_source.eq(Mux(self.b_select == B_COMMON, self.b_common, ports["b"]))
        with m.If(self.b_select == B_MEMORY):
            m.d.comb += b.eq(memory)  # past the integer step, whose carry chain would be long behind a memory
        with m.Else():
            with m.Switch(self.pre):
                with m.Case(PRE_RECIP):
                    m.d.comb += b.eq(RECIP_SEED - b_source)
                with m.Case(PRE_RSQRT):
                    m.d.comb += b.eq(RSQRT_SEED - b_source[1:])
                with m.Case(PRE_EXP):
                    m.d.comb += b.eq(Cat(b_source[:23], b_source[23:] + ports["c"][:9]))
                with m.Default():
                    m.d.comb += b.eq(b_source)
        # c_swapped is this lane's own register where nothing is swapped.
        m.d.comb += c.eq(Mux(self.c_select == C_COMMON, self.c_common, self.c_swapped))
        a_operand, b_operand, addend = (Signal(32, name=name, reset_less=True) for name in ("a_q", "b_q", "c_q"))
        m.d.sync += [
            a_operand.eq(Cat(a[:31], a[31] ^ self.a_negate)),
            b_operand.eq(b),
            addend.eq(Cat(c[:31], c[31] ^ self.c_negate)),
        ]
        m.d.comb += self.a_operand.eq(a_operand)

        m.submodules.mul = mul = F32Mul()
        m.submodules.add = add = F32Add()
        for stage in range(MUL_LATENCY):
            delayed = Signal(32, name=f"addend_{stage}", reset_less=True)
            m.d.sync += delayed.eq(addend)
            addend = delayed
        accumulators = [Signal(32, name=f"accumulator_{i}", reset_less=True) for i in range(2)]
        partial = Mux(self.first, 0, Mux(self.parity, accumulators[1], accumulators[0]))
        m.d.comb += [
            mul.a.eq(a_operand),
            mul.b.eq(b_operand),
            add.a.eq(mul.y),
            add.b.eq(Mux(self.accumulate, partial, addend)),
        ]

        # The result.
        total = add.y
        magnitude = total[:31]
        for i in range(2):
            with m.If(self.sum_store & (self.sum_parity == i)):
                m.d.sync += accumulators[i].eq(total)
        stepped = Signal(32)
        with m.Switch(self.post):
            with m.Case(POST_CLAMP):
                with m.If(total[31] & (magnitude > (CLAMP_LOW & MAGNITUDE))):
                    m.d.comb += stepped.eq(CLAMP_LOW)
                with m.Elif(~total[31] & (magnitude > CLAMP_HIGH)):
                    m.d.comb += stepped.eq(CLAMP_HIGH)
                with m.Else():
                    m.d.comb += stepped.eq(total)
            with m.Case(POST_QUANT):
                # MAGIC + q has the pattern bits(MAGIC) + q; the order of patterns is that of values.
                with m.If(total[31] | (magnitude < MAGIC - 127)):
                    m.d.comb += stepped.eq(Const(-127, 8).as_unsigned())
                with m.Elif(magnitude > MAGIC + 127):
                    m.d.comb += stepped.eq(127)
                with m.Else():
                    m.d.comb += stepped.eq(total[:8])
            with m.Case(POST_INDEX):
                m.d.comb += stepped.eq(self.index)
            with m.Default():
                m.d.comb += stepped.eq(total)
        y, nan = Signal(32, reset_less=True), Signal()
        m.d.comb += result.eq(Mux(self.mask, 0, stepped))
        m.d.sync += [y.eq(result), nan.eq(self.check & ~self.mask & total[22:31].all())]
        m.d.comb += [self.y.eq(y), self.nan.eq(nan)]
        return m


class SfuLaneInstance(wiring.Component):
    """A lane as an Instance of the module `MODULE`: same ports as `SfuLane`, no logic of its own."""

    def __init__(self):
        super().__init__(dict(SfuLane.__annotations__))

    def elaborate(self, platform):
        m = Module()
        ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for name, member in self.signature.members.items():
            ports[f"{'i' if member.flow is In else 'o'}_{name}"] = getattr(self, name)
        m.submodules.lane = Instance(MODULE, **ports)
        return m


@cache
def lane_sources() -> dict[str, str]:
    """File name to text of the Verilog that a design with `SfuLaneInstance` needs beside its own."""
    return {f"{MODULE}.v": to_verilog(SfuLane(), MODULE), **ram_sources()}
