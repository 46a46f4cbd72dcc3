"""What `headrace hbm` runs: a pattern or trace on one channel, at the burst level, in RTL or by the closed form."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from headrace.hw.memory_timing import ChannelTiming, MemoryConfig
from headrace.mapping.memory_closed_form import closed_form, statistics
from headrace.mapping.memory_patterns import PATTERNS, Fields, bank_ids, export_trace, pattern_fields, read_trace, write_flags
from headrace.models.errors import UserError
from headrace.sim.dram import Trace, simulate

DEFAULT_ACCESSES = 200_000


@dataclass(frozen=True, kw_only=True)
class DramWorkload:
    """Bursts of one channel: address fields and write flags."""

    fields: Fields
    write: np.ndarray
    bank: np.ndarray

    def __len__(self) -> int:
        return len(self.write)

    @property
    def trace(self) -> Trace:
        return Trace(bank=self.bank, row=self.fields["row"], write=self.write)

    def export(self, path: Path) -> None:
        """Write the trace in Ramulator's read/write form."""
        export_trace(path, self.fields, self.write)


def prepare(
    config: MemoryConfig, pattern: str, *, accesses: int, limit: int | None, access_bytes: int | None, write_share: float, seed: int
) -> DramWorkload:
    """The bursts of a named pattern, or the first `limit` of a trace file. Raises `UserError`."""
    organisation = config.organisation
    if pattern in PATTERNS:
        size = access_bytes or organisation.burst_bytes
        fields = pattern_fields(pattern, config, accesses=accesses, access_bytes=size, seed=seed)
        write = write_flags(accesses, size // organisation.burst_bytes, write_share, seed)
    else:
        path = Path(pattern)
        if not path.is_file():
            raise UserError(f"--pattern {pattern!r}: neither a pattern nor a file; allowed: {', '.join(PATTERNS)}, or the path of a trace file")
        if access_bytes is not None or write_share:
            raise UserError(f"--pattern {pattern}: a trace file has its own accesses; --access-bytes and --write-share do not go with it")
        fields, write = read_trace(path, organisation)
        if limit is not None:
            if limit > len(write):
                raise UserError(f"--requests {limit}: {pattern} holds {len(write)}")
            fields, write = {name: values[:limit] for name, values in fields.items()}, write[:limit]
    return DramWorkload(fields=fields, write=write, bank=bank_ids(fields, organisation))


def port_ratio(config: MemoryConfig, port_hz: float | None) -> Fraction:
    """Port clock over command clock, at most 1: a port moves one burst per port cycle, the channel takes one per cycle."""
    if port_hz is None:
        if config.port is None:
            raise UserError(f"--ports: {config.name} names no port clock; give --port-hz")
        port_hz = config.port.hz
    ratio = Fraction(port_hz).limit_denominator(10**6) * config.tck_ps / 10**12
    return min(ratio, Fraction(1)).limit_denominator(1 << 40)


def run_burst(config: MemoryConfig, timing: ChannelTiming, workload: DramWorkload, *, ports: int, ratio: Fraction, hops: int = 0) -> dict[str, Any]:
    """Simulate; bandwidth over the time from cycle 0 to the last completion, latency of reads (of writes if there is none)."""
    result = simulate(workload.trace, timing, ports=ports, port_ratio=ratio, port_fifo=config.port.fifo if config.port else 1)
    commands = {"act": result.activates, "pre": result.precharges, "rd": result.reads, "wr": result.writes, "ref": result.refreshes}
    return _simulated(config, workload, result.accepted, result.completed, hops) | {"commands": commands}


def run_rtl(config: MemoryConfig, timing: ChannelTiming, workload: DramWorkload, *, ports: int, ratio: Fraction, hops: int = 0) -> dict[str, Any]:
    """The same on the channel in Verilator. Raises `UserError` where the tools to build it are missing."""
    from headrace.sim.dram_rtl import build_channel, run_channel

    executable = build_channel(timing)
    fifo = config.port.fifo if config.port else 1
    accepted, completed = run_channel(executable, workload.trace, timing, ports=ports, port_ratio=ratio, port_fifo=fifo)
    return _simulated(config, workload, accepted, completed, hops)


def _simulated(config: MemoryConfig, workload: DramWorkload, accepted: np.ndarray, completed: np.ndarray, hops: int) -> dict[str, Any]:
    latency = completed - accepted
    reads = workload.write == 0
    mean = float(latency[reads].mean() if reads.any() else latency.mean())
    cycles = int(completed.max())
    return _document(config, len(workload), cycles, mean, hops, {"cycles": cycles})


def run_closed(config: MemoryConfig, timing: ChannelTiming, workload: DramWorkload, *, ports: int, ratio: Fraction, hops: int = 0) -> dict[str, Any]:
    """The closed form on the statistics of the same bursts."""
    found = closed_form(timing, statistics(timing, workload.bank, workload.fields["row"], workload.write), ports=ports, port_ratio=float(ratio))
    return _document(config, len(workload), len(workload) / found.bursts_per_cycle, found.latency_cycles, hops, {"bound": found.bound})


def _document(config: MemoryConfig, bursts: int, cycles: float, latency: float | None, hops: int, extra: dict[str, Any]) -> dict[str, Any]:
    bandwidth = bursts * config.organisation.burst_bytes / (cycles * config.tck_ps * 1e-12)
    document = {"bandwidth_bytes_per_s": bandwidth, "efficiency": bandwidth / config.peak_bytes_per_s, "latency_cycles_mean": latency}
    if config.port is not None:
        fixed = config.port.latency_ns + hops * config.port.hop_ns
        document["latency_ns_mean"] = None if latency is None else latency * config.tck_ps * 1e-3 + fixed
    elif hops:
        raise UserError(f"--hops {hops}: {config.name} has no crossbar (no 'port' in the preset); allowed: 0")
    return document | extra
