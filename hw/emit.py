"""From an Amaranth component to Verilog or RTLIL text: the same text for the same component, on any machine."""

import os

from amaranth.back import rtlil, verilog
from amaranth.hdl import Elaboratable

# Amaranth prefers a Yosys on the PATH over the packaged one, and another version may print other text.
os.environ["AMARANTH_USE_YOSYS"] = "builtin"


def to_verilog(component: Elaboratable, name: str) -> str:
    """Verilog of `component` (a `wiring.Component`: its signature gives the ports), top module `name`.

    Source locations and Amaranth's internal attributes are left out: with them the text would hold absolute
    paths, and its hash would differ from machine to machine.
    """
    return verilog.convert(component, name=name, emit_src=False, strip_internal_attrs=True)


def to_rtlil(component: Elaboratable, name: str) -> str:
    """RTLIL (Yosys' own text format) of `component`, top module `name`, without source locations."""
    return rtlil.convert(component, name=name, emit_src=False)
