"""The machine's memory ports on DRAM channels: what both implementations of ``docs/memory.md`` section 12 take.

A machine whose ``memory.dram`` names a preset of ``configs/memories`` has that preset's channels behind its ports, in the RTL simulation
(`hw.sim_dram`) and in the cycle level (`sim.cycle_dram`).
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from headrace.hw.machine import PORT_BYTES, Machine
from headrace.hw.memory_timing import ChannelTiming, channel_timing, load_memory, mapping_bits, usual_refresh
from headrace.models.errors import UserError

ADDRESS_QUEUE = 64
"""Read addresses, and apart from them writes, that a port's queues hold before their fixed latency is over."""

READ_RING = 256
"""Beats of a port that have been asked of the channel and not yet given on R: 64 accesses of 128 bytes, as the vendor's pseudo-random
benchmark of the U280 keeps outstanding (``configs/memories/u280-hbm2.yaml``, port.fifo)."""

WRITE_RING = 64
"""Writes of a port that may enter the channel, or have and are not yet answered."""


@dataclass(frozen=True, kw_only=True)
class DramPorts:
    """Ports, channels and clocks.

    ports
        Of the machine; port i is pseudo-channel i mod pcs of channel i div pcs.
    p, q
        Core clock over command clock, in lowest terms.
    fixed_cycles
        The preset's fixed latency (controller, crossbar) in core cycles, rounded up.
    fields
        (name, bits) of a port's beat address from the least significant bit up: the preset's mapping without `pc` and without fields of no bits.
    """

    preset: str
    timing: ChannelTiming
    ports: int
    p: int
    q: int
    fixed_cycles: int
    fields: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, machine: Machine) -> "DramPorts":
        """Raises `UserError` where the preset cannot serve the machine."""
        config = load_memory(machine.memory.dram)
        where = f"memory.dram = {config.name!r}"
        if config.organisation.burst_bytes != PORT_BYTES:
            raise UserError(f"{where}: its bursts are {config.organisation.burst_bytes} bytes, a port's beats {PORT_BYTES}; they must be equal")
        if machine.memory.ports % config.organisation.pcs:
            raise UserError(f"{where}: {machine.memory.ports} ports do not fill channels of {config.organisation.pcs} pseudo-channels")
        ratio = Fraction(machine.clock_hz) * config.tck_ps / 10**12
        if ratio > 1:
            raise UserError(f"{where}: the core's clock of {machine.clock_hz:g} Hz is above the memory's command clock of {1e12 / config.tck_ps:g} Hz")
        if ratio.denominator >= 1 << 40:
            raise UserError(f"clock_hz = {machine.clock_hz!r}: its ratio to the memory's command clock has too many digits")
        latency_ns = Fraction(config.port.latency_ns if config.port else 0)
        return cls(
            preset=config.name, timing=channel_timing(config, refresh=usual_refresh(config)), ports=machine.memory.ports, p=ratio.numerator, q=ratio.denominator,
            fixed_cycles=ceil(latency_ns * Fraction(machine.clock_hz) / 10**9),
            fields=tuple((name, bits) for name, bits in mapping_bits(config.mapping, config.organisation.sizes) if name != "pc" and bits),
        )  # fmt: skip

    @property
    def latency(self) -> int:
        """L: core cycles from the acceptance of an address to its first entry in a ring: the fixed latency, at least the queue's own."""
        from headrace.hw.stream_fifo import StreamFifo  # Amaranth is not loaded to read a machine

        return max(StreamFifo.LATENCY, self.fixed_cycles)

    @property
    def channels(self) -> int:
        return self.ports // self.timing.pcs

    def split(self, beat: int) -> tuple[int, int]:
        """(bank within the pseudo-channel, row) of a port's beat address."""
        values = {"bank_group": 0, "bank": 0, "row": 0, "column": 0}
        have = dict.fromkeys(values, 0)
        for name, bits in self.fields:
            values[name] |= (beat & ((1 << bits) - 1)) << have[name]
            have[name] += bits
            beat >>= bits
        return values["bank_group"] * self.timing.banks_per_group + values["bank"], values["row"]


def dram_of(machine: Machine) -> DramPorts | None:
    """The DRAM channels behind the machine's ports; None for the memory of fixed latency. Raises UserError."""
    return DramPorts.of(machine) if machine.memory.dram is not None else None
