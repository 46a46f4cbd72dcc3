"""RamSdp: the one on-chip memory of the machine, an instance of ``hw/verilog/hr_ram_sdp.v``.

Amaranth's own `Memory` writes one line of Verilog per word and starts at zero; this block starts poisoned in
simulation and is a plain inferred RAM in synthesis. Because it is an Instance, Amaranth's simulator cannot run
it: designs that hold one are tested in Verilator, with `ram_sources` added to the Verilog.
"""

from functools import cache
from pathlib import Path

from amaranth.hdl import ClockSignal, Instance, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

STYLES = ("auto", "block", "ultra", "distributed")


@cache
def read_verilog(name: str) -> str:
    """Text of a hand-written Verilog file in ``hw/verilog``."""
    return (Path(__file__).parent / "verilog" / name).read_text()


def ram_sources() -> dict[str, str]:
    """File name to text of the Verilog that every design with a `RamSdp` needs beside its own."""
    return {"hr_ram_sdp.v": read_verilog("hr_ram_sdp.v")}


class RamSdp(wiring.Component):
    """Simple dual-port RAM, one clock: ``mem[w_addr] = w_data`` where ``w_en``; ``r_data = mem[r_addr]`` after ``r_en``.

    width, depth
        Bits per word and words; addresses have ceil(log2(depth)) bits (at least 1).
    read_latency
        1 or 2 cycles from `r_en` to `r_data`, which then holds until the next read's data. Initiation interval 1.
    granularity
        Bits per write enable; None is the whole word (`w_en` of 1 bit). It divides `width`.
    style
        "auto", "block" (BRAM), "ultra" (URAM) or "distributed" (LUT RAM).

    A read and a write of the same address in one cycle: the write takes place, the read returns unspecified data.
    There is no reset: contents are unspecified until written (poisoned in simulation, plusarg ``+poison=N``).
    Cost: width * depth bits of the chosen memory; with read_latency 2 the output register folds into it.
    """

    INITIATION_INTERVAL = 1

    def __init__(
        self, *, width: int, depth: int, read_latency: int = 1, granularity: int | None = None, style: str = "auto"
    ):
        if width < 1 or depth < 1:
            raise ValueError(f"RamSdp of {width} bits x {depth} words: both must be at least 1")
        if read_latency not in (1, 2):
            raise ValueError(f"RamSdp read_latency = {read_latency}: 1 or 2 is allowed")
        granularity = width if granularity is None else granularity
        if granularity < 1 or width % granularity:
            raise ValueError(f"RamSdp granularity = {granularity} does not divide width = {width}")
        if style not in STYLES:
            raise ValueError(f"RamSdp style = {style!r}: one of {', '.join(STYLES)} is allowed")
        self.width, self.depth, self.read_latency = width, depth, read_latency
        self.granularity, self.style = granularity, style
        self.LATENCY = read_latency
        self.address_bits = max(1, ceil_log2(depth))
        super().__init__(
            {
                "w_en": In(width // granularity),
                "w_addr": In(self.address_bits),
                "w_data": In(width),
                "r_en": In(1),
                "r_addr": In(self.address_bits),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = Instance(
            "hr_ram_sdp",
            p_WIDTH=self.width,
            p_DEPTH=self.depth,
            p_ADDR_BITS=self.address_bits,
            p_GRANULARITY=self.granularity,
            p_READ_LATENCY=self.read_latency,
            p_STYLE=self.style,
            i_clk=ClockSignal(),
            i_w_en=self.w_en,
            i_w_addr=self.w_addr,
            i_w_data=self.w_data,
            i_r_en=self.r_en,
            i_r_addr=self.r_addr,
            o_r_data=self.r_data,
        )
        return m
