"""The matrix-vector engine in Yosys: one DSP48E2 per two MACs, no latches, nothing but DSPs in a chain."""

import pytest

from headrace.hw.dsp_chain import MODULE, chain_sources
from headrace.hw.emit import to_verilog
from headrace.hw.machine import load_machine
from headrace.hw.mv_array import MvArray
from headrace.hw.mv_unit import MvUnit, mv_sources
from headrace.hw.synth import synthesise

pytestmark = pytest.mark.synth


def with_sources(component, name: str) -> str:
    return "\n".join([to_verilog(component, name), *mv_sources(simulation=False).values()])


def test_a_chain_is_sixteen_dsps_and_nothing_else():
    counts = synthesise(chain_sources()[f"{MODULE}.v"], MODULE)
    assert counts.dsp == 16
    assert set(counts.cells) == {"DSP48E2"}


def test_array_of_nano():
    machine = load_machine("nano")
    counts = synthesise(with_sources(MvArray(machine=machine), "mv_array"), "mv_array")
    assert counts.dsp == machine.array.macs_per_cycle // 2
    # The weight FIFO is LUT RAM, 16 banks x 64 bits x 64 slices in 32 x 5 cells of 7 x 64 bits; its output registers
    # are 1024 flip-flops. The accumulators are 8 x 32, the activation skew is shift registers. Synthesised: 624 LUT,
    # 1586 LUTs as memory, 1816 FF.
    assert counts.bram == 0 and counts.uram == 0
    assert counts.cells["RAM64M8"] == 160
    assert counts.lut < 700 and counts.lutram < 1700 and counts.ff < 1900
    assert counts.depth <= 11


@pytest.mark.nightly
def test_unit_of_nano():
    machine = load_machine("nano")
    counts = synthesise(with_sources(MvUnit(machine=machine), "mv_unit"), "mv_unit")
    # Beside the array only the two float multipliers of the one scale lane have DSPs, two each.
    assert counts.dsp == machine.dsps + 4
    assert counts.uram == 0
