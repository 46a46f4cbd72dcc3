"""cocotb test of VectorBuffer, run by test_buffers.py: all ports at random against a numpy-free model."""

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

ROWS = 16
WAITING = ("mv", "st", "sys")  # readers by priority


@cocotb.test()
async def all_ports_at_random(dut):
    seed = int(os.environ["SEED"])
    dut._log.info("seed %d", seed)
    rng = random.Random(seed)
    dut.rst.value = 0
    for port in ("w_sfu", "w_mv", "w_ld", "r_sfu"):
        getattr(dut, f"{port}__valid").value = 0
    for port in WAITING:
        getattr(dut, f"r_{port}__request__valid").value = 0
    Clock(dut.clk, 2, "ns", impl="gpi").start()
    model = {}
    writes = {"mv": None, "ld": None}
    reads = {port: None for port in WAITING}
    due = []  # (cycle, port, data, or None where anything may come)
    counts = dict.fromkeys(("w_sfu", "w_mv", "w_ld", "r_sfu", "r_mv", "r_st", "r_sys"), 0)
    for cycle in range(4000):
        await FallingEdge(dut.clk)
        sfu_write = (rng.randrange(ROWS), rng.getrandbits(256)) if rng.random() < 0.3 else None
        dut.w_sfu__valid.value = sfu_write is not None
        if sfu_write:
            dut.w_sfu__row.value, dut.w_sfu__data.value = sfu_write
        for port in writes:
            if writes[port] is None and rng.random() < 0.4:
                writes[port] = (rng.randrange(ROWS), rng.getrandbits(256))
            getattr(dut, f"w_{port}__valid").value = writes[port] is not None
            if writes[port]:
                row, data = writes[port]
                getattr(dut, f"w_{port}__payload").value = row << 256 | data
        sfu_read = rng.randrange(ROWS) if rng.random() < 0.3 else None
        dut.r_sfu__valid.value = sfu_read is not None
        if sfu_read is not None:
            dut.r_sfu__row.value = sfu_read
        for port in WAITING:
            if reads[port] is None and rng.random() < 0.3:
                reads[port] = rng.randrange(ROWS)
            getattr(dut, f"r_{port}__request__valid").value = reads[port] is not None
            if reads[port] is not None:
                getattr(dut, f"r_{port}__request__payload").value = reads[port]
        await Timer(500, "ps")

        # Data of the requests two cycles ago, and nobody else's.
        now = [item for item in due if item[0] == cycle]
        due = [item for item in due if item[0] > cycle]
        for port in WAITING:
            assert getattr(dut, f"r_{port}__valid").value == any(p == port for _, p, _ in now), f"cycle {cycle}: {port} valid"
        for _, port, data in now:
            got = int(getattr(dut, f"r_{port}__data").value)
            assert data is None or got == data, f"cycle {cycle}: {port} read {got:#x}, expected {data:#x}"

        # One write and one read, by priority.
        written = None
        if sfu_write:
            written, winner = sfu_write, "sfu"
        elif writes["mv"]:
            written, winner = writes["mv"], "mv"
        elif writes["ld"]:
            written, winner = writes["ld"], "ld"
        assert dut.w_mv__ready.value == (sfu_write is None)
        assert dut.w_ld__ready.value == (sfu_write is None and writes["mv"] is None)
        requests = [("sfu", sfu_read)] + [(port, reads[port]) for port in WAITING]
        reader, row = next(((p, r) for p, r in requests if r is not None), (None, None))
        taken = False
        for port, request in requests:
            if port != "sfu" and request is not None:
                assert getattr(dut, f"r_{port}__request__ready").value == (not taken), f"cycle {cycle}: {port} ready"
            taken = taken or request is not None
        if reader is not None:
            collides = written is not None and written[0] == row
            due.append((cycle + 2, reader, None if collides else model.get(row)))
            counts[f"r_{reader}"] += 1
            if reader != "sfu":
                reads[reader] = None
        if written:
            model[written[0]] = written[1]
            counts[f"w_{winner}"] += 1
            if winner != "sfu":
                writes[winner] = None
    dut._log.info("%s", counts)
    assert all(count > 50 for count in counts.values()), counts
