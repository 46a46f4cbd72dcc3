"""The machine description: a dozen flat numbers from which RTL, simulators and compiler derive everything else.

One `Machine` is one accelerator on one board. It is read from ``configs/machines/NAME.yaml`` and frozen; every
derived size is a property here and nowhere else, so that the levels cannot disagree.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from headrace.models.configfile import StrictModel, load_model

CHAIN_LENGTH = 16
"""DSPs in one cascade. Seventeen products of +-127 overflow the packed 19-bit low field; sixteen fit."""

META_BITS = 20
"""Bits of one row's group metadata: unsigned 8-bit multiplier and signed 12-bit offset."""

BLOCK = 16
"""Slots along K that one row consumes per cycle: one per DSP of its chain."""


LANES = 8
"""SFU lanes in ISA version 1: a vector-buffer row is 8 float32 = 32 bytes = one beat (docs/machine.md)."""

PORT_BYTES = 32
"""Bytes of one beat of one port in ISA version 1."""

MAX_PORTS = 64

FIXED_LATENCY_FIELDS = ("p", "q", "read_latency_cycles", "trefi_ns", "trfc_ns")
"""Of `Memory`: what `dram` puts out of use."""

REGISTERS = 32
"""R0 .. R31: an operand names its register in 5 bits."""


def _power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("it must be a power of two")
    return value


def _size(low: int, high: int, default: int | None = None):
    """A power-of-two field between `low` and `high`, inclusive."""
    return Field(ge=low, le=high) if default is None else Field(default=default, ge=low, le=high)


PowerOfTwo = Annotated[int, AfterValidator(_power_of_two)]


class Array(StrictModel):
    """The DSP chains: `macs_per_cycle` INT8 multiply-accumulates, two per DSP, in cascades of `chain_length`."""

    macs_per_cycle: PowerOfTwo = _size(32, 16384, 128)
    chain_length: int = CHAIN_LENGTH

    @model_validator(mode="after")
    def _check(self):
        if self.chain_length != CHAIN_LENGTH:
            raise ValueError(
                f"array.chain_length = {self.chain_length} is not allowed: the packed accumulator is exact for a "
                f"cascade of {CHAIN_LENGTH} only."
            )
        return self


class Memory(StrictModel):
    """The memory ports as the core sees them. Times are in ns, rates in beats per core cycle."""

    ports: PowerOfTwo = _size(1, MAX_PORTS)
    port_bytes: int = PORT_BYTES
    p: int = Field(default=1, ge=1, le=1024)
    """A port moves `p` beats every `q` core cycles (the memory clock over the core clock), at most one a cycle."""
    q: int = Field(default=1, ge=1, le=1024)
    read_latency_cycles: int = Field(default=32, ge=30, le=1023)
    """Core cycles from an accepted read address to its first beat, with no refresh in the way."""
    trefi_ns: float = Field(default=3900.0, gt=0, le=1e6)
    trfc_ns: float = Field(default=350.0, ge=0, le=1e5)
    outstanding_bursts: PowerOfTwo = _size(1, 64, 8)
    burst_beats: PowerOfTwo = _size(1, 16, 16)
    """Beats in one AXI3 burst: 16 at most."""
    dram: str | None = Field(default=None, min_length=1, max_length=256)
    """A preset of ``configs/memories``: its channels serve the ports (docs/memory.md section 12), and `p`, `q`, `read_latency_cycles`,
    `trefi_ns` and `trfc_ns`, which describe a memory of fixed latency, are not used."""

    @property
    def beats_per_cycle(self) -> float:
        """What a port can carry: p/q, or with `dram` a beat in every core cycle."""
        return 1.0 if self.dram else self.p / self.q

    @model_validator(mode="after")
    def _check(self):
        if self.port_bytes != PORT_BYTES:
            raise ValueError(
                f"memory.port_bytes = {self.port_bytes} is not allowed: instruction set version 1 addresses beats of "
                f"{PORT_BYTES} bytes."
            )
        if self.p > self.q:
            raise ValueError(
                f"memory.p = {self.p} is larger than memory.q = {self.q}: a port carries at most one beat per core "
                "cycle, so p/q must not exceed 1."
            )
        if self.trfc_ns >= self.trefi_ns:
            raise ValueError(
                f"memory.trfc_ns = {self.trfc_ns:g} must be below memory.trefi_ns = {self.trefi_ns:g}: the memory would "
                "refresh all the time."
            )
        return self


class Buffers(StrictModel):
    """On-chip storage, in the words of each buffer."""

    raw_fifo_words: PowerOfTwo = _size(32, 4096, 512)
    """Memory words between the DMA and the decode unit."""
    weight_fifo_slices: PowerOfTwo = _size(4, 4096, 64)
    """Decoded weight slices (stripe_rows x 16 int8) between the decode unit and the array."""
    vector_rows: PowerOfTwo = _size(64, 1 << 17, 4096)
    """Rows of `sfu.lanes` float32."""
    activation_slices: PowerOfTwo = _size(16, 1 << 15, 1024)
    """Rows of 16 int8."""
    imem_words: PowerOfTwo = _size(64, 1 << 16, 2048)
    """Instructions."""


class Sfu(StrictModel):
    """The float32 unit."""

    lanes: int = LANES

    @model_validator(mode="after")
    def _check(self):
        if self.lanes != LANES:
            raise ValueError(
                f"sfu.lanes = {self.lanes} is not allowed: instruction set version 1 has rows of {LANES} float32, one "
                "per lane."
            )
        return self


class Control(StrictModel):
    """Instruction fetch and queues."""

    queue_depth: PowerOfTwo = _size(2, 64, 8)
    registers: int = REGISTERS
    watchdog_cycles: int = Field(default=1 << 20, ge=1024, le=(1 << 31) - 1)
    """Cycles without a retirement after which the machine halts and names the waiting queue."""

    @model_validator(mode="after")
    def _check(self):
        if self.registers != REGISTERS:
            raise ValueError(
                f"control.registers = {self.registers} is not allowed: instruction set version 1 has {REGISTERS} registers."
            )
        return self


class Machine(StrictModel):
    """One parametric accelerator on one board. See the module docstring; units are in the names."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    board: str = Field(min_length=1, max_length=256)
    scheme: str = Field(default="w4a8kv8", min_length=1, max_length=256)
    """Scheme used when a command names none."""
    clock_hz: float = Field(ge=1e6, le=2e9)
    array: Array = Array()
    memory: Memory
    buffers: Buffers = Buffers()
    sfu: Sfu = Sfu()
    control: Control = Control()

    @model_validator(mode="after")
    def _check(self):
        macs, rows, word = self.array.macs_per_cycle, self.stripe_rows, self.word_bytes
        if rows % self.sfu.lanes:
            raise ValueError(
                f"sfu.lanes = {self.sfu.lanes} does not divide the {rows} rows that array.macs_per_cycle = {macs} "
                "gives a stripe: results leave the array in whole rows of lanes."
            )
        if self.meta_groups_per_word < 1:
            raise ValueError(
                f"memory.ports = {self.memory.ports} x memory.port_bytes = {self.memory.port_bytes} make a word of "
                f"{self.word_bits} bits, but the metadata of one group of a {rows}-row stripe takes "
                f"{rows * META_BITS} bits (array.macs_per_cycle = {macs}): a word must hold at least one group."
            )
        if 8 * rows < word:
            raise ValueError(
                f"memory.ports = {self.memory.ports} bring {word} bytes a cycle, but array.macs_per_cycle = {macs} takes "
                f"at most {8 * rows} bytes of 4-bit codes a cycle: the array must not be narrower than the ports."
            )
        burst_words = self.memory.outstanding_bursts * self.memory.burst_beats
        if burst_words > self.buffers.raw_fifo_words:
            raise ValueError(
                f"buffers.raw_fifo_words = {self.buffers.raw_fifo_words} is less than the {burst_words} words that "
                "memory.outstanding_bursts x memory.burst_beats can have in flight."
            )
        if self.memory.dram is None and self.trefi_cycles <= self.trfc_cycles:
            raise ValueError(
                f"memory.trefi_ns = {self.memory.trefi_ns:g} and memory.trfc_ns = {self.memory.trfc_ns:g} leave no cycle "
                f"between refreshes at clock_hz = {self.clock_hz:g}."
            )
        return self

    @cached_property
    def stripe_rows(self) -> int:
        """Output rows computed side by side: 16 slots along K each."""
        return self.array.macs_per_cycle // BLOCK

    @cached_property
    def chains(self) -> int:
        """DSP cascades; chain c owns rows 2c and 2c + 1 of the stripe."""
        return self.stripe_rows // 2

    @cached_property
    def dsps(self) -> int:
        """DSP48E2 in the array (two MACs each)."""
        return self.array.macs_per_cycle // 2

    @cached_property
    def word_bytes(self) -> int:
        """One beat of every port side by side."""
        return self.memory.ports * self.memory.port_bytes

    @cached_property
    def word_bits(self) -> int:
        return 8 * self.word_bytes

    @cached_property
    def meta_groups_per_word(self) -> int:
        """Groups of a whole stripe whose metadata fits in one memory word."""
        return self.word_bits // (self.stripe_rows * META_BITS)

    @cached_property
    def scales_per_word(self) -> int:
        """float32 row scales in one memory word."""
        return self.word_bytes // 4

    @cached_property
    def stripes_per_scale_word(self) -> int:
        """Whole stripes whose row scales fill one word, at least 1.

        Exact: word_bits and 32 x stripe_rows are powers of two, and a word that holds 20 x stripe_rows bits of
        metadata therefore holds 32 x stripe_rows bits of scales.
        """
        return self.scales_per_word // self.stripe_rows

    @cached_property
    def trefi_cycles(self) -> int:
        """Core cycles between refreshes, rounded down: never refresh later than the memory asks."""
        return floor(Fraction(self.memory.trefi_ns) * Fraction(self.clock_hz) / 10**9)

    @cached_property
    def trfc_cycles(self) -> int:
        """Core cycles a refresh blocks its port, rounded up."""
        return ceil(Fraction(self.memory.trfc_ns) * Fraction(self.clock_hz) / 10**9)

    @cached_property
    def peak_bytes_per_s(self) -> float:
        """All ports' peak: bytes per word x clock x beats per cycle, refresh not taken off."""
        return self.word_bytes * self.clock_hz * self.memory.beats_per_cycle

    @cached_property
    def peak_macs_per_s(self) -> float:
        return self.array.macs_per_cycle * self.clock_hz

    def derived(self) -> dict[str, int | float]:
        """Every derived size by name, for printing."""
        refresh = () if self.memory.dram else ("trefi_cycles", "trfc_cycles")
        names = (
            "stripe_rows", "chains", "dsps", "word_bytes", "word_bits", "meta_groups_per_word", "scales_per_word",
            "stripes_per_scale_word", *refresh, "peak_bytes_per_s", "peak_macs_per_s",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def load_machine(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Machine:
    """The machine of that name in ``configs/machines``, or in that file, with ``path=value`` overrides applied. Raises `UserError`, also
    where its DRAM preset cannot serve it."""
    machine = load_model(Machine, "machines", name_or_path, overrides)
    if machine.memory.dram:
        from headrace.hw.dram_ports import dram_of  # which reads machines

        dram_of(machine)
    return machine
