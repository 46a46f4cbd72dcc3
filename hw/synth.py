"""Synthesis for UltraScale+ with Yosys (`synth_xilinx -family xcup`): resource counts, checks, logic depth.

There is no place and route here: counts are *synthesised*, and a clock rate can only be judged from the depth of
logic between registers. Yosys packs no registers into DSPs, so flip-flops beside an inferred multiplier are an
upper bound.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.hw import yosys

_LUT = re.compile(r"LUT[1-6]|INV")
_FF = re.compile(r"FD[RCPS]E(_1)?")
# Small memories and shift registers made of LUTs, in LUTs each.
_LUTRAM = {
    "RAM32X1S": 1, "RAM64X1S": 1, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1S": 2, "RAM128X1D": 4, "RAM256X1S": 4,
    "RAM256X1D": 8, "RAM512X1S": 8, "RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8, "SRL16E": 1, "SRLC32E": 1,
}  # fmt: skip
_BRAM = {"RAMB18E2": 0.5, "RAMB36E2": 1.0}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Cells of one design after synthesis for UltraScale+."""

    dsp: int
    """DSP48E2."""
    lut: int
    """LUTs used as logic, an inverter counted as one."""
    lutram: int
    """LUTs used as memory or shift register."""
    ff: int
    carry: int
    """CARRY4 (Yosys' mapping); a CARRY8 of the device holds two."""
    bram: float
    """Block RAMs of 36 Kbit; one of 18 Kbit is a half."""
    uram: int
    """URAM288."""
    depth: int | None
    """Cells on the longest path between registers, DSPs and memories (a CARRY4 counts as one); None where the
    hierarchy was kept."""
    cells: Mapping[str, int] = field(repr=False)
    """All cells by type, black boxes included."""


def _source(text: str) -> tuple[str, str]:
    """(file name, read command) for Verilog or RTLIL text."""
    # Verilog may have escaped names ("module \\unit.part (") as RTLIL does, but RTLIL ends its modules with "end".
    if re.search(r"\bendmodule\b", text):
        return "design.v", "read_verilog -sv design.v"
    return "design.il", "read_rtlil design.il"


def _prepare(text: str, top: str, flatten: bool) -> tuple[dict[str, str], list[str]]:
    """Input files and script up to the mapped design; any latch, undriven or doubly driven net ends the run."""
    name, read = _source(text)
    flow = f"synth_xilinx -family xcup -top {top} -noiopad -noclkbuf -uram{' -flatten' if flatten else ''}"
    script = [
        read,
        # The first step knows the ports of the vendor's cells, which the text may instantiate.
        f"{flow} -run begin:prepare",
        "proc",
        "check -assert",
        "select -assert-none t:$dlatch t:$adlatch t:$dlatchsr",
        f"{flow} -run prepare:",
        "select -assert-none t:LD?E t:$dlatch t:$_DLATCH_*",
    ]
    return {name: text}, script


def count_cells(cells: Mapping[str, int], depth: int | None = None) -> Resources:
    """Resources of cells by type."""
    return Resources(
        dsp=cells.get("DSP48E2", 0),
        lut=sum(n for kind, n in cells.items() if _LUT.fullmatch(kind)),
        lutram=sum(n * _LUTRAM.get(kind, 0) for kind, n in cells.items()),
        ff=sum(n for kind, n in cells.items() if _FF.fullmatch(kind)),
        carry=cells.get("CARRY4", 0),
        bram=sum(n * _BRAM.get(kind, 0.0) for kind, n in cells.items()),
        uram=cells.get("URAM288", 0),
        depth=depth,
        cells=dict(cells),
    )


def synthesise(text: str, top: str, *, flatten: bool = True) -> Resources:
    """Synthesise module `top` of a Verilog or RTLIL text; count the cells of the whole hierarchy, and the depth.

    `check -assert` must be clean and there must be no latch, else `headrace.hw.yosys.YosysError` is raised.
    `flatten` False keeps the hierarchy, which is faster where a module is repeated, optimises less, and gives no
    depth.
    """
    inputs, script = _prepare(text, top, flatten)
    script.append("tee -q -o stat.json stat -json -tech xilinx")
    if flatten:
        # `ltp` walks through vendor cells, registers included: without them each path ends where a register was.
        script += ["delete t:FD* t:DSP48E2 t:SRL* t:RAM* t:URAM*", "tee -q -o depth.txt ltp"]
    output = yosys.run(script, inputs, ["stat.json", "depth.txt"] if flatten else ["stat.json"])
    # The banner of a command may precede the object.
    report = json.loads(output["stat.json"][output["stat.json"].index("{") :])
    depth = None
    if flatten:
        # A design without logic between registers has no path at all.
        depth = max((int(n) for n in re.findall(r"\(length=(\d+)\)", output["depth.txt"])), default=0)
    return count_cells(report["design"]["num_cells_by_type"], depth)
