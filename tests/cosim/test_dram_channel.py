"""DramChannel in Verilator against `headrace.sim.dram`: acceptance and completion cycles of random traces, all equal."""

import dataclasses
import json
import time
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from dram_traces import PATTERNS, Case, random_case, random_trace

from headrace.cli import main
from headrace.hw.dram_channel import DramChannel
from headrace.hw.dram_parameters import CYCLES
from headrace.hw.memory_timing import ChannelTiming, channel_timing, load_memory
from headrace.sim.dram import Trace, simulate
from headrace.sim.dram_rtl import build_channel, build_fixed, geometry_name, run_channel

pytestmark = pytest.mark.cosim

PRESETS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "memories").glob("*.yaml"))
FAST = ("ramulator2-hbm2-2000", "ramulator2-hbm3-6400")
"""Of one geometry, so that one build serves both."""
NIGHTLY_TRACES = 1000


@cache
def preset(name: str) -> ChannelTiming:
    return channel_timing(load_memory(name))


@cache
def _build(geometry: str) -> Path:
    return build_channel(next(preset(name) for name in PRESETS if geometry_name(preset(name)) == geometry))


def build(timing: ChannelTiming) -> Path:
    return _build(geometry_name(timing))


def difference(case: Case, rtl_timing: ChannelTiming | None = None) -> str:
    """Empty where both implementations give equal cycles, else the first request of which they do not."""
    ports = {"ports": case.ports, "port_ratio": case.port_ratio, "port_fifo": case.port_fifo}
    expected = simulate(case.trace, case.timing, **ports)
    accepted, completed = run_channel(build(case.timing), case.trace, rtl_timing or case.timing, **ports)
    wrong = (accepted != expected.accepted) | (completed != expected.completed)
    if not wrong.any():
        return ""
    i = int(np.argmax(wrong))
    return (
        f"{case.text}: {int(wrong.sum())} of {len(wrong)} requests differ, first {i}: RTL accepts at {accepted[i]}, completes at "
        f"{completed[i]}; numba {expected.accepted[i]}, {expected.completed[i]}; timing {case.timing}"
    )


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("fuzz", [False, True])
def test_random_traces(name, fuzz):
    for seed in range(10):
        assert difference(random_case(seed, preset(name), 2000, fuzz=fuzz)) == ""


@pytest.mark.parametrize("parameter", [*CYCLES, "queue", "page", "buses"])
def test_every_parameter_is_felt(parameter):
    """The comparison fails when one side has one parameter wrong, by one cycle."""
    for seed in range(100, 160):
        case = random_case(seed, preset(FAST[0]), 500, fuzz=True)
        value = getattr(case.timing, parameter)
        if parameter == "page":
            other = "open" if value == "closed" else "closed"
        elif parameter == "buses":
            other = 3 - value
        else:
            other = value + 1 if parameter != "queue" or value < 64 else value - 1
        try:
            wrong = dataclasses.replace(case.timing, **{parameter: other})
        except ValueError:  # bl > ccds, say
            continue
        if difference(case, wrong):
            return
    pytest.fail(f"a wrong {parameter} changed no cycle of 60 traces")


@pytest.mark.parametrize("write", [0, 1])
def test_idle_latency(write):
    """Section 8 of the rules: one request alone, then a hit, then another row of the bank when all is over."""
    t = preset(FAST[0])
    trace = Trace(
        bank=np.array([5, 5, 5], np.int32), row=np.array([7, 7, 8], np.int32), write=np.full(3, write, np.uint8),
        arrival=np.array([3, 1000, 2000], np.int64),
    )  # fmt: skip
    accepted, completed = run_channel(build(t), trace, t)
    data = t.cwl + t.bl if write else t.cl + t.bl
    activate = t.rcdwr if write else t.rcdrd
    assert accepted.tolist() == [3, 1000, 2000]
    assert (completed - accepted).tolist() == [1 + activate + data, 1 + data, 1 + t.rp + activate + data]


def test_command_gives_the_figures_of_the_burst_level(capsys):
    documents = []
    for level in ("burst", "rtl"):
        arguments = ["--level", level, "--pattern", "random", "--write-share", "0.3", "--requests", "3000", "--seed", "5"]
        assert main(["hbm", "--json", "--timing", FAST[0], *arguments]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    burst, rtl = documents
    common = set(burst) - {"stamp", "commands", "level"}
    assert common >= {"bandwidth_bytes_per_s", "efficiency", "latency_cycles_mean", "cycles"}
    assert {name: rtl[name] for name in common} == {name: burst[name] for name in common}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(ports=0), "ports = 0"),
        (dict(p=3, q=2), "p/q = 3/2"),
        (dict(row_bits=40), "row_bits = 40"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DramChannel(preset(FAST[0]), **arguments)


@pytest.mark.nightly
def test_constant_parameters():
    """A channel as a machine would hold it: all parameters constants, two ports slower than the memory."""
    timing = channel_timing(load_memory(FAST[0]), queue=16, page="closed", refresh="per-bank")
    executable = build_fixed(DramChannel(timing, ports=2, p=9, q=20, port_fifo=8))
    ports = {"ports": 2, "port_ratio": Fraction(9, 20), "port_fifo": 8}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        trace, _ = random_trace(rng, PATTERNS[seed % len(PATTERNS)], 3000, timing.banks)
        expected = simulate(trace, timing, **ports)
        accepted, completed = run_channel(executable, trace, timing, **ports, fixed=True)
        assert np.array_equal(accepted, expected.accepted) and np.array_equal(completed, expected.completed), f"seed {seed}"


@pytest.mark.nightly
@pytest.mark.parametrize("name", PRESETS)
def test_many_random_traces(name):
    """With all presets together at least `NIGHTLY_TRACES` traces of 10,000 requests, half of them with other timings."""
    start, requests = time.monotonic(), 0
    for seed in range(1000, 1000 + -(-NIGHTLY_TRACES // len(PRESETS))):
        case = random_case(seed, preset(name), 10_000, fuzz=bool(seed % 2))
        assert difference(case) == ""
        requests += len(case.trace)
    print(f"{name}: {requests} requests equal in {time.monotonic() - start:.0f} s")
