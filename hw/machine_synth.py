"""Synthesis of the whole machine: the very Verilog that is emitted, block by block, with Yosys for UltraScale+.

One run for each block: the mapper's cost of a module grows with the design around it. Parts of MV and modules that are emitted
once and instantiated many times keep their hierarchy, so that they are mapped once; inside them all is flattened. Nothing is
optimised across the boundaries that are kept. Logic depth is taken afterwards from the block's whole mapped netlist.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from headrace.hw import yosys
from headrace.hw.machine import Machine
from headrace.hw.synth import count_cells
from headrace.hw.top import MODULE, top_sources

BLOCK_MODULES = {
    "control": "control",
    "ld": "ld",
    "st": "st",
    "mv": "mv",
    "sfu": "sfu",
    "raw_fifo": "raw",
    "vector_buffer": "vb",
    "activation_buffer": "ab",
}
"""Block (as in `hw.resources`) to its instance in `Top`."""

MV_PARTS = ("decode", "array", "scale", "writer")
"""Instances inside MV that are reported as its parts; what is left is its front."""

TOP_BLOCK = "top"
"""What stands in `Top` itself: wiring, and the logic that joins blocks."""

COLUMNS = ("dsp", "lut", "ff", "bram", "uram")

SHARED_MODULES = ("hr_sfu_lane", "hr_decode_row", "hr_dsp_chain", "hr_scale_lane")
"""Emitted once, instantiated many times."""

_LATCHES = "t:$dlatch t:$adlatch t:$dlatchsr"
_MAPPED_LATCHES = "t:LD?E t:$dlatch t:$_DLATCH_*"
# Where a path ends: registers, DSPs, memories. (`ltp -noff` knows Yosys' own cells only, and walks through these.)
_SEQUENTIAL = "t:FD* t:DSP48E2 t:SRL* t:RAM* t:URAM*"

Note = Callable[[str], None]


def block_module(block: str) -> str:
    """Name of the Verilog module of a block: ``mv``, or ``mv.array`` for a part."""
    first, _, part = block.partition(".")
    instance = BLOCK_MODULES[first]
    return f"{MODULE}.{instance}.{part}" if part else f"{MODULE}.{instance}"


def _flow(top: str) -> str:
    # The same options for every module: UltraRAM where `ram_style` or the size asks for it.
    return f"synth_xilinx -family xcup -top {top} -noiopad -noclkbuf -uram -flatten"


def _script(files: Sequence[str], top: str, depths: Mapping[str, str]) -> list[str]:
    """Synthesise module `top`. `depths`: name to module, of those whose logic depth is wanted."""
    kept = [*SHARED_MODULES, *(block_module(f"mv.{part}") for part in MV_PARTS)]
    blocks = [block_module(block) for block in BLOCK_MODULES] if top == MODULE else []
    script = [
        *(f"read_verilog -sv {name}" for name in files),
        # The first step knows the ports of the vendor's cells, which the design instantiates.
        f"{_flow(top)} -run begin:prepare",
        "proc",
        "tee -q -o check.txt check",
        f"tee -q -o latches.txt select -list {_LATCHES}",
        # Above them, blocks are black boxes.
        *(f"blackbox {module}" for module in blocks),
        f"hierarchy -top {top}",
        *(f"setattr -mod -set keep_hierarchy 1 {module}" for module in kept),
        "flatten",
        # Amaranth's array members have names like `waits[3]`, which the mapper would give to a bit of `waits` as well.
        "rename -hide w:*",
        f"{_flow(top)} -run prepare:",
        f"tee -q -o mapped_latches.txt select -list {_MAPPED_LATCHES}",
        "tee -q -o stat.json stat -json",
        f"delete {_SEQUENTIAL} {' '.join(f't:{module}' for module in blocks)}".rstrip(),
        "setattr -mod -unset keep_hierarchy *",
        "design -save logic",
    ]
    for name, module in depths.items():
        script += [
            "design -load logic",
            f"hierarchy -top {module}",
            "flatten",
            # Without a clocked cell each path ends where a register was.
            f"tee -q -o depth_{name}.txt ltp",
        ]
    return script


def _modules(report: str) -> dict[str, dict[str, int]]:
    """Module to its cells by type, from `stat -json`."""
    # The banner of a command may precede the object.
    modules = json.loads(report[report.index("{") :])["modules"]
    return {name.removeprefix("\\"): module["num_cells_by_type"] for name, module in modules.items()}


def total_cells(modules: Mapping[str, Mapping[str, int]], module: str, seen: dict[str, Counter] | None = None) -> Counter:
    """Primitive cells by type of `module` and all below it, in every instance."""
    seen = {} if seen is None else seen
    if module not in seen:
        cells = Counter()
        for kind, count in modules[module].items():
            name = kind.removeprefix("\\")
            below = total_cells(modules, name, seen) if name in modules else {kind: 1}
            for cell, number in below.items():
                cells[cell] += count * number
        seen[module] = cells
    return seen[module]


def _columns(cells: Mapping[str, int]) -> dict[str, int | float]:
    """`lut` includes those used as memory and shift register, which `lutram` tells apart."""
    counts = count_cells(cells)
    return {
        "dsp": counts.dsp, "lut": counts.lut + counts.lutram, "ff": counts.ff, "bram": counts.bram, "uram": counts.uram,
        "lutram": counts.lutram, "carry_cells": counts.carry,
    }  # fmt: skip


def _levels(text: str) -> int:
    """A block without logic between registers has no path at all."""
    return max((int(n) for n in re.findall(r"\(length=(\d+)\)", text)), default=0)


def _problems(check: str) -> int:
    found = re.findall(r"Found and reported (\d+) problems", check)
    if not found:
        raise yosys.YosysError(f"`check` ended without a count:\n{check[-400:]}")
    return int(found[-1])


def _lines(text: str) -> int:
    return len([line for line in text.splitlines() if line.strip()])


def _run(sources: Mapping[str, str], top: str, depths: Mapping[str, str], note: Note) -> dict:
    """Raw figures of one run: {"modules", "levels", "checks"}."""
    names = [f"depth_{name}.txt" for name in depths]
    fixed = ["check.txt", "latches.txt", "mapped_latches.txt", "stat.json"]
    output = yosys.run(_script(list(sources), top, depths), sources, [*fixed, *names], note=note)
    return {
        "modules": _modules(output["stat.json"]),
        "levels": {name: _levels(output[f"depth_{name}.txt"]) for name in depths},
        "checks": {
            "check_problems": _problems(output["check.txt"]),
            "latches": _lines(output["latches.txt"]) + _lines(output["mapped_latches.txt"]),
        },
    }


def _cached(sources: Mapping[str, str], top: str, depths: Mapping[str, str], note: Note, cache: Path | None) -> dict:
    """`_run`, kept in folder `cache` under the hash of everything that it depends on."""
    if cache is None:
        return _run(sources, top, depths, note)
    hasher = hashlib.sha256()
    for text in (*_script(list(sources), top, depths), version("pyosys"), *(t for item in sources.items() for t in item)):
        hasher.update(f"{len(text)}:{text}".encode())
    kept = cache / "synth" / f"{hasher.hexdigest()[:24]}.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    raw = _run(sources, top, depths, note)
    kept.parent.mkdir(parents=True, exist_ok=True)
    temporary = kept.with_suffix(f".{os.getpid()}.part")
    temporary.write_text(json.dumps(raw))
    temporary.replace(kept)
    return raw


def _figures(raw: dict, module: str, level: str) -> dict:
    return _columns(total_cells(raw["modules"], module)) | {"lut_levels": raw["levels"][level]}


def _block(sources: Mapping[str, str], block: str, cache: Path | None, note: Note) -> tuple[dict, dict]:
    """(figures of a block, its checks)."""
    module = block_module(block)
    parts = {f"mv.{part}": block_module(f"mv.{part}") for part in MV_PARTS} if block == "mv" else {}
    raw = _cached(sources, module, {block: module} | parts, note, cache)
    figures = _figures(raw, module, block)
    if parts:
        figures["parts"] = {name.removeprefix("mv."): _figures(raw, part, name) for name, part in parts.items()}
    return figures, raw["checks"]


def synthesise_block(machine: Machine, block: str, *, cache: Path | None = None, note: Note = lambda text: None) -> dict:
    """One block (or ``mv.PART``) of the machine's own Verilog: the columns, `lut_levels`, `carry_cells`, `checks`."""
    figures, checks = _block(top_sources(machine, simulation=False), block, cache, note)
    return figures | {"checks": checks}


def synthesise_machine(machine: Machine, *, cache: Path | None = None, note: Note = lambda text: None) -> dict:
    """The document of ``headrace synth``, without its stamp (see the command's help for what each figure is).

    `note` gets lines of progress; `cache` is a folder for results, kept block by block.
    """
    note("emitting the Verilog")
    sources = top_sources(machine, simulation=False)
    # The whole design is checked here; then its blocks are taken out, and what joins them is mapped.
    raw = _cached(sources, MODULE, {TOP_BLOCK: MODULE}, lambda text: note(f"{TOP_BLOCK}: {text}"), cache)
    problems, latches = raw["checks"]["check_problems"], raw["checks"]["latches"]
    blocks = {}
    for block in BLOCK_MODULES:
        blocks[block], checks = _block(sources, block, cache, lambda text, block=block: note(f"{block}: {text}"))
        latches += checks["latches"]
    blocks[TOP_BLOCK] = _figures(raw, MODULE, TOP_BLOCK)
    resources = {column: sum(block[column] for block in blocks.values()) for column in COLUMNS}
    array = {column: blocks["mv"]["parts"]["array"][column] for column in COLUMNS}
    return {
        "machine": machine.name,
        "kind": "synthesised",
        "tool": f"yosys (pyosys {version('pyosys')}), {_flow(MODULE)}, block by block",
        "macs_per_cycle": machine.array.macs_per_cycle,
        "resources": resources,
        "array": array,
        "blocks": blocks,
        "lut_levels": max(block["lut_levels"] for block in blocks.values()),
        "checks": {
            "check_clean": problems == 0, "check_problems": problems, "no_latch": latches == 0, "latches": latches,
            "array_dsp_is_half_the_macs": 2 * array["dsp"] == machine.array.macs_per_cycle,
        },
    }  # fmt: skip
