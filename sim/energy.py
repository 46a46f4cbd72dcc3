"""Energy of a run: static power x time + clocked resources x cycles + events x energy each + board overhead.

Events come from the analytic level (`mapping.analytic_events`) or from counters of the RTL: the same names, the same function. Every energy
has a range (lo, mid, hi) and a source in configs/energy. What an event costs in accesses follows from the machine's structure:

- mac: a mac_slice is stripe_rows x 16 / 2 DSP operations; a busy SFU cycle is a row of 8 lanes, each with the DSPs of its multiplier.
- sram: a word passes a port FIFO and the raw FIFO (block RAM, written and read); a mac_slice writes and reads a weight slice (LUT RAM) and
  reads 16 bytes of activations; VB rows are UltraRAM, AB slices block RAM; an instruction is read from block RAM.
- memory: bits of all beats, read and written.
- clock: LUTs and flip-flops of the resource model times cycles. DSP logic outside operations is not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from headrace.hw.machine import BLOCK, LANES, Machine
from headrace.hw.resources import MULTIPLIER_DSPS
from headrace.models.configfile import StrictModel, load_model
from headrace.models.errors import UserError

LEVELS = ("lo", "mid", "hi")
TERMS = ("static", "clock", "mac", "sram", "memory", "board")
SCOPES = ("device", "board")
RAM_BITS = 72
"""Bits of one access of a block RAM or UltraRAM."""


class Ranged(StrictModel):
    """A figure with its range and where it was found."""

    lo: float = Field(ge=0)
    mid: float = Field(ge=0)
    hi: float = Field(gt=0)
    src: str = Field(min_length=1)
    r: Literal["read", "derived", "recall"]

    @model_validator(mode="after")
    def _check(self):
        if not self.lo <= self.mid <= self.hi:
            raise ValueError(f"lo = {self.lo:g}, mid = {self.mid:g}, hi = {self.hi:g}: they must ascend.")
        return self


class EnergyTable(StrictModel):
    """One file of configs/energy; units in the names."""

    name: str
    board: str
    process_nm: int = Field(gt=0)
    device_static_w: Ranged
    board_overhead_w: Ranged
    clock_fj_per_lut_cycle: Ranged
    signal_fj_per_lut_cycle: Ranged
    ff_fj_per_cycle: Ranged
    dsp_pj_per_operation: Ranged
    bram_pj_per_72_bits: Ranged
    uram_pj_per_72_bits: Ranged
    lutram_fj_per_bit: Ranged
    memory_pj_per_bit: Ranged
    instruction_pj: Ranged


def load_energy(board: str) -> EnergyTable:
    """The table of that board (a name, or the path of a file). Raises UserError where there is none."""
    return load_model(EnergyTable, "energy", board)


@dataclass(frozen=True)
class Energy:
    """Joules of one run by term, in the order lo, mid, hi."""

    by: dict[str, tuple[float, float, float]]

    @property
    def total(self) -> tuple[float, float, float]:
        lo, mid, hi = (sum(term[i] for term in self.by.values()) for i in range(3))
        return lo, mid, hi

    def middle(self) -> dict[str, float]:
        return {name: values[1] for name, values in self.by.items()}


def _words(bits: int) -> int:
    """RAM accesses of 72 bits for so many bits."""
    return -(-bits // RAM_BITS)


def energy(
    events: Mapping[str, float], cycles: float, machine: Machine, resources: Mapping[str, float | None], table: EnergyTable,
    *, scope: str = "board",
) -> Energy:
    """Energy of `events` in `cycles` clock cycles.

    events: totals by name, as `mapping.analytic_events.EVENTS`. resources: "lut", "ff" of the machine. scope: "device" leaves the
    board's overhead out. Raises UserError where the resource model does not know LUTs or flip-flops (energy would be too low unnoticed),
    ValueError for events that are missing or negative.
    """
    if scope not in SCOPES:
        raise UserError(f"energy scope = {scope!r}; allowed: {', '.join(SCOPES)}")
    for name in ("lut", "ff"):
        if resources.get(name) is None:
            raise UserError(f"machine {machine.name}: the resource model does not know its {name}, so energy cannot be estimated")
    if min(events.values()) < 0 or cycles <= 0:
        raise ValueError("events and cycles must not be negative")
    seconds = cycles / machine.clock_hz
    slice_bits = machine.stripe_rows * BLOCK * 8
    activation_bits = BLOCK * 8
    row_bits = 32 * LANES
    beat_bits = 8 * machine.memory.port_bytes
    beats = events["read_beats"] + events["write_beats"]
    dsp_operations = events["mac_slices"] * machine.stripe_rows * BLOCK / 2 + events["vec_busy"] * LANES * MULTIPLIER_DSPS
    words = events["read_beats"] / machine.memory.ports
    bram_accesses = (
        2 * events["read_beats"] * _words(beat_bits) + 2 * words * _words(machine.word_bits)
        + events["ab_slices"] * _words(activation_bits)
    )  # fmt: skip
    uram_accesses = events["vb_rows"] * _words(row_bits)
    lutram_bits = 2 * events["mac_slices"] * slice_bits

    def at(level: str) -> dict[str, float]:
        def value(field: str) -> float:
            return getattr(getattr(table, field), level)

        per_lut = value("clock_fj_per_lut_cycle") + value("signal_fj_per_lut_cycle")
        return {
            "static": value("device_static_w") * seconds,
            "clock": cycles * (resources["lut"] * per_lut + resources["ff"] * value("ff_fj_per_cycle")) * 1e-15,
            "mac": dsp_operations * value("dsp_pj_per_operation") * 1e-12,
            "sram": (
                bram_accesses * value("bram_pj_per_72_bits") + uram_accesses * value("uram_pj_per_72_bits")
                + lutram_bits * value("lutram_fj_per_bit") * 1e-3 + events["instructions"] * value("instruction_pj")
            ) * 1e-12,
            "memory": beats * beat_bits * value("memory_pj_per_bit") * 1e-12,
            "board": value("board_overhead_w") * seconds if scope == "board" else 0.0,
        }  # fmt: skip

    levels = [at(level) for level in LEVELS]
    result = Energy({term: tuple(level[term] for level in levels) for term in TERMS})
    for term in TERMS:
        if not 0 <= result.by[term][0] <= result.by[term][1] <= result.by[term][2]:
            raise AssertionError(f"energy of {term} is not ascending: {result.by[term]}")
    return result
