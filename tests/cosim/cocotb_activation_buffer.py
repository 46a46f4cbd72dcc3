"""cocotb test of ActivationBuffer, run by test_buffers.py: all ports at random against a model."""

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

SLICES = 8
LOW = (1 << 64) - 1


@cocotb.test()
async def all_ports_at_random(dut):
    seed = int(os.environ["SEED"])
    dut._log.info("seed %d", seed)
    rng = random.Random(seed)
    dut.rst.value = 0
    for port in ("w_sfu", "w_ld", "r_sfu", "r_mv"):
        getattr(dut, f"{port}__valid").value = 0
    dut.r_st__request__valid.value = 0
    Clock(dut.clk, 2, "ns", impl="gpi").start()
    model = {(s, h): None for s in range(SLICES) for h in range(2)}  # None: never written
    loading = storing = None
    due = []  # (cycle, port, [(half, data), ...] that must match)
    counts = dict.fromkeys(("w_sfu", "w_ld", "sfu", "st", "mv"), 0)
    for cycle in range(4000):
        await FallingEdge(dut.clk)
        sfu_write = (rng.randrange(SLICES), rng.randrange(2), rng.getrandbits(64)) if rng.random() < 0.4 else None
        dut.w_sfu__valid.value = sfu_write is not None
        if sfu_write:
            dut.w_sfu__slice.value, dut.w_sfu__half.value, dut.w_sfu__data.value = sfu_write
        if loading is None and rng.random() < 0.3:
            loading = (rng.randrange(SLICES), rng.getrandbits(128))
        dut.w_ld__valid.value = loading is not None
        if loading:
            dut.w_ld__payload.value = loading[0] << 128 | loading[1]
        direct = {port: rng.randrange(SLICES) if rng.random() < 0.5 else None for port in ("mv", "sfu")}
        for port, slice_ in direct.items():
            getattr(dut, f"r_{port}__valid").value = slice_ is not None
            if slice_ is not None:
                getattr(dut, f"r_{port}__slice").value = slice_
        if storing is None and rng.random() < 0.5:
            storing = rng.randrange(SLICES)
        dut.r_st__request__valid.value = storing is not None
        if storing is not None:
            dut.r_st__request__payload.value = storing
        await Timer(500, "ps")

        now = [item for item in due if item[0] == cycle]
        due = [item for item in due if item[0] > cycle]
        assert dut.r_st__valid.value == any(port == "st" for _, port, _ in now), f"cycle {cycle}: r_st valid"
        for _, port, halves in now:
            got = int(getattr(dut, f"r_{port}__data").value)
            for half, data in halves:
                assert got >> 64 * half & LOW == data, f"cycle {cycle}: {port} half {half} read {got:#x}, expected {data:#x}"

        assert dut.w_ld__ready.value == (sfu_write is None)
        assert dut.r_st__request__ready.value == (direct["sfu"] is None)
        written = sfu_write[0] if sfu_write else loading[0] if loading else None
        readers = dict(direct)
        if direct["sfu"] is None:
            readers["st"] = storing
            storing = None
        for port, slice_ in readers.items():
            if slice_ is not None:
                known = [(h, model[slice_, h]) for h in range(2) if model[slice_, h] is not None and slice_ != written]
                due.append((cycle + 2, port, known))
                counts[port] += 1
        if sfu_write:
            model[sfu_write[0], sfu_write[1]] = sfu_write[2]
            counts["w_sfu"] += 1
        elif loading:
            for half in range(2):
                model[loading[0], half] = loading[1] >> 64 * half & LOW
            loading = None
            counts["w_ld"] += 1
    dut._log.info("%s", counts)
    assert all(count > 300 for count in counts.values()), counts
