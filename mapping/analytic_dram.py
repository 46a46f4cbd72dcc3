"""What the analytic level takes of DRAM channels behind the ports (docs/memory.md): a rate, a latency, and the time that refreshes take."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from headrace.hw.dram_ports import DramPorts
from headrace.hw.machine import Machine
from headrace.mapping.memory_closed_form import closed_form, statistics

STREAM_BEATS = 1 << 13
"""Of each port, for the statistics of a sequential stream: several rows of every bank."""


@dataclass(frozen=True)
class DramRates:
    """In core cycles. slots: beats per cycle and port of a sequential stream, refresh apart: those of the channel, at most the port's one;
    trfc: lost of every trefi, on all ports at once."""

    slots: float
    channel_slots: float
    read_latency: float
    trefi: float
    trfc: float


def dram_rates(machine: Machine) -> DramRates:
    """Raises UserError where the preset cannot serve the machine."""
    return _rates(DramPorts.of(machine))


@lru_cache(maxsize=64)
def _rates(ports: DramPorts) -> DramRates:
    """Per-bank refresh counts as none: a sequential stream loses about 2% to it (docs/memory.md, where the closed form holds)."""
    t, core = ports.timing, ports.p / ports.q
    beats = np.arange(STREAM_BEATS)
    places = np.array([ports.split(beat) for beat in beats.tolist()])
    bank = (places[:, :1] + np.arange(t.pcs) * t.banks_per_pc).reshape(-1)
    row = np.repeat(places[:, 1], t.pcs)
    steady = replace(t, refresh="none")
    found = closed_form(steady, statistics(steady, bank, row, np.zeros(bank.size, np.uint8)))
    channel = float(found.bursts_per_cycle / t.pcs / core)
    slots = min(1.0, channel)
    latency = ports.latency + (1 + t.cl + t.bl) * core
    if t.refresh != "all-bank":
        return DramRates(slots=slots, channel_slots=channel, read_latency=latency, trefi=1.0, trfc=0.0)
    # Banks are precharged, one pseudo-channel after the other, refreshed, and activated again: as in the closed form.
    lost = t.rtp + t.rp + (t.pcs - 1) * (t.rp + t.pre_cycles) + t.rfc + t.rcdrd
    return DramRates(slots=slots, channel_slots=channel, read_latency=latency, trefi=t.refi * core, trfc=lost * core)
