"""One DRAM channel, burst by burst: the numba implementation of the rules of ``docs/memory.md``."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from headrace.hw.memory_timing import ChannelTiming
from headrace.sim.dram_core import channels, rules
from headrace.sim.dram_kernel import run_channel

MAX_PORT_RATIO = 1 << 40
MAX_PORTS = 16
MAX_PORT_FIFO = 1 << 16
MAX_ARRIVAL = 1 << 48
MAX_ROWS = 1 << 24
MAX_REQUESTS = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests of one channel in the order of their source. All arrays have N elements.

    `bank` (int32): bank_id of ``docs/memory.md``. `row` (int32). `write` (uint8, 0 or 1). `arrival` (int64): command
    cycle from which on a request may enter, None: 0. `port` (uint8): None: its pseudo-channel modulo `ports`.
    """

    bank: np.ndarray
    row: np.ndarray
    write: np.ndarray
    arrival: np.ndarray | None = None
    port: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.bank)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gave, in command cycles: `accepted` and `completed` (int64, N) in trace order, commands issued."""

    accepted: np.ndarray
    completed: np.ndarray
    activates: int
    precharges: int
    reads: int
    writes: int
    refreshes: int

    @property
    def cycles(self) -> int:
        """From cycle 0 to the last completion."""
        return int(self.completed.max()) if self.completed.size else 0

    @property
    def latency_mean(self) -> float:
        """Of all requests, from acceptance to completion."""
        return float((self.completed - self.accepted).mean()) if self.completed.size else 0.0


def simulate(trace: Trace, timing: ChannelTiming, *, ports: int = 0, port_ratio: Fraction = Fraction(1), port_fifo: int = 1) -> Result:
    """Run `trace` on one channel; `result.completed` has the completion cycle of every request.

    `ports` = 0: no port limit. Otherwise `port_ratio` is port clock over command clock, 0 < ratio <= 1 (a faster
    port is no limit: pass 1), `port_fifo` the tokens that a port can hold. Deterministic. Raises ValueError when a field of the trace is out of range.
    """
    number = len(trace)
    if number > MAX_REQUESTS:
        raise ValueError(f"trace has {number} requests: up to {MAX_REQUESTS} are allowed")
    bank = _column(trace.bank, np.int32, number, "bank", timing.banks)
    row = _column(trace.row, np.int32, number, "row", MAX_ROWS)
    write = _column(trace.write, np.uint8, number, "write", 2)
    arrival = np.empty(0, np.int64) if trace.arrival is None else _column(trace.arrival, np.int64, number, "arrival", MAX_ARRIVAL)
    if not 0 <= ports <= MAX_PORTS:
        raise ValueError(f"ports = {ports}: 0..{MAX_PORTS} is allowed")
    if not 0 < port_ratio <= 1 or port_ratio.denominator > MAX_PORT_RATIO:
        raise ValueError(f"port_ratio = {port_ratio}: above 0, at most 1, with a denominator up to 2**40 is allowed")
    if not 1 <= port_fifo <= MAX_PORT_FIFO:
        raise ValueError(f"port_fifo = {port_fifo}: 1..{MAX_PORT_FIFO} is allowed")
    port = np.empty(0, np.uint8)
    if ports:
        chosen = bank // timing.banks_per_pc % ports if trace.port is None else trace.port
        port = _column(chosen, np.uint8, number, "port", ports)
    accepted, completed = np.empty(number, np.int64), np.empty(number, np.int64)
    p, q = (port_ratio.numerator, port_ratio.denominator) if ports else (1, 1)
    channel, token = channels(timing, 1), np.zeros(max(ports, 1), np.int64)
    end = run_channel(rules(timing)[0], channel[0], bank, row, write, arrival, port, ports, p, q, port_fifo, token, accepted, completed)
    if end < 0:
        raise RuntimeError("the memory model stands still: no command can ever become legal")
    activates, precharges, reads, writes, refreshes = (int(count) for count in channel["counts"][0])
    return Result(
        accepted=accepted, completed=completed, activates=activates, precharges=precharges, reads=reads, writes=writes, refreshes=refreshes
    )


def _column(values, dtype, number: int, name: str, limit: int) -> np.ndarray:
    values = np.asarray(values)
    if values.shape != (number,):
        raise ValueError(f"trace.{name} has shape {values.shape}, but {(number,)} is needed")
    if number and not (values.min() >= 0 and values.max() < limit):
        raise ValueError(f"trace.{name} has values outside 0..{limit - 1}")
    return np.ascontiguousarray(values, dtype=dtype)
