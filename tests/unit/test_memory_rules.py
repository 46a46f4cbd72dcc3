"""The numba channel against the literal reference, on random traces and parameters; latencies by formula."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from memory_reference import run

from headrace.hw.memory_timing import channel_timing, load_memory
from headrace.sim.dram import Trace, simulate

BASE = load_memory("ramulator2-hbm2-2000")


def make(requests, **extra):
    write, bank, row = (np.array(column) for column in zip(*requests, strict=True))
    return Trace(write=write, bank=bank, row=row, **extra)


def random_timing(rng):
    """Small timings of all kinds, so that many rules meet; refresh often."""
    def pick(low, high):
        return int(rng.integers(low, high + 1))

    bl = pick(1, 4)
    ccds = bl + pick(0, 1)
    return dataclasses.replace(
        channel_timing(BASE),
        pcs=pick(1, 2), bank_groups=2 ** pick(0, 2), banks_per_group=2 ** pick(0, 2),
        cl=pick(1, 14), cwl=pick(1, 8), bl=bl, rcdrd=pick(1, 14), rcdwr=pick(1, 12), rp=pick(1, 14), ras=pick(1, 30), rc=pick(1, 48),
        rtp=pick(1, 6), wr=pick(0, 14), ccds=ccds, ccdl=ccds + pick(0, 3), rrds=pick(1, 5), rrdl=pick(1, 8), faw=pick(0, 40),
        wtrs=pick(0, 6), wtrl=pick(0, 9), rtw=pick(1, 16), ppd=pick(0, 3), refi=pick(150, 500), rfc=pick(10, 90), rfcpb=pick(5, 40),
        rrefd=pick(0, 9), act_cycles=pick(1, 4), pre_cycles=pick(1, 2), column_cycles=pick(1, 4), buses=pick(1, 2), queue=pick(1, 20),
        page=str(rng.choice(["open", "closed"])), refresh=str(rng.choice(["none", "all-bank", "per-bank"])),
    )  # fmt: skip


def random_requests(rng, timing, number):
    writes = rng.random(number) < rng.choice([0.0, 0.1, 0.5, 1.0])
    rows = rng.integers(0, rng.choice([1, 2, 4, 1000]), number)
    banks = rng.integers(0, timing.banks, number)
    if rng.random() < 0.4:  # runs in one row
        banks = np.repeat(banks, 8)[:number]
        rows = np.repeat(rows, 8)[:number]
    return [(int(w), int(b), int(r)) for w, b, r in zip(writes, banks, rows, strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_every_cycle_equals_the_literal_rules(seed):
    rng = np.random.default_rng(seed)
    timing = random_timing(rng)
    requests = random_requests(rng, timing, 200)
    options = {}
    if rng.random() < 0.5:
        options["arrival"] = np.cumsum(rng.integers(0, rng.choice([2, 10, 60]), len(requests)))
    ports = int(rng.integers(0, 4))
    ratio = Fraction(int(rng.integers(1, 9)), 9)
    fifo = int(rng.choice([1, 2, 40]))
    if ports:
        options["port"] = rng.integers(0, ports, len(requests))
    accepted, completed, _ = run(
        timing, requests, arrival=options.get("arrival"), ports=ports, port_of=options.get("port"), p=ratio.numerator, q=ratio.denominator,
        fifo=fifo,
    )
    result = simulate(make(requests, **options), timing, ports=ports, port_ratio=ratio if ports else Fraction(1), port_fifo=fifo)
    print("seed", seed, timing)
    assert result.accepted.tolist() == accepted
    assert result.completed.tolist() == completed


def test_auto_precharge_may_come_before_a_waiting_precharge_could():
    """A read closes its row while the recovery of an earlier write still holds a precharge back."""
    rng = np.random.default_rng(10_051)
    timing = random_timing(rng)
    requests = random_requests(rng, timing, 10_000)[:720]
    assert timing.page == "closed"
    _, completed, _ = run(timing, requests)
    assert simulate(make(requests), timing).completed.tolist() == completed


def test_the_comparison_sees_a_parameter_that_is_one_off():
    rng = np.random.default_rng(1)
    timing = channel_timing(BASE, refresh="all-bank")
    requests = [(int(rng.random() < 0.3), int(rng.integers(0, 8)), int(rng.integers(0, 3))) for _ in range(300)]
    _, completed, _ = run(timing, requests)
    for name in ("cl", "rcdrd", "rp", "ras", "rc", "rrds", "act_cycles", "queue"):
        other = dataclasses.replace(timing, **{name: getattr(timing, name) + 1})
        assert simulate(make(requests), other).completed.tolist() != completed, name


def test_commands_are_legal_in_the_log_of_the_reference():
    """tFAW and the row bus seen from outside the rules: no five activates in a window, none within two cycles."""
    rng = np.random.default_rng(2)
    timing = channel_timing(BASE)
    _, _, log = run(timing, random_requests(rng, timing, 200))
    acts = [(cycle, bank // timing.banks_per_pc) for cycle, kind, bank in log if kind == "ACT"]
    for pc in range(2):
        times = [cycle for cycle, where in acts if where == pc]
        assert all(b - a >= timing.faw for a, b in zip(times, times[4:], strict=False))
    cycles = [cycle for cycle, _ in acts]
    assert all(b - a >= 2 for a, b in zip(cycles, cycles[1:], strict=False))


@pytest.mark.parametrize("name", ["ramulator2-hbm2-2000", "dramsim3-hbm2-8gb-x128", "ramulator2-ddr4-2400", "dramsim3-lpddr4-8gb-x16-2400", "u280-hbm2"])
def test_unloaded_latencies_differ_by_trcd_and_trp(name):
    timing = channel_timing(load_memory(name))
    far = 1000
    result = simulate(make([(0, 0, 5), (0, 0, 5), (0, 0, 6)], arrival=np.array([0, far, 2 * far])), timing)
    closed, hit, miss = (result.completed - result.accepted).tolist()
    assert hit == 1 + timing.cl + timing.bl
    assert closed - hit == timing.rcdrd
    assert miss - closed == timing.rp


def test_writes_drain_in_batches_and_reads_wait_for_them():
    timing = channel_timing(BASE, queue=10)
    requests = [(1, 0, 0)] * 9 + [(0, 4, 0)] * 3
    result = simulate(make(requests), timing)
    assert result.writes == 9 and result.reads == 3
    # Write mode from the start (no read is there); it ends once fewer than 2 writes wait.
    order = np.argsort(result.completed, kind="stable").tolist()
    assert order.index(9) > order.index(7)


@pytest.mark.parametrize(
    "field, values, words",
    [("bank", [0, 32], "bank"), ("row", [0, -1], "row"), ("write", [0, 2], "write"), ("arrival", [0, -5], "arrival")],
)
def test_a_trace_out_of_range_is_refused(field, values, words):
    columns = {"bank": [0, 0], "row": [0, 0], "write": [0, 0], field: values}
    with pytest.raises(ValueError, match=f"trace.{words}"):
        simulate(Trace(**{name: np.array(value) for name, value in columns.items()}), channel_timing(BASE))


def test_bad_parameters_are_refused():
    timing = channel_timing(BASE)
    for change, words in (({"queue": 65}, "queue = 65"), ({"pcs": 3}, "pcs = 3"), ({"bl": 3}, "bl <= ccds"), ({"page": "ajar"}, "page"), ({"refresh": "all-bank", "rfc": 0}, "rfc")):
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(timing, **change)
