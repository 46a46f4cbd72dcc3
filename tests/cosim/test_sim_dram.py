"""SimDram in Verilator: random reads and writes with back-pressure on every stream, against section 12 of ``docs/memory.md``
cycle by cycle (``dram_ports_model``), and the clocks by themselves."""

import dataclasses
import subprocess
from pathlib import Path

import dram_ports_model
import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from headrace.hw.axi import ADDRESS_BITS
from headrace.hw.dram_ports import DramPorts
from headrace.hw.emit import to_verilog
from headrace.hw.machine import load_machine
from headrace.hw.ram import read_verilog
from headrace.hw.sim_dram import SimDram, core_clock, sim_dram_sources
from headrace.sim.verilate import build_executable

pytestmark = pytest.mark.cosim

DEPTH_BEATS = 1 << 16
READ = np.dtype([("not_before", "<u8"), ("address", "<u8"), ("len", "<u4"), ("zero", "<u4")])
WRITE = np.dtype([("not_before", "<u8"), ("address", "<u8"), ("strobe", "<u4"), ("zero", "<u4"), ("data", "u1", 32)])
EVENT = np.dtype([("kind", "<u4"), ("port", "<u4"), ("cycle", "<u8"), ("last", "<u4"), ("response", "<u4"), ("data", "u1", 32)])
AR, R, W, B = range(4)


class DramMemoryBench(wiring.Component):
    """`SimDram` under plain port names, for the C++ bench: aw and w of a port are valid and taken together."""

    def __init__(self, config: DramPorts):
        self.config = config
        members = {"dram_clk": In(1), "rst": In(1), "clk": Out(1)}
        for i in range(config.ports):
            members |= {f"ar_valid{i}": In(1), f"ar_addr{i}": In(ADDRESS_BITS), f"ar_len{i}": In(4), f"ar_ready{i}": Out(1)}
            members |= {f"r_valid{i}": Out(1), f"r_data{i}": Out(256), f"r_last{i}": Out(1), f"r_resp{i}": Out(2), f"r_ready{i}": In(1)}
            members |= {f"w_valid{i}": In(1), f"w_addr{i}": In(ADDRESS_BITS), f"w_data{i}": In(256), f"w_strb{i}": In(32), f"w_ready{i}": Out(1)}
            members |= {f"b_valid{i}": Out(1), f"b_resp{i}": Out(2), f"b_ready{i}": In(1)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.clk.eq(core_clock(m, self.config, dram_clk=self.dram_clk, rst=self.rst))
        m.submodules.memory = memory = SimDram(self.config, depth_beats=DEPTH_BEATS)
        for i, port in enumerate(memory.ports):
            def mine(name, i=i):
                return getattr(self, f"{name}{i}")

            m.d.comb += [
                port.ar.valid.eq(mine("ar_valid")),
                port.ar.payload.addr.eq(mine("ar_addr")),
                port.ar.payload.len.eq(mine("ar_len")),
                mine("ar_ready").eq(port.ar.ready),
                mine("r_valid").eq(port.r.valid),
                mine("r_data").eq(port.r.payload.data),
                mine("r_last").eq(port.r.payload.last),
                mine("r_resp").eq(port.r.payload.resp),
                port.r.ready.eq(mine("r_ready")),
                port.aw.valid.eq(mine("w_valid")),
                port.w.valid.eq(mine("w_valid")),
                port.aw.payload.addr.eq(mine("w_addr")),
                port.w.payload.data.eq(mine("w_data")),
                port.w.payload.strb.eq(mine("w_strb")),
                port.w.payload.last.eq(1),
                mine("w_ready").eq(port.w.ready),
                mine("b_valid").eq(port.b.valid),
                mine("b_resp").eq(port.b.payload.resp),
                port.b.ready.eq(mine("b_ready")),
            ]
        return m


def build(config: DramPorts) -> Path:
    text = (Path(__file__).parent / "sim_dram_bench.cpp").read_text()
    ports = " ".join(f"X({i})" for i in range(config.ports))
    sources = {"top.v": to_verilog(DramMemoryBench(config), "top"), **sim_dram_sources(config)}
    return build_executable(sources, "top", f"#define PORTS(X) {ports}\n{text}")


def run(executable: Path, folder: Path, traffic, image: bytes, *, limit: int) -> np.ndarray:
    """`EVENT` records of all handshakes, in order. `traffic`: (reads, writes, r_ready, b_ready) of each port."""
    for i, parts in enumerate(traffic):
        for name, values in zip(("reads", "writes", "r_ready", "b_ready"), parts, strict=True):
            values.tofile(folder / f"port{i}.{name}")
    (folder / "image").write_bytes(image)
    command = [str(executable), str(folder), str(limit), f"+image={folder / 'image'}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"status {result.returncode} {result.stdout} {result.stderr}"
    return np.fromfile(folder / "events", EVENT)


def random_traffic(config: DramPorts, rng: np.random.Generator, *, reads: int, writes: int):
    """Reads and writes of every port: runs of a pattern, pauses, and back-pressure that comes and goes.

    Addresses reach a little past the store. Rows, banks and bursts that meet are frequent.
    """
    beats = DEPTH_BEATS // config.ports

    def addresses(count):
        where, values = int(rng.integers(beats)), []
        while len(values) < count:
            style, length = rng.integers(4), int(rng.integers(1, 40))
            if style == 0:
                where = int(rng.integers(beats + 64))
            for _ in range(length):
                values.append(where % (beats + 64))
                where += (1, 16, int(rng.integers(beats)), 256)[style]
        return np.array(values[:count])

    def times(count):
        gaps = np.where(rng.random(count) < 0.05, rng.integers(0, 300, count), rng.integers(0, 3, count) * (rng.random(count) < 0.5))
        return np.cumsum(gaps)

    def readiness():
        parts = [rng.random(int(rng.integers(20, 400))) < rng.choice([0.05, 0.3, 0.7, 1.0, 1.0]) for _ in range(40)]
        return np.concatenate(parts).astype(np.uint8)

    traffic = []
    for _ in range(config.ports):
        r, w = np.zeros(reads, READ), np.zeros(writes, WRITE)
        first = addresses(reads)
        # A burst stays within 16 beats, as the core's do.
        r["address"], r["not_before"] = first * 32, times(reads)
        r["len"] = np.minimum(rng.choice([0, 0, 3, 15, 15], reads), 15 - first % 16)
        w["address"], w["not_before"] = addresses(writes) * 32, times(writes)
        w["strobe"] = np.where(rng.random(writes) < 0.7, 0xFFFFFFFF, rng.integers(0, 1 << 32, writes))
        w["data"] = rng.integers(0, 256, (writes, 32))
        traffic.append((r, w, readiness(), readiness()))
    return traffic


def expected_events(config: DramPorts, traffic, image: bytes, *, limit: int):
    plain = [
        ([(int(x["not_before"]), int(x["address"]), int(x["len"])) for x in r],
         [(int(x["not_before"]), int(x["address"]), int(x["strobe"]), x["data"].tobytes()) for x in w],
         r_ready.tolist(), b_ready.tolist())
        for r, w, r_ready, b_ready in traffic
    ]  # fmt: skip
    return dram_ports_model.simulate(config, plain, bytearray(image), depth_beats=DEPTH_BEATS, limit=limit)


def difference(config: DramPorts, events: np.ndarray, expected) -> str:
    """Empty where every handshake is in its cycle with its bytes, else the first that is not."""
    for port in range(config.ports):
        for kind, name in enumerate(("AR", "R", "W", "B")):
            ours = events[(events["kind"] == kind) & (events["port"] == port)]
            theirs = [event for event in expected if event[:2] == (name, port)]
            if len(ours) != len(theirs):
                return f"{name} of port {port}: {len(ours)} handshakes, expected {len(theirs)}"
            for i, (got, (_, _, cycle, last, response, data)) in enumerate(zip(ours, theirs, strict=True)):
                same = (int(got["cycle"]), int(got["last"]), int(got["response"])) == (cycle, last, response)
                if not same or (data is not None and got["data"].tobytes() != data):
                    return (
                        f"{name} {i} of port {port}: cycle {got['cycle']}, last {got['last']}, response {got['response']}, {got['data'].tobytes().hex()}; "
                        f"expected {cycle}, {last}, {response}, {data.hex() if data is not None else 'anything'}"
                    )
    return ""


def config_of(preset: str, *overrides: str) -> DramPorts:
    return DramPorts.of(load_machine("nano", [f"memory.dram={preset}", *overrides]))


def compare(config: DramPorts, seed: int, folder: Path, *, reads: int = 150, writes: int = 300):
    rng = np.random.default_rng(seed)
    traffic, image = random_traffic(config, rng, reads=reads, writes=writes), rng.bytes(DEPTH_BEATS * 32)
    events = run(build(config), folder, traffic, image, limit=200_000)
    expected = expected_events(config, traffic, image, limit=200_000)
    beats = sum(event[0] in "RB" for event in expected)
    print(f"seed {seed}: {config.preset}, p/q {config.p}/{config.q}, {beats} beats in {expected[-1][2]} core cycles")
    assert difference(config, events, expected) == ""
    return traffic, image, events


def test_every_handshake_in_its_cycle(tmp_path):
    config = config_of("u280-hbm2")
    traffic, image, events = compare(config, 0, tmp_path)
    # The comparison fails for a model that is off by one cycle.
    for wrong in (
        dataclasses.replace(config, fixed_cycles=config.latency + 1),
        dataclasses.replace(config, p=config.p + 1),
        dataclasses.replace(config, timing=dataclasses.replace(config.timing, cwl=config.timing.cwl + 1)),
    ):
        assert difference(config, events, expected_events(wrong, traffic, image, limit=200_000)) != ""


OTHERS = {
    "ramulator2-hbm2-2000": ["clock_hz=6e8"],  # a core that asks for more than the channel gives
    "ramulator2-hbm3-6400": ["memory.ports=4", "array.macs_per_cycle=256", "clock_hz=3e8"],  # per-bank refresh, two channels
    "dramsys-hbm2": ["clock_hz=3.333e8"],
    "ramulator2-gddr6-14000": ["clock_hz=1e9"],  # channels of one port
    "dramsim3-lpddr4-8gb-x16-2400": [],  # one command bus
    "ramulator2-hbm2-1600": ["clock_hz=8e8"],  # one clock: p/q = 1
}


@pytest.mark.nightly
@pytest.mark.parametrize("preset", OTHERS)
def test_other_channels(preset, tmp_path):
    for seed in range(3):
        compare(config_of(preset, *OTHERS[preset]), seed, tmp_path, reads=400, writes=800)


@pytest.mark.nightly
def test_many_seeds(tmp_path):
    for seed in range(1, 9):
        compare(config_of("u280-hbm2"), seed, tmp_path, reads=400, writes=800)


class ClockBench(wiring.Component):
    """A counter in each clock, and a register in each that takes over the other's counter at every tick of its own."""

    dram_clk: In(1)
    rst: In(1)
    clk: Out(1)
    core_cycle: Out(32)
    command_cycle: Out(32)
    core_saw: Out(32)
    command_saw: Out(32)

    def __init__(self, config: DramPorts):
        self.config = config
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.clk.eq(core_clock(m, self.config, dram_clk=self.dram_clk, rst=self.rst))
        m.d.sync += [self.core_cycle.eq(self.core_cycle + 1), self.core_saw.eq(self.command_cycle)]
        m.d.dram += [self.command_cycle.eq(self.command_cycle + 1), self.command_saw.eq(self.core_cycle)]
        return m


CLOCK_MAIN = """
#include <cstdio>
#include "Vtop.h"
int main() {
    Vtop top;
    int reset = 4;
    top.rst = 1;
    for (int step = 0; step < 20000; step++) {
        top.dram_clk = 1;
        top.eval();
        const bool tick = top.clk;
        std::printf("%d %u %u %u %u\\n", int(tick), top.core_cycle, top.command_cycle, top.core_saw, top.command_saw);
        top.dram_clk = 0;
        top.eval();
        if (top.clk) return 1;
        if (tick && reset && --reset == 0) top.rst = 0;
        top.eval();
        if (top.clk) return 1;
    }
    return 0;
}
"""


@pytest.mark.parametrize("clock_hz", [225e6, 0.9e9, 1e9])
def test_edges_of_the_two_clocks_meet(clock_hz):
    """Each side's registers see the other's as they were before the common edge, and both begin at cycle 0 together."""
    config = config_of("ramulator2-hbm2-2000", f"clock_hz={clock_hz}")
    sources = {"top.v": to_verilog(ClockBench(config), "top"), "hr_sim_clock.v": read_verilog("hr_sim_clock.v")}
    executable = build_executable(sources, "top", CLOCK_MAIN, optimise="-O0")
    result = subprocess.run([str(executable)], capture_output=True, text=True, check=True)
    rows = np.array([[int(word) for word in line.split()] for line in result.stdout.splitlines()])
    tick, core, command, core_saw, command_saw = rows.T
    # After the edge with which command cycle t ends, the counters of both sides hold what begins.
    start = int(np.flatnonzero(command == 1)[0])
    phase = n = 0
    last_core_saw = core_saw[start - 1]
    assert core[start - 1] == command[start - 1] == 0 and tick[start - 1] == 1
    for t, row in enumerate(range(start, len(rows))):
        assert command[row] == t + 1
        assert command_saw[row] == n  # core cycle n lies around command cycle t
        phase += config.p
        if phase >= config.q:
            phase -= config.q
            assert tick[row] == 1
            last_core_saw = t  # t = T(n)
            n += 1
        else:
            assert tick[row] == 0
        assert core[row] == n and core_saw[row] == last_core_saw
    assert n > 0.99 * len(rows) * config.p / config.q - 10
