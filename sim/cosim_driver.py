"""The cocotb side of `sim.cosim`: reset, arguments, start, sleep until the interrupt, counters.

Where DRAM channels serve the ports, the clock that is driven is the memory's command clock, and the core's comes out of the design; the
host moves on the core's.

Runs inside the simulator's process; its orders come in the environment (HEADRACE_COSIM: JSON), its findings go to the
file that they name. Between start and interrupt Python does not run: the clock is libgpi's, the memory is Verilog.
"""

import json
import os
import time
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer, with_timeout

from headrace.hw import axil

PERIOD_NS = 2
RESET_CYCLES = 4


class Host:
    """AXI4-Lite master. Signals change on falling edges, so that no race with the design's clock edge exists."""

    def __init__(self, dut):
        self.dut = dut
        for name in ("axil__aw__valid", "axil__w__valid", "axil__ar__valid", "axil__b__ready", "axil__r__ready"):
            getattr(dut, name).value = 0

    async def write(self, address: int, value: int) -> None:
        """Raises RuntimeError where the machine does not answer OKAY."""
        dut = self.dut
        dut.axil__aw__payload.value = address
        dut.axil__w__payload.value = value | 0xF << 32
        dut.axil__aw__valid.value = dut.axil__w__valid.value = 1
        dut.axil__b__ready.value = 1
        while True:
            await FallingEdge(dut.clk)
            if int(dut.axil__b__valid.value):
                break
        dut.axil__aw__valid.value = dut.axil__w__valid.value = 0
        response = int(dut.axil__b__payload.value)
        await FallingEdge(dut.clk)
        dut.axil__b__ready.value = 0
        if response != axil.OKAY:
            raise RuntimeError(f"write of {value:#x} to register {address:#x}: response {response}")

    async def read(self, address: int) -> int:
        dut = self.dut
        dut.axil__ar__payload.value = address
        dut.axil__ar__valid.value = 1
        await FallingEdge(dut.clk)
        dut.axil__ar__valid.value = 0
        while not int(dut.axil__r__valid.value):
            await FallingEdge(dut.clk)
        payload = int(dut.axil__r__payload.value)
        dut.axil__r__ready.value = 1
        await FallingEdge(dut.clk)
        dut.axil__r__ready.value = 0
        if payload >> 32 != axil.OKAY:
            raise RuntimeError(f"read of register {address:#x}: response {payload >> 32}")
        return payload & 0xFFFFFFFF


@cocotb.test()
async def machine(dut):
    orders = json.loads(os.environ["HEADRACE_COSIM"])
    host = Host(dut)
    dut.rst.value = 1
    Clock(getattr(dut, orders["clock"]), PERIOD_NS, "ns", impl="gpi").start()
    for _ in range(RESET_CYCLES):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    for i, value in enumerate(orders["arguments"]):
        await host.write(axil.ARGUMENTS + 4 * i, value)
    await host.write(axil.HEADER_WORD, orders["header_word"])
    await host.write(axil.CONTROL, 1 << axil.START_BIT)
    started = time.perf_counter()
    if not int(dut.irq.value):
        await with_timeout(RisingEdge(dut.irq), PERIOD_NS * orders["limit_clocks"], "ns")
    seconds = time.perf_counter() - started
    await Timer(PERIOD_NS, "ns")
    await FallingEdge(dut.clk)
    await host.write(axil.CONTROL, 1 << axil.SNAPSHOT_BIT)
    status = {name: await host.read(getattr(axil, name.upper())) for name in ("status", "error", "error_pc")}
    counters = {}
    for name, address in orders["counters"].items():
        counters[name] = await host.read(address) | await host.read(address + 4) << 32
    Path(orders["result"]).write_text(json.dumps({"seconds": seconds, "counters": counters} | status))
