"""One DRAM channel in Verilator: traces through ``hw/dram_channel.py``, with the results of `headrace.sim.dram`."""

import dataclasses
import hashlib
import os
import subprocess
import tempfile
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import numpy as np
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import headrace.hw
from headrace.hw.dram_channel import DramChannel
from headrace.hw.dram_parameters import WIDTHS, geometry, parameter_values
from headrace.hw.emit import to_verilog
from headrace.hw.memory_timing import MAX_QUEUE, ChannelTiming
from headrace.models.errors import ToolError
from headrace.sim.dram import MAX_PORTS, Trace
from headrace.sim.verilate import build_executable, cache_directory

REQUEST = np.dtype([("arrival", "<u8"), ("row", "<u4"), ("bank", "<u2"), ("port", "u1"), ("write", "u1")])
"""A request in the file that the bench reads."""
ANSWER = np.dtype([("accepted", "<i8"), ("completed", "<i8")])


class DramBench(wiring.Component):
    """A `DramChannel` under plain port names, for the C++ bench.

    Where the parameters are settable they are registers, written from the `set_` inputs while `load` is 1: as inputs of
    the channel they would make a simulator evaluate all of it again whenever an input changes.
    """

    def __init__(self, channel: DramChannel):
        self.channel = channel
        request, done = channel.request.payload, channel.done.payload
        super().__init__(
            {f"request_{name}": In(len(request[name])) for name in request.shape().members}
            | {f"done_{name}": Out(len(done[name])) for name in done.shape().members}
            | {"request_valid": In(1), "request_ready": Out(1), "done_valid": Out(1), "load": In(1), "now": Out(len(channel.now))}
            | {f"set_{name}": In(width) for name, width in WIDTHS.items() if channel.settable}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.channel = channel = self.channel
        request, done = channel.request, channel.done
        m.d.comb += [request.payload[name].eq(getattr(self, f"request_{name}")) for name in request.payload.shape().members]
        m.d.comb += [getattr(self, f"done_{name}").eq(done.payload[name]) for name in done.payload.shape().members]
        if channel.settable:
            for name, width in WIDTHS.items():
                value = Signal(width, name=f"parameter_{name}", reset_less=True)
                with m.If(self.load):
                    m.d.sync += value.eq(getattr(self, f"set_{name}"))
                m.d.comb += getattr(channel.parameters, name).eq(value)
        m.d.comb += [
            request.valid.eq(self.request_valid),
            self.request_ready.eq(request.ready),
            self.done_valid.eq(done.valid),
            self.now.eq(channel.now),
        ]
        return m


def settable_verilog(timing: ChannelTiming, *, queue: int = MAX_QUEUE) -> str:
    """Verilog of a channel with `timing`'s geometry, up to `queue` entries, and settable parameters; module ``top``.

    Kept in the build cache under a hash of all it depends on: emission takes several seconds.
    """
    hasher = hashlib.sha256()
    sources = [Path(__file__), *sorted(Path(headrace.hw.__file__).parent.glob("*.py"))]
    for text in (*(path.read_text() for path in sources), version("amaranth"), version("pyosys"), repr(geometry(timing)), str(queue)):
        hasher.update(f"{len(text)}:{text}".encode())
    kept = cache_directory() / "verilog" / f"{hasher.hexdigest()[:24]}.v"
    if not kept.is_file():
        channel = DramChannel(dataclasses.replace(timing, queue=queue), ports=MAX_PORTS, settable=True)
        kept.parent.mkdir(exist_ok=True)
        temporary = kept.with_suffix(f".{os.getpid()}.part")
        temporary.write_text(to_verilog(DramBench(channel), "top"))
        temporary.replace(kept)
    return kept.read_text()


def build_channel(timing: ChannelTiming, *, queue: int = MAX_QUEUE) -> Path:
    """The executable for every timing of `timing`'s geometry with up to `queue` entries. Built once, then cached."""
    return _build(settable_verilog(timing, queue=queue), list(WIDTHS))


def build_fixed(channel: DramChannel) -> Path:
    """The executable of a channel whose parameters are constants: its runs need the same ones."""
    return _build(to_verilog(DramBench(channel), "top"), [])


def _build(verilog: str, inputs: list[str]) -> Path:
    text = (Path(__file__).parent / "cpp" / "dram_bench.cpp").read_text()
    ports = "".join(f" X({name})" for name in inputs)
    return build_executable({"top.v": verilog}, "top", f"#define PARAMETERS(X){ports}\n{text}")


def run_channel(
    executable: Path,
    trace: Trace,
    timing: ChannelTiming,
    *,
    ports: int = 0,
    port_ratio: Fraction = Fraction(1),
    port_fifo: int = 1,
    fixed: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Acceptance and completion cycles (int64, N) of `trace`. Arguments as `headrace.sim.dram.simulate`.

    `executable` is a `build_channel` of the same geometry and at least `timing.queue` entries, or with `fixed` a
    `build_fixed` of the same parameters. `ports` = 0: no limit.
    """
    records = np.zeros(len(trace), REQUEST)
    records["bank"], records["row"], records["write"] = trace.bank, trace.row, trace.write
    if trace.arrival is not None:
        records["arrival"] = trace.arrival
    ratio = port_ratio if ports else Fraction(1)
    if ports:
        records["port"] = records["bank"] // timing.banks_per_pc % ports if trace.port is None else trace.port
    values = parameter_values(timing, p=ratio.numerator, q=ratio.denominator, port_fifo=port_fifo)
    # Nothing waits longer than for all refreshes and for one entry of each kind; far less than this.
    stall = 1_000_000 + 100 * max(values[name] for name in WIDTHS if name not in ("p", "q", "port_fifo")) + ratio.denominator // ratio.numerator
    with tempfile.TemporaryDirectory(prefix="headrace-dram-") as name:
        folder = Path(name)
        records.tofile(folder / "trace")
        command = [executable, folder / "trace", folder / "result", str(stall), *(str(values[key]) for key in WIDTHS if not fixed)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise ToolError(f"the simulated channel ended with status {result.returncode}: {result.stderr.strip() or 'it said nothing'}")
        answers = np.fromfile(folder / "result", ANSWER)
    return answers["accepted"].copy(), answers["completed"].copy()


def geometry_name(timing: ChannelTiming) -> str:
    """Such as ``2x4x4``: timings of one name share a build."""
    return "x".join(map(str, geometry(timing)))
