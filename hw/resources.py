"""The resource model: DSPs, LUTs, flip-flops, block RAMs and UltraRAMs of a machine, block by block, from its description.

DSPs and memories follow from structure and are exact. LUTs and flip-flops come from points: *synthesised* ones were counted by Yosys
(`headrace synth`, xcup) on the shipped machines, *stated* ones add costs that the parts' docstrings state. With points
at two sizes a block is a line in the size of what it repeats; with one it is proportional to it, which counts what it has once too often on
larger machines. A block without points has None, and so has the machine's sum then: unknown, never zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from headrace.hw.machine import LANES, Machine

COLUMNS = ("dsp", "lut", "ff", "bram", "uram")
MULTIPLIER_DSPS = 2
"""DSP48E2 of one F32Mul."""
SEQUENCER_DSPS = 3
"""Of the sequencer's 32-bit MUL."""
URAM_BITS, URAM_WORDS = 72, 4096
BRAM_HALF_BITS, BRAM_WORDS = 36, 512
"""Half a RAMB36 as a simple dual-port memory: 36 bits x 512."""


SYNTHESISED, STATED = "synthesised", "stated"
HOW = {SYNTHESISED: "synthesised at nano", STATED: "stated by docstrings for more ports"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """LUTs (LUT RAM included) and flip-flops of a block at one size, and how they were found."""

    size: int
    lut: int
    ff: int
    how: str = SYNTHESISED


@dataclass(frozen=True, kw_only=True)
class Block:
    """What one block costs. `size` is what it repeats; `points` are sizes at which its cells are known, ascending."""

    points: tuple[Point, ...] = ()
    size: Callable[[Machine], int] = lambda machine: 1
    dsp: Callable[[Machine], int] = lambda machine: 0
    bram: Callable[[Machine], float] = lambda machine: 0.0
    uram: Callable[[Machine], int] = lambda machine: 0

    def cells(self, machine: Machine, column: str) -> int | None:
        """LUTs or flip-flops at the machine's size."""
        if not self.points:
            return None
        size, first, last = self.size(machine), self.points[0], self.points[-1]
        low = getattr(first, column)
        slope = low / first.size if first is last else (getattr(last, column) - low) / (last.size - first.size)
        return max(1, round(low + slope * (size - first.size)))

    def count(self, machine: Machine) -> dict[str, int | float | None]:
        return {
            "dsp": self.dsp(machine), "lut": self.cells(machine, "lut"), "ff": self.cells(machine, "ff"),
            "bram": self.bram(machine), "uram": self.uram(machine),
        }  # fmt: skip


def block_rams(width: int, depth: int) -> float:
    """RAMB36 of a simple dual-port memory, halves counted."""
    return ceil(width / BRAM_HALF_BITS) * ceil(depth / BRAM_WORDS) / 2


def ultra_rams(width: int, depth: int) -> int:
    return ceil(width / URAM_BITS) * ceil(depth / URAM_WORDS)


COUNTERS_NANO, COUNTERS_MICRO = 46, 58
"""Performance counters of 64 bits with their latch (`Control`); a test holds them to the machines."""


def _scale_lanes(machine: Machine) -> int:
    return min(LANES, machine.stripe_rows // LANES)


def _port_fifo(machine: Machine) -> float:
    depth = max(4, machine.memory.outstanding_bursts * machine.memory.burst_beats)
    return machine.memory.ports * block_rams(8 * machine.memory.port_bytes + 1, depth)


def _rows(machine: Machine) -> int:
    return machine.stripe_rows


def _ports(machine: Machine) -> int:
    return machine.memory.ports


CONTROL_NANO = Point(size=2, lut=6779, ff=9284)
_PORTS_MICRO = 8
CONTROL_MICRO = Point(
    size=_PORTS_MICRO, lut=CONTROL_NANO.lut + 40 * (COUNTERS_MICRO - COUNTERS_NANO),
    ff=CONTROL_NANO.ff + 128 * (COUNTERS_MICRO - COUNTERS_NANO) + 256 * (_PORTS_MICRO - 2), how=STATED,
)  # fmt: skip
"""`nano`'s, and what the docstrings state for more ports: a counter is 40 LUT and 128 FF, boot holds one memory word."""

LANE_RAM_COPIES, LANE_RAM_WORDS = 3, 256
"""Copies of a lane's vector registers (one a read port), 32 bits each."""

BLOCKS: dict[str, Block] = {
    "raw_fifo": Block(
        points=(Point(size=2, lut=36, ff=544),), size=_ports,
        bram=lambda m: block_rams(m.word_bits, m.buffers.raw_fifo_words),
    ),
    "vector_buffer": Block(points=(Point(size=1, lut=302, ff=263),), uram=lambda m: ultra_rams(256, m.buffers.vector_rows)),
    "activation_buffer": Block(points=(Point(size=1, lut=154, ff=260),), bram=lambda m: 2 * block_rams(128, m.buffers.activation_slices)),
    "ld": Block(points=(Point(size=2, lut=1922, ff=1737),), size=_ports, bram=_port_fifo),
    "st": Block(points=(Point(size=2, lut=1589, ff=2273),), size=_ports),
    "mv": Block(
        points=(Point(size=8, lut=13491, ff=8202),), size=_rows, dsp=lambda m: m.dsps + _scale_lanes(m) * 2 * MULTIPLIER_DSPS,
    ),
    "sfu": Block(
        points=(Point(size=1, lut=10944, ff=7727),), dsp=lambda m: LANES * MULTIPLIER_DSPS,
        bram=lambda m: LANES * LANE_RAM_COPIES * block_rams(32, LANE_RAM_WORDS),
    ),
    "control": Block(
        points=(CONTROL_NANO, CONTROL_MICRO), size=_ports, dsp=lambda m: SEQUENCER_DSPS,
        bram=lambda m: block_rams(256, m.buffers.imem_words),
    ),
}  # fmt: skip


def machine_resources(machine: Machine) -> dict:
    """{"dsp", "lut", "ff", "bram", "uram", "kind", "blocks": {name: {the same}}}; None where a block's cells are not known."""
    blocks = {name: block.count(machine) for name, block in BLOCKS.items()}
    totals = {}
    for column in COLUMNS:
        counts = [block[column] for block in blocks.values()]
        totals[column] = None if None in counts else sum(counts)
    return {**totals, "kind": _kind(), "blocks": blocks}


def _kind() -> str:
    """How the figures were found, in words."""
    ways = {how: [name for name, block in BLOCKS.items() if any(p.how == how for p in block.points)] for how in HOW}
    parts = [f"{HOW[how]} for {', '.join(names)}" for how, names in ways.items() if names]
    return f"estimated; DSP and memories from structure; LUT and FF {'; '.join(parts)}"
