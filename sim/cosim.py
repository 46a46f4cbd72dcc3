"""Co-simulation of a compiled image on the RTL: `run_image` is the whole interface.

It takes an image file, its manifest and the host's arguments, and knows nothing of golden or interpreter: whoever calls it
compares.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version
from math import ceil
from pathlib import Path

import numpy as np

import headrace.hw
import headrace.kernels.contract
from headrace.hw.control import ControlParameters
from headrace.hw.isa import ErrorCode, Op, Queue
from headrace.hw.machine import Machine
from headrace.hw.dram_ports import dram_of
from headrace.hw.sim_top import MODULE, sim_sources
from headrace.hw.top import control_parameters
from headrace.models.errors import UserError
from headrace.sim import cosim_run
from headrace.sim.cosim_run import Waves
from headrace.sim.verilate import cache_directory

TRACE_DTYPE = np.dtype([("queue", "u1"), ("zero", "u1"), ("pc", "<u2"), ("signature", "<u4"), ("cycle", "<u8")])
"""A record of ``hr_sim_trace.v``."""

BEAT_BYTES = 32


class CosimError(RuntimeError):
    """The machine latched an error."""

    def __init__(self, code: int, queue: int, pc: int):
        names = {member.value: member.name for member in ErrorCode}, {member.value: member.name for member in Queue}
        super().__init__(f"the machine stopped: {names[0].get(code, code)} of {names[1].get(queue, queue)} at instruction {pc}")
        self.code, self.queue, self.pc = code, queue, pc


@dataclass(frozen=True)
class Cosim:
    """What a run gave.

    tokens: int [outputs]. logits: float32 [outputs, vocab] (None where the manifest names no logits). counters: name to
    value at the end. trace: `TRACE_DTYPE` records in order of retirement.
    marks: (id, cycle) of every MARK in order. cycles: of the program. sim_cycles_per_s: clock cycles from start to halt,
    boot included, over wall seconds. build_s: emission and compilation (0 where cached), start_s: until the clock ran.
    """

    tokens: np.ndarray
    logits: np.ndarray | None
    counters: dict[str, int]
    marks: tuple[tuple[int, int], ...]
    trace: np.ndarray
    cycles: int
    sim_cycles_per_s: float
    build_s: float
    start_s: float


def _hardware_texts() -> Iterator[str]:
    """Everything that emission reads: the hardware and contract packages, as text."""
    for package in (headrace.hw, headrace.kernels.contract):
        folder = Path(package.__file__).parent
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.v")]):
            yield str(path.relative_to(folder))
            yield path.read_text()


def _sources(machine: Machine, memory_words: int) -> dict[str, str]:
    # The machine only names its memory, whose file may change.
    return _kept_sources(machine.model_dump_json(), memory_words, repr(dram_of(machine)))


@lru_cache(maxsize=4)
def _kept_sources(machine_json: str, memory_words: int, dram: str) -> dict[str, str]:
    """`sim_sources`, kept in the build cache: emission takes several seconds, and depends on nothing but what is hashed."""
    hasher = hashlib.sha256()
    versions = [version("amaranth"), version("pyosys")]
    for text in (*_hardware_texts(), *versions, machine_json, str(memory_words), dram):
        hasher.update(f"{len(text)}:{text}".encode())
    kept = cache_directory() / "verilog" / f"{hasher.hexdigest()[:24]}.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    sources = sim_sources(Machine.model_validate_json(machine_json), memory_words=memory_words)
    kept.parent.mkdir(exist_ok=True)
    temporary = kept.with_suffix(f".{os.getpid()}.part")
    temporary.write_text(json.dumps(sources))
    temporary.replace(kept)
    return sources


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Another machine than the emitted one, for whoever plants faults: `transform` takes the simulation's Verilog (file name to
    text) and gives the one to build; `plusargs` are ``+name=value`` for it. `optimise`: compiler option."""

    transform: Callable[[dict[str, str]], dict[str, str]]
    plusargs: tuple[str, ...] = ()
    optimise: str = "-O2"


LEAST_MEMORY_BYTES = 1 << 27


def memory_words_for(total_words: int, word_bytes: int) -> int:
    """Size of the simulated memory for an image: a power of two, and at least 128 MiB, so that one build serves small and large models."""
    return max(LEAST_MEMORY_BYTES // word_bytes, 1 << (total_words - 1).bit_length())


def build(machine: Machine, total_words: int, *, waves: str | None = None) -> Path:
    """The simulator's executable for images of `total_words` memory words, from the cache where it is there."""
    sources = _sources(machine, memory_words_for(total_words, machine.word_bytes))
    return cosim_run.build(sources, MODULE, waves=waves)


def _section(manifest: dict, name: str, machine: Machine) -> tuple[int, int] | None:
    """(first beat, beats) of a section."""
    section = manifest["sections"].get(name)
    if section is None:
        return None
    return section["base"] * machine.memory.ports, section["words"] * machine.memory.ports


def _marks(trace: np.ndarray, image: Path, manifest: dict, machine: Machine) -> tuple[tuple[int, int], ...]:
    """MARK instructions in the trace: their opcode is looked up in the image's program."""
    program = manifest["sections"]["program"]
    raw = np.fromfile(
        image, np.uint8, count=program["words"] * machine.word_bytes, offset=program["base"] * machine.word_bytes
    )
    opcodes = raw[::32]
    sys_records = trace[trace["queue"] == Queue.SYS]
    marked = sys_records[opcodes[sys_records["pc"]] == Op.MARK]
    return tuple((int(record["signature"]), int(record["cycle"])) for record in marked)


def run_image(
    image: Path,
    manifest: dict,
    machine: Machine,
    *,
    arguments: Sequence[int],
    outputs: int,
    seed: int = 1,
    limit_cycles: int = 2_000_000_000,
    waves: Waves | None = None,
    timeout_s: float | None = None,
    on_line: Callable[[str], None] | None = None,
    variant: Variant | None = None,
) -> Cosim:
    """Run `image` on the RTL of `machine` until HALT.

    arguments
        R1, R2, ...: at most eight.
    outputs
        Output tokens to read back (and rows of logits), at most the manifest's.
    seed
        Poison of all memories and RAMs.
    waves
        Record signals (a build of its own); times in ps, 2000 per core cycle (with DRAM channels the file's own time is 2000 ps per
        command cycle).
    variant
        Run a changed machine (a build of its own).

    Raises CosimError where the machine latched an error, UserError where the manifest and the image do not fit.
    """
    for name in ("sections", "total_words", "word_bytes", "outputs", "vocab", "logit_beats"):
        if name not in manifest:
            raise UserError(f"image manifest of {image}: field '{name}' is missing")
    if manifest["word_bytes"] != machine.word_bytes:
        raise UserError(
            f"image manifest of {image}: word_bytes = {manifest['word_bytes']}, but machine {machine.name} has {machine.word_bytes}"
        )
    if not 0 < outputs <= manifest["outputs"]:
        raise UserError(f"outputs = {outputs}: image {image} has room for 1 to {manifest['outputs']}")
    if len(arguments) > 8:
        raise ValueError("at most eight arguments")
    parameters: ControlParameters = control_parameters(machine)
    begun = time.monotonic()
    sources = _sources(machine, memory_words_for(manifest["total_words"], machine.word_bytes))
    how = {}
    if variant is not None:
        sources = variant.transform(dict(sources))
        how = {"optimise": variant.optimise}
    build_s = time.monotonic() - begun
    with tempfile.TemporaryDirectory(prefix="headrace-image-") as name:
        folder = Path(name)
        dumps = {"dump": ("tokens", folder / "tokens"), "dump1": ("logits", folder / "logits")}
        plusargs = [f"+image={Path(image).absolute()}", f"+poison={seed}", f"+fill_beats={manifest['total_words'] * machine.memory.ports}",
            f"+trace={folder / 'trace'}"]
        for dump, (section, path) in dumps.items():
            place = _section(manifest, section, machine)
            if place is not None:
                plusargs += [f"+{dump}={path}", f"+{dump}_base={place[0]}", f"+{dump}_beats={place[1]}"]
        plusargs += variant.plusargs if variant is not None else ()
        # Cycles of the clock that is driven, for each of the core's: the memory's command clock where DRAM channels serve the ports.
        dram = dram_of(machine)
        clocks = Fraction(1) if dram is None else Fraction(dram.q, dram.p)
        if waves is not None:
            waves = replace(waves, begin=int(waves.begin * clocks), end=None if waves.end is None else int(waves.end * clocks))
        orders = {
            "arguments": [int(value) & 0xFFFFFFFF for value in arguments],
            "header_word": 0,
            "clock": "clk" if dram is None else "dram_clk",
            "limit_clocks": ceil(limit_cycles * clocks),
            "counters": parameters.counter_map(),
            "result": str(folder / "result.json"),
        }
        outcome = cosim_run.run(
            sources, MODULE, "headrace.sim.cosim_driver", plusargs=plusargs, env={"HEADRACE_COSIM": json.dumps(orders)},
            waves=waves, timeout_s=timeout_s, on_line=on_line, **how,
        ).check()  # fmt: skip
        result = json.loads((folder / "result.json").read_text())
        if result["status"] >> 2 & 1:
            raise CosimError(result["error"] & 0xFF, result["error"] >> 8, result["error_pc"])
        trace = np.fromfile(folder / "trace", TRACE_DTYPE)
        rows = np.fromfile(folder / "tokens", "<u4").reshape(-1, BEAT_BYTES // 4)
        tokens = rows[:outputs, 0].astype(np.int64)
        logits = None
        if (folder / "logits").exists():
            raw = np.fromfile(folder / "logits", "<f4")
            width = manifest["logit_beats"] * BEAT_BYTES // 4
            logits = raw[: outputs * width].reshape(outputs, width)[:, : manifest["vocab"]]
        marks = _marks(trace, Path(image), manifest, machine)
    counters = result["counters"]
    clocked = counters["cycles"] + counters["boot_cycles"]
    return Cosim(
        tokens=tokens, logits=logits, counters=counters, marks=marks, trace=trace, cycles=counters["cycles"],
        sim_cycles_per_s=clocked / result["seconds"], build_s=build_s + outcome.build_s,
        start_s=max(0.0, outcome.run_s - result["seconds"]),
    )  # fmt: skip
