"""Random traces and timings for the memory channel, for tests that hold implementations of its rules together."""

import dataclasses
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from headrace.hw.memory_timing import ChannelTiming
from headrace.sim.dram import Trace

PATTERNS = ("uniform", "sequential", "strided", "one-bank", "few-rows", "phases")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a run needs; `text` names it in messages."""

    timing: ChannelTiming
    trace: Trace
    ports: int
    port_ratio: Fraction
    port_fifo: int
    text: str


def _addresses(rng: np.random.Generator, pattern: str, number: int, banks: int) -> tuple[np.ndarray, np.ndarray]:
    """Bank and row of each request."""
    n = np.arange(number)
    if pattern == "uniform":
        return rng.integers(0, banks, number), rng.integers(0, 1 << 14, number)
    if pattern == "sequential":
        # Several streams, each with a run of bursts in a row, banks in turn.
        streams, run = int(rng.integers(1, 9)), int(rng.integers(1, 33))
        step = n // streams // run
        stream = n % streams
        return (step + stream * 5) % banks, step // banks + 100 * stream
    if pattern == "strided":
        at = n * int(rng.integers(1, 200)) + rng.integers(0, 3, number)
        return at % banks, at // banks % 512
    if pattern == "one-bank":
        return np.where(rng.random(number) < 0.8, int(rng.integers(banks)), rng.integers(0, banks, number)), rng.integers(0, 4, number)
    if pattern == "few-rows":
        return rng.integers(0, banks, number), rng.integers(0, 2, number)
    # Phases: now streaming, now random.
    random = (n // 200) % 2 == 1
    return np.where(random, rng.integers(0, banks, number), n // 4 % banks), np.where(random, rng.integers(0, 64, number), n // (4 * banks))


def random_trace(rng: np.random.Generator, pattern: str, number: int, banks: int) -> tuple[Trace, float]:
    """A trace and its share of writes; arrivals are absent, even, or in bunches."""
    bank, row = _addresses(rng, pattern, number, banks)
    share = float(rng.choice([0.0, 0.05, 0.3, 0.5, 0.7, 1.0]))
    write = rng.random(number) < share
    if rng.random() < 0.3:
        # Runs of writes and reads instead of single ones.
        write = np.repeat(rng.random(number // 40 + 1) < share, 40)[:number]
    arrival = None
    kind = rng.integers(0, 3)
    if kind == 1:
        arrival = np.cumsum(rng.integers(0, int(rng.integers(2, 12)), number))
    elif kind == 2:
        arrival = np.cumsum(np.where(rng.random(number) < 0.02, rng.integers(0, 2000, number), 0))
    trace = Trace(
        bank=bank.astype(np.int32), row=row.astype(np.int32), write=write.astype(np.uint8),
        arrival=None if arrival is None else arrival.astype(np.int64),
    )  # fmt: skip
    return trace, share


def fuzzed(rng: np.random.Generator, timing: ChannelTiming) -> ChannelTiming:
    """`timing` with other numbers of cycles, so that rules that no device's timings let bind do so."""
    small = ("cl", "cwl", "rcdrd", "rcdwr", "rp", "ras", "rtp", "wr", "rrds", "rrdl", "faw", "wtrs", "wtrl", "rtw", "ppd", "rrefd")
    top = int(rng.choice([4, 12, 50]))
    values = {name: int(rng.integers(1, top + 1)) for name in small}
    values["rc"] = int(rng.integers(1, 3 * top))
    bl = int(rng.integers(1, 5))
    ccds = bl + int(rng.integers(0, 3))
    # One in four so short that a refresh may still be pending when the next one is due.
    refi = int(rng.integers(70, 200) if rng.random() < 0.25 else rng.integers(400, 3000))
    return dataclasses.replace(
        timing, **values, bl=bl, ccds=ccds, ccdl=ccds + int(rng.integers(0, 4)), refi=refi,
        rfc=int(rng.integers(1, refi * 42 // 100)), rfcpb=int(rng.integers(1, min(refi, 80))), buses=int(rng.integers(1, 3)),
        act_cycles=int(rng.integers(1, 5)), pre_cycles=int(rng.integers(1, 4)), column_cycles=int(rng.integers(1, 4)),
    )  # fmt: skip


def random_case(seed: int, timing: ChannelTiming, number: int, *, fuzz: bool = False) -> Case:
    """Policy, queue, refresh (of those that `timing` has figures for), ports and trace, all drawn from `seed`."""
    rng = np.random.default_rng(seed)
    if fuzz:
        timing = fuzzed(rng, timing)
    refreshes = ["none"] + ["all-bank"] * (timing.rfc > 0) + ["per-bank"] * (timing.rfcpb > 0)
    pattern = str(rng.choice(PATTERNS))
    policy = {
        "queue": int(rng.choice([1, 2, 3, 8, 16, 32, 64, int(rng.integers(1, 65))])),
        "page": str(rng.choice(["open", "closed"])),
        "refresh": str(rng.choice(refreshes)),
    }
    if fuzz and policy["refresh"] == "per-bank":
        # More frequent refreshes than this leave few cycles to activate a bank in: the rules put refresh first.
        policy["refi"] = max(timing.refi, 2 * timing.banks * (timing.rrefd + timing.rrds + timing.pre_cycles))
    timing = dataclasses.replace(timing, **policy)
    trace, share = random_trace(rng, pattern, number, timing.banks)
    ports, ratio, fifo = 0, Fraction(1), 1
    if rng.random() < 0.4:
        ports = int(rng.integers(1, 5))
        q = int(rng.integers(1, 12))
        ratio = Fraction(int(rng.integers(1, q + 1)), q)
        fifo = int(rng.choice([1, 2, 7, 64]))
        if rng.random() < 0.5:
            trace = dataclasses.replace(trace, port=rng.integers(0, ports, number).astype(np.uint8))
    text = (
        f"seed {seed}: {pattern}, writes {share}, {timing.page} page, {timing.refresh} refresh, queue {timing.queue}, "
        f"ports {ports} at {ratio} with {fifo} tokens, {'fuzzed timing' if fuzz else 'preset timing'}"
    )
    return Case(timing=timing, trace=trace, ports=ports, port_ratio=ratio, port_fifo=fifo, text=text)
