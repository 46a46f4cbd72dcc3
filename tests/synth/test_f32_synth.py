"""Synthesis of the float32 units: DSPs as intended, no latch, nothing undriven, and a bound on cells and depth.

The bounds are this design's counts with some room for another version of Yosys; a change that breaks one is
to be looked at.
"""

import pytest

from headrace.hw.emit import to_rtlil, to_verilog
from headrace.hw.f32_add import F32Add
from headrace.hw.f32_from_int import F32FromInt32
from headrace.hw.f32_mul import F32Mul
from headrace.hw.synth import synthesise
from headrace.hw.yosys import YosysError

pytestmark = pytest.mark.synth


@pytest.mark.parametrize(
    "unit, emit, dsp, lut, depth",
    [(F32Mul, to_verilog, 2, 160, 13), (F32Add, to_verilog, 0, 520, 13), (F32FromInt32, to_rtlil, 0, 200, 13)],
)
def test_unit(unit, emit, dsp, lut, depth):
    name = unit.__name__
    resources = synthesise(emit(unit(), name), name)
    print(f"{name}: {resources}")
    assert resources.dsp == dsp
    assert 0 < resources.lut <= lut
    assert resources.bram == resources.uram == 0
    assert 0 < resources.depth <= depth
    # Every result bit is registered, and the pipeline cannot be free.
    assert resources.ff >= 32 * (2 if dsp == 0 else 3)


def test_verilog_text_is_the_same_twice():
    assert to_verilog(F32Add(), "add") == to_verilog(F32Add(), "add")


def test_latch_is_refused():
    text = "module top(input g, input d, output reg q); always @* if (g) q = d; endmodule\n"
    with pytest.raises(YosysError, match="(?i)assert"):
        synthesise(text, "top")


def test_undriven_net_is_refused():
    text = "module top(input a, output y); wire n; assign y = a ^ n; endmodule\n"
    with pytest.raises(YosysError, match="(?i)check"):
        synthesise(text, "top")


def test_counts_follow_the_design():
    """A known small design: 8 flip-flops, one DSP, an 18 Kbit block RAM and an UltraRAM."""
    text = """
module top(input clk, input [7:0] d, output reg [7:0] q, input signed [17:0] a, b, output signed [35:0] p,
           input we, input [8:0] ra, wa, output reg [35:0] r, input [11:0] ua, output reg [71:0] u);
  always @(posedge clk) q <= d;
  assign p = a * b;
  (* ram_style = "block" *) reg [35:0] m [0:511];
  always @(posedge clk) begin if (we) m[wa] <= {4{d, d[0]}}; r <= m[ra]; end
  (* ram_style = "ultra" *) reg [71:0] n [0:4095];
  always @(posedge clk) begin if (we) n[ua] <= {9{d}}; else u <= n[ua]; end
endmodule
"""
    resources = synthesise(text, "top")
    assert (resources.dsp, resources.ff, resources.bram, resources.uram) == (1, 8, 0.5, 1)


def test_repeated_module_counts_in_every_instance():
    text = """
module cell_(input clk, d, output reg q); always @(posedge clk) q <= d; endmodule
module top(input clk, input [1:0] d, output [1:0] q);
  cell_ a(clk, d[0], q[0]);
  cell_ b(clk, ~d[1], q[1]);
endmodule
"""
    kept, flat = synthesise(text, "top", flatten=False), synthesise(text, "top")
    assert kept.ff == flat.ff == 2 and kept.depth is None
