"""cocotb tests of StreamFifo, run by test_cosim_run.py: every cycle driven from Python, which is slow and thorough."""

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

DEPTH = 8


@cocotb.test()
async def random_back_pressure(dut):
    """Order, level, and capacity, with both sides stalling at random."""
    seed = int(os.environ["SEED"])
    dut._log.info("seed %d", seed)
    rng = random.Random(seed)
    dut.rst.value = 0
    dut.i__valid.value = 0
    dut.o__ready.value = 0
    Clock(dut.clk, 2, "ns", impl="gpi").start()
    model, sent, entered_at, filled = [], 0, [], 0
    offered = None
    for cycle in range(3000):
        await FallingEdge(dut.clk)
        phase = cycle // 500 % 3
        if offered is None and rng.random() < (0.5, 0.9, 0.2)[phase]:
            offered = rng.getrandbits(45)
        dut.i__valid.value = offered is not None
        if offered is not None:
            dut.i__payload.value = offered
        ready = rng.random() < (0.5, 0.2, 0.9)[phase]
        dut.o__ready.value = ready
        await Timer(500, "ps")
        assert int(dut.level.value) == len(model), f"cycle {cycle}: level {int(dut.level.value)}, expected {len(model)}"
        assert int(dut.i__ready.value) == (len(model) < DEPTH)
        accepted = offered is not None and dut.i__ready.value == 1
        if dut.o__valid.value == 1:
            assert model, f"cycle {cycle}: an item from nowhere"
            assert int(dut.o__payload.value) == model[0], f"cycle {cycle}: item {int(dut.o__payload.value):#x}"
            if ready:
                model.pop(0)
                entered_at.pop(0)
        elif model:
            assert cycle - entered_at[0] < 3, f"cycle {cycle}: the oldest item should be out"
        if accepted:
            model.append(offered)
            entered_at.append(cycle)
            offered = None
            sent += 1
        filled = max(filled, len(model))
    assert sent > 500 and filled == DEPTH


@cocotb.test()
async def one_item_a_cycle(dut):
    """With both sides always willing, items come every cycle once the first is out."""
    Clock(dut.clk, 2, "ns", impl="gpi").start()
    dut.i__valid.value = 0
    dut.o__ready.value = 1
    for _ in range(20):
        await FallingEdge(dut.clk)
    out = []
    for cycle in range(100):
        await FallingEdge(dut.clk)
        dut.i__valid.value = 1
        dut.i__payload.value = cycle
        await Timer(500, "ps")
        assert dut.i__ready.value == 1
        if dut.o__valid.value == 1:
            out.append(int(dut.o__payload.value))
    assert out == list(range(97))
