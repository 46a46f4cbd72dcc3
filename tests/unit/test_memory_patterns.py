"""Bandwidths of the channel against public simulators and a measured board; the closed form against both and the burst level."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml

from headrace.hw.memory_timing import channel_timing, load_memory, mapping_bits
from headrace.mapping.memory_patterns import bank_ids, split
from headrace.models.configfile import list_configs
from headrace.sim.dram_run import DramWorkload, port_ratio, prepare, run_burst, run_closed

DATA = yaml.safe_load((Path(__file__).parents[1] / "data" / "memory_patterns.yaml").read_text())
U280 = {name: figure["gb_per_s"] for name, figure in DATA["u280"].items()}
POINTS = 0.03


def run(config, pattern, *, refresh="none", queue=32, accesses=40_000, access_bytes=None, write_share=0.0, page=None, level=run_burst):
    timing = channel_timing(config, queue=queue, refresh=refresh, page=page)
    workload = prepare(config, pattern, accesses=accesses, limit=None, access_bytes=access_bytes, write_share=write_share, seed=1)
    return level(config, timing, workload, ports=0, ratio=Fraction(1))


@pytest.mark.parametrize("level", [run_burst, run_closed])
@pytest.mark.parametrize("figure", DATA["patterns"], ids=lambda figure: f"{figure['src']}-{figure['pattern']}-{figure['refresh']}")
def test_public_simulators(figure, level):
    config = load_memory(figure["timing"])
    found = run(config, figure["pattern"], refresh=figure["refresh"], queue=figure["queue"], accesses=200_000, level=level)
    assert found["efficiency"] == pytest.approx(figure["efficiency"], abs=POINTS)
    if "latency_cycles" in figure:
        assert found["latency_cycles_mean"] == pytest.approx(figure["latency_cycles"], abs=1.5)


def test_burst_level_is_nearer_than_the_bar_on_ramulators_patterns():
    for figure in DATA["patterns"][:4]:
        found = run(load_memory(figure["timing"]), figure["pattern"], refresh=figure["refresh"], accesses=200_000)
        assert found["efficiency"] == pytest.approx(figure["efficiency"], abs=0.002), figure["pattern"]


@pytest.mark.parametrize("pattern", ["sequential", "bank-group-last", "one-pseudo-channel", "random"])
@pytest.mark.parametrize("queue", [8, 16, 24, 32, 48, 64])
def test_closed_form_follows_the_queue(pattern, queue):
    config = load_memory("ramulator2-hbm2-2000")
    for refresh in ("none", "all-bank"):
        burst, closed = (run(config, pattern, refresh=refresh, queue=queue, level=level)["efficiency"] for level in (run_burst, run_closed))
        assert closed == pytest.approx(burst, abs=POINTS), refresh


@pytest.mark.parametrize("name", list_configs("memories"))
def test_closed_form_on_every_preset(name):
    config = load_memory(name)
    refresh = "all-bank" if config.timings.cycles("rfc", config.tck_ps) else "none"
    for pattern in ("sequential", "bank-group-last", "random"):
        burst, closed = (run(config, pattern, refresh=refresh, level=level)["efficiency"] for level in (run_burst, run_closed))
        assert closed == pytest.approx(burst, abs=POINTS), pattern


def test_closed_form_of_wider_accesses_and_writes():
    config = load_memory("ramulator2-hbm2-2000")
    cases = [dict(pattern="random", access_bytes=64), dict(pattern="random", access_bytes=128), dict(pattern="random", write_share=0.33)]
    cases += [dict(pattern="sequential", write_share=share) for share in (0.1, 0.5, 1.0)] + [dict(pattern="random", page="closed", refresh="all-bank")]
    for case in cases:
        burst, closed = (run(config, level=level, **case)["efficiency"] for level in (run_burst, run_closed))
        assert closed == pytest.approx(burst, abs=POINTS), case


# --- the measured board, one preset ---

CONFIG = load_memory("u280-hbm2")
STEPS = mapping_bits(CONFIG.mapping, CONFIG.organisation.sizes)
PC_BURSTS = 1 << (sum(bits for _, bits in STEPS) - 1)
BURSTS = 200_000


def board(index, port_hz=CONFIG.port.hz, level=run_burst):
    """GB/s of one channel for burst numbers in the preset's mapping; the second pseudo-channel starts at `PC_BURSTS`."""
    fields = split(np.asarray(index, np.int64), STEPS, CONFIG.organisation)
    workload = DramWorkload(fields=fields, write=np.zeros(len(index), np.uint8), bank=bank_ids(fields, CONFIG.organisation))
    timing = channel_timing(CONFIG, refresh="all-bank")
    return level(CONFIG, timing, workload, ports=2, ratio=port_ratio(CONFIG, port_hz))["bandwidth_bytes_per_s"] / 1e9


def linear():
    place = np.arange(BURSTS)
    return place % 2 * PC_BURSTS + place // 2


@pytest.mark.parametrize("level", [run_burst, run_closed])
def test_u280_read_only(level):
    assert 16 * board(linear(), level=level) == pytest.approx(U280["read_only"], rel=0.05)


@pytest.mark.parametrize("level", [run_burst, run_closed])
def test_u280_stream_is_limited_by_its_ports(level):
    found = 16 * board(linear(), 370e6, level)
    assert found == pytest.approx(U280["stream_triad"], rel=0.05)
    assert found < 16 * board(linear(), level=level)


@pytest.mark.parametrize("level", [run_burst, run_closed])
def test_u280_random_accesses_of_128_bytes_on_one_pseudo_channel(level):
    starts = np.random.default_rng(0).integers(0, PC_BURSTS // 4, BURSTS // 4) * 4
    assert board((starts[:, None] + np.arange(4)).reshape(-1), level=level) == pytest.approx(U280["random_128_bytes"], rel=0.05)


def test_u280_two_buffers_in_one_pseudo_channel():
    """Bursts of 16 beats, the longest of the board's AXI3 ports, from two buffers in turn."""
    place = np.arange(BURSTS)
    index = place // 16 % 2 * (PC_BURSTS // 4) + place // 32 * 16 + place % 16
    assert board(index) == pytest.approx(U280["two_buffers"], rel=0.05)
