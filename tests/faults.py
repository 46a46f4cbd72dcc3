"""Faults planted in the machine's emitted Verilog: all of them in one build, chosen at run time by +fault=N (0 or none: no fault).

A fault sits where an instance drives one of its output ports: the port drives a net of its own, and the net that it drove before gets
that value with some bits flipped or stuck. Nothing else of the text is touched, so that fault 0 is the emitted machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from headrace.hw.activation_buffer import SliceWrite
from headrace.hw.command_queue import QueuedCommand
from headrace.hw.isa import Command
from headrace.hw.machine import load_machine
from headrace.hw.sfu_sequencer import Issue
from headrace.hw.vector_buffer import RowWrite
from headrace.sim.cosim import Variant

_BUFFERS = load_machine("nano").buffers
_ROW, _SLICE = RowWrite(_BUFFERS.vector_rows), SliceWrite(_BUFFERS.activation_slices)

ACTIONS = {"flip": "{good} ^ {mask}", "stuck at 0": "{good} & ~{mask}", "stuck at 1": "{good} | {mask}"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Bits of output `port` of `instance` in Verilog module `module`, while `when` (an expression in `module`'s names) holds."""

    name: str
    module: str
    instance: str
    port: str
    bits: tuple[int, ...]
    action: str = "flip"
    when: str = "1'b1"


def _bit(layout, field: str, bit: int = 0) -> int:
    return layout[field].offset + bit


FAULTS = (
    # LD: words of the weight stream (and only they: the program comes through the same FIFO), rows, slices.
    Fault(name="LdUnit read data", module="headrace_top.ld", instance="fifo0", port="o__payload", bits=(2,), when="weights__valid"),
    Fault(name="LdUnit row", module="headrace_top", instance="ld", port="vb__payload", bits=(_bit(_ROW, "data", 3 * 32 + 20),)),
    Fault(name="LdUnit slice", module="headrace_top", instance="ld", port="ab__payload", bits=(_bit(_SLICE, "data", 5 * 8 + 3),)),
    Fault(name="raw FIFO", module="headrace_top", instance="raw", port="o__payload", bits=(301,)),
    # MV, in the order of its pipeline.
    Fault(name="DecodeRow", module="headrace_top.mv.decode", instance="row3", port="bytes_low", bits=(4,)),
    Fault(name="DecodeUnit scale word", module="headrace_top.mv", instance="decode", port="scale_data", bits=(20,)),
    Fault(name="WeightFifo", module="headrace_top.mv.array.fifo", instance="bank3_0", port="r_data", bits=(9,)),
    Fault(name="ActivationSkew", module="headrace_top.mv.array", instance="skew", port="act3", bits=(2,)),
    Fault(name="DspChain", module="headrace_top.mv.array", instance="chain1", port="low", bits=(3,)),
    Fault(name="Accumulate", module="headrace_top.mv.array", instance="accumulate", port="q", bits=(6,)),
    Fault(name="ScaleUnit scales", module="headrace_top.mv.scale", instance="words", port="q", bits=(18,)),
    Fault(name="ScaleLane", module="headrace_top.mv.scale", instance="lane0", port="y", bits=(10,)),
    Fault(
        name="MvWriter row address", module="headrace_top.mv", instance="writer", port="vb_write__payload", bits=(_bit(_ROW, "row"),)
    ),
    # VEC.
    Fault(name="SfuLane", module="headrace_top.sfu", instance="lane_2", port="y", bits=(12,)),
    Fault(name="SfuReduction maximum", module="headrace_top.sfu", instance="reduction", port="best", bits=(21,)),
    Fault(name="SfuReduction index", module="headrace_top.sfu", instance="reduction", port="index", bits=(0,)),
    Fault(
        name="SfuSequencer row mask", module="headrace_top.sfu", instance="sequencer", port="issue", bits=(_bit(Issue(), "mask", 7),),
        action="stuck at 1",
    ),
    # Buffers and ST.
    Fault(name="VectorBuffer", module="headrace_top.vb", instance="ram", port="r_data", bits=(5 * 32 + 19,)),
    Fault(name="ActivationBuffer", module="headrace_top.ab", instance="copy_mv", port="r_data", bits=(5,)),
    Fault(name="StUnit strobe", module="headrace_top.st", instance="fifo", port="o__payload", bits=(256 + 1,), action="stuck at 0"),
    # Control.
    Fault(
        name="CommandQueue", module="headrace_top.control", instance="queue_st", port="cmd__payload", bits=(_bit(Command(), "o2"),)
    ),
    Fault(
        name="Sequencer operand", module="headrace_top.control", instance="sequencer", port="push",
        bits=(_bit(QueuedCommand(), "command") + _bit(Command(), "o7"),), action="stuck at 0",
    ),
    Fault(name="TokenCounters", module="headrace_top.control", instance="tokens", port="ok", bits=(2,), action="stuck at 1"),
    Fault(name="AxiLite argument", module="headrace_top.control", instance="registers", port="argument_1", bits=(0,)),
)  # fmt: skip


def number(name: str) -> int:
    """Of +fault=N."""
    return 1 + [fault.name for fault in FAULTS].index(name)


def variant(name: str | None) -> Variant:
    """The machine with every fault in place and fault `name` on (None: none on)."""
    return Variant(transform=plant, plusargs=(f"+fault={0 if name is None else number(name)}",), optimise="-O1")


def plant(sources: Mapping[str, str]) -> dict[str, str]:
    """`sources` with `FAULTS` in place. Raises ValueError where a module, instance or port is not there."""
    return dict(_planted(tuple(sources.items())))


@lru_cache(maxsize=1)
def _planted(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    sources = dict(items)
    for n, fault in enumerate(FAULTS, start=1):
        file, old = _module(sources, fault.module)
        sources[file] = sources[file].replace(old, _plant(old, sources, n, fault))
    return sources


def _pattern(name: str) -> str:
    """A Verilog identifier, escaped (then a space ends it) or not."""
    return rf"(?:\\{re.escape(name)} |{re.escape(name)}\b)"


def _module(sources: Mapping[str, str], name: str) -> tuple[str, str]:
    """(file, text from ``module`` to ``endmodule``)."""
    found = [
        (file, match[0])
        for file, text in sources.items()
        for match in re.finditer(rf"^module {_pattern(name)} ?\(.*?^endmodule\n", text, re.M | re.S)
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} modules {name}")
    return found[0]


def _plant(text: str, sources: Mapping[str, str], n: int, fault: Fault) -> str:
    instance = re.search(rf"^  (\S+) +{_pattern(fault.instance)} ?\(\n.*?^  \);\n", text, re.M | re.S)
    if instance is None:
        raise ValueError(f"{fault.name}: module {fault.module} has no instance {fault.instance}")
    _, child = _module(sources, instance[1].removeprefix("\\"))
    output = re.search(rf"^  output (?:reg |wire |signed )*(?:\[(\d+):0\] )?{_pattern(fault.port)} ?;", child, re.M)
    pin = re.search(rf"^    \.{_pattern(fault.port)} ?\((.+)\),?$", instance[0], re.M)
    if output is None or pin is None:
        raise ValueError(f"{fault.name}: instance {fault.instance} has no output {fault.port} on a line of its own")
    width = int(output[1] or 0) + 1
    if not all(0 <= bit < width for bit in fault.bits):
        raise ValueError(f"{fault.name}: {fault.port} has {width} bits, not {fault.bits}")
    mask = f"{width}'h{sum(1 << bit for bit in fault.bits):x}"
    good = f"hr_good_{n}"
    bad = ACTIONS[fault.action].format(good=good, mask=mask)
    faulty = (
        f"  wire [{width - 1}:0] {good};\n"
        f"  assign {pin[1]} = hr_fault == 8'd{n} && ({fault.when}) ? {bad} : {good};\n"
        + instance[0].replace(pin[0], pin[0].replace(f"({pin[1]})", f"({good})"))
    )
    text = text.replace(instance[0], faulty)
    if " hr_fault;" not in text:
        select = '  reg [7:0] hr_fault;\n  initial if (!$value$plusargs("fault=%d", hr_fault)) hr_fault = 8\'d0;\n'
        head = re.match(r"module [^;]*;\n", text)[0]
        text = head + select + text[len(head) :]
    return text
