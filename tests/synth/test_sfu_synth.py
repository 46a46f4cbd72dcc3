"""Synthesis of the SFU's parts: DSPs and RAMs as intended, no latch, nothing undriven, a bound on cells and depth.

The bounds are this design's counts with some room for another version of Yosys. The whole unit is 8 lanes, one
reduction, one sequencer, and the registers that accompany a row.
"""

import pytest

from headrace.hw.emit import to_verilog
from headrace.hw.ram import ram_sources
from headrace.hw.sfu_lane import MODULE, lane_sources
from headrace.hw.sfu_reduction import SfuReduction
from headrace.hw.sfu_sequencer import SfuParameters, SfuSequencer
from headrace.hw.synth import synthesise

pytestmark = pytest.mark.synth


def texts():
    parameters = SfuParameters(vector_rows=4096, activation_slices=256)
    yield MODULE, "".join(lane_sources().values()), {"dsp": 2, "bram": 1.5, "lut": 950, "depth": 13}
    reduction = to_verilog(SfuReduction(), "sfu_reduction") + "".join(ram_sources().values())
    yield "sfu_reduction", reduction, {"dsp": 0, "bram": 0, "lut": 1200, "depth": 12}
    sequencer = to_verilog(SfuSequencer(parameters), "sfu_sequencer")
    yield "sfu_sequencer", sequencer, {"dsp": 0, "bram": 0, "lut": 1500, "depth": 13}


@pytest.mark.parametrize("name", [MODULE, *(pytest.param(name, marks=pytest.mark.nightly) for name in ("sfu_reduction", "sfu_sequencer"))])
def test_part(name):
    text, bound = next((text, bound) for top, text, bound in texts() if top == name)
    resources = synthesise(text, name)
    print(f"{name}: {resources}")
    assert (resources.dsp, resources.bram, resources.uram) == (bound["dsp"], bound["bram"], 0)
    assert 100 < resources.lut <= bound["lut"]
    assert 0 < resources.depth <= bound["depth"]
