"""A bench of the machine's memory side: simulated memory, LdUnit, StUnit and both buffers, driven by a list of commands.

`MemoryBench` is the design, ``cpp/memory_bench.cpp`` drives it, `run_bench` gives commands in and events out.
`measure_deliverable` uses it to measure the share of the ports' peak bandwidth that sequential loads get.
"""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from amaranth.hdl import Const, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect

from headrace.hw.activation_buffer import ActivationBuffer
from headrace.hw.emit import to_verilog
from headrace.hw.isa import Command, Done, Error, Instruction, Op, Queue
from headrace.hw.ld_unit import LdParameters, LdUnit
from headrace.hw.machine import Machine
from headrace.hw.sim_memory import MemoryTiming, SimMemory, sim_memory_sources
from headrace.hw.st_unit import StParameters, StUnit
from headrace.hw.vector_buffer import VectorBuffer
from headrace.models.errors import UserError
from headrace.sim.verilate import build_executable

BEAT_BYTES = 32
COMMAND_WORDS = 9
BARRIER = 2


class MemoryBench(wiring.Component):
    """Commands in, words and retirements out; bit i of `gates` low holds back one handshake or steals a buffer's port.

    Gates: per port AR, R, AW, W, B; then VB write, VB read, AB write, AB read (low: the SFU's side takes the cycle; it
    writes the last row and the last slice only).
    """

    def __init__(self, machine: Machine, *, depth_beats: int):
        self.machine, self.depth_beats = machine, depth_beats
        self.ports = machine.memory.ports
        self.gate_count = 5 * self.ports + 4
        super().__init__(
            {
                "ld_cmd": In(stream.Signature(Command())),
                "st_cmd": In(stream.Signature(Command())),
                "ld_done": Out(Done()),
                "st_done": Out(Done()),
                "ld_error": Out(Error()),
                "st_error": Out(Error()),
                "ld_active": Out(1),
                "st_active": Out(1),
                "ld_stall": Out(len(LdUnit.STALL_CAUSES)),
                "st_stall": Out(len(StUnit.STALL_CAUSES)),
                "weights": Out(stream.Signature(machine.word_bits)),
                "sys": Out(stream.Signature(machine.word_bits)),
                "gates": In(self.gate_count),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.depth_beats // self.ports
        m.submodules.memory = memory = SimMemory(MemoryTiming.of(self.machine), depth_beats=self.depth_beats)
        m.submodules.ld = ld = LdUnit(LdParameters.of(self.machine, memory_words=words))
        m.submodules.st = st = StUnit(StParameters.of(self.machine, memory_words=words))
        m.submodules.vb = vb = VectorBuffer(rows=self.machine.buffers.vector_rows)
        m.submodules.ab = ab = ActivationBuffer(slices=self.machine.buffers.activation_slices)
        for unit, prefix in ((ld, "ld"), (st, "st")):
            command = getattr(self, f"{prefix}_cmd")
            m.d.comb += [
                unit.cmd.valid.eq(command.valid),
                unit.cmd.payload.eq(command.payload),
                command.ready.eq(unit.cmd.ready),
            ]
            for name in ("done", "error", "active", "stall"):
                m.d.comb += getattr(self, f"{prefix}_{name}").eq(getattr(unit, name))
        for name in ("weights", "sys"):
            inner, outer = getattr(ld, name), getattr(self, name)
            m.d.comb += [outer.valid.eq(inner.valid), outer.payload.eq(inner.payload), inner.ready.eq(outer.ready)]

        gates = iter(self.gates)
        for number, port in enumerate(memory.ports):
            streams = (
                (ld.mem[number].ar, port.ar), (port.r, ld.mem[number].r),
                (st.mem[number].aw, port.aw), (st.mem[number].w, port.w), (port.b, st.mem[number].b),
            )  # fmt: skip
            for source, sink in streams:
                gate = next(gates)
                m.d.comb += [
                    sink.valid.eq(source.valid & gate),
                    source.ready.eq(sink.ready & gate),
                    sink.payload.eq(source.payload),
                ]
        connect(m, ld.vb, vb.w_ld)
        connect(m, ld.ab, ab.w_ld)
        connect(m, st.vb, vb.r_st)
        connect(m, st.ab, ab.r_st)
        m.d.comb += [
            vb.w_sfu.valid.eq(~next(gates)),
            vb.r_sfu.valid.eq(~next(gates)),
            ab.w_sfu.valid.eq(~next(gates)),
            ab.r_sfu.valid.eq(~next(gates)),
            vb.w_sfu.row.eq(vb.rows - 1),
            ab.w_sfu.slice.eq(ab.slices - 1),
            vb.r_sfu.row.eq(vb.rows - 1),
            ab.r_sfu.slice.eq(ab.slices - 1),
        ]
        return m


@dataclass(frozen=True)
class Event:
    """A retirement or an error. `value` is the signature or the error code."""

    kind: str  # "done" or "error"
    queue: Queue
    pc: int
    value: int
    cycle: int


@dataclass(frozen=True)
class BenchResult:
    """What a run gave: events in order, the words of both streams, cycles, stall cycles per unit and cause."""

    events: tuple[Event, ...]
    weights: np.ndarray  # uint8 [words, word_bytes]
    sys: np.ndarray  # uint8 [words, word_bytes]
    cycles: int  # until both units were idle after the last command
    weight_cycles: tuple[int, int]  # of the first and the last word on `weights`
    stalls: Mapping[str, int]


def build_bench(machine: Machine, *, depth_beats: int, replace: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """The bench's executable. `replace` plants faults: file name to (text, other text), one occurrence at least."""
    if machine.memory.dram is not None:
        raise UserError(f"machine {machine.name}: memory.dram = {machine.memory.dram!r}: this bench has the memory of fixed latency only; leave it unset")
    bench = MemoryBench(machine, depth_beats=depth_beats)
    gate_count = bench.gate_count
    sources = {"memory_bench.v": to_verilog(bench, "memory_bench"), **sim_memory_sources()}
    for name, (old, new) in (replace or {}).items():
        if old not in sources[name]:
            raise ValueError(f"{name} does not contain {old!r}")
        sources[name] = sources[name].replace(old, new)
    main = (Path(__file__).parent / "cpp" / "memory_bench.cpp").read_text()
    defines = (
        f"#define WORD_WORDS {machine.word_bytes // 4}\n#define GATE_COUNT {gate_count}\n"
        f"#define LD_CAUSES {len(LdUnit.STALL_CAUSES)}\n#define ST_CAUSES {len(StUnit.STALL_CAUSES)}\n"
    )
    return build_executable(sources, "memory_bench", defines + main)


def encode_command(instruction: Instruction, pc: int) -> list[int]:
    """The bits of `Command` as nine 32-bit words. Operands must be ints (registers are control's business)."""
    operands = [int(o) & 0xFFFFFFFF for o in instruction.operands]
    fields = {"pc": pc, "op": int(instruction.op), "flags": instruction.flags}
    fields |= {f"o{i + 1}": value for i, value in enumerate(operands)}
    bits = Const(fields, Command()).as_value().value
    return [bits >> (32 * i) & 0xFFFFFFFF for i in range(COMMAND_WORDS)]


def run_bench(
    executable: Path,
    machine: Machine,
    commands: Sequence[Instruction | None],
    *,
    image: Path | None = None,
    dump: tuple[Path, int, int] | None = None,
    poison: int = 1,
    seed: int = 0,
    gate_percent: int = 100,
    sink_percent: int = 100,
    record: bool = True,
    timeout_cycles: int = 1_000_000,
) -> BenchResult:
    """Run `commands` (None: wait until both units are idle), instruction i having PC i.

    dump
        (file, first beat, beats) of the memory at the end.
    gate_percent, sink_percent
        How often, of 100 cycles, a gate is open and `weights` and `sys` are ready; random from `seed`.
    record
        Keep the words of both streams.

    Raises RuntimeError where the run does not end by itself (a hang, a refused image), with its output.
    """
    steps = []
    for pc, instruction in enumerate(commands):
        if instruction is None:
            steps += [BARRIER] + [0] * COMMAND_WORDS
        else:
            steps += [int(instruction.op.queue), *encode_command(instruction, pc)]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        np.asarray(steps, dtype="<u4").tofile(folder / "steps")
        command = [str(executable), str(folder), str(seed), str(gate_percent), str(sink_percent), str(int(record)), str(timeout_cycles)]
        command += [f"+poison={poison}"]
        if image is not None:
            command.append(f"+image={image}")
        if dump is not None:
            command += [f"+dump={dump[0]}", f"+dump_base={dump[1]}", f"+dump_beats={dump[2]}"]
        child = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if child.returncode:
            raise RuntimeError(f"the memory bench ended with status {child.returncode}:\n{child.stdout[-2000:]}{child.stderr[-2000:]}")
        streams = [np.fromfile(folder / name, dtype=np.uint8).reshape(-1, machine.word_bytes) for name in ("weights", "sys")]
    events, totals, stalls = [], {}, {}
    for line in child.stdout.splitlines():
        first, *rest = line.split()
        if first in ("done", "error"):
            queue, pc, value, cycle = rest
            events.append(Event(first, Queue(int(queue)), int(pc), int(value), int(cycle)))
        elif first in ("cycles", "first", "last"):
            totals[first] = int(rest[0])
        elif first == "stall":
            unit, cause, count = rest
            names = (LdUnit if unit == "ld" else StUnit).STALL_CAUSES
            stalls[f"{unit}_{names[int(cause)]}"] = int(count)
    return BenchResult(tuple(events), *streams, totals["cycles"], (totals["first"], totals["last"]), stalls)


@dataclass(frozen=True)
class Deliverable:
    """Sequential read bandwidth. `fraction` is of the ports' peak (every port a beat in p of q cycles)."""

    words: int
    cycles: int  # from the first delivered word to the last
    fraction: float
    expected_fraction: float  # 1 - tRFC/tREFI: what refresh alone leaves


def measure_deliverable(machine: Machine, *, bytes_: int = 4 << 20, commands: int = 1) -> Deliverable:
    """Load `bytes_` in sequence with `commands` LDW and an ever-ready consumer; simulated in Verilator."""
    words = bytes_ // machine.word_bytes
    share = words // commands
    executable = build_bench(machine, depth_beats=1 << 20)
    program = [Instruction(Op.LDW, (i * share, share, 1, 0)) for i in range(commands)]
    result = run_bench(executable, machine, program, record=False, timeout_cycles=100 * words + 10_000)
    cycles = result.weight_cycles[1] - result.weight_cycles[0] + 1
    moved = share * commands
    peak = machine.memory.p / machine.memory.q
    return Deliverable(
        words=moved,
        cycles=cycles,
        fraction=moved / cycles / peak,
        expected_fraction=1 - machine.trfc_cycles / machine.trefi_cycles,
    )
