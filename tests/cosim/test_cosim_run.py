"""The cocotb runner: a passing and a failing design, errors that say what is wrong, the cache, waves."""

import time
from pathlib import Path

import pytest

from headrace.hw.emit import to_verilog
from headrace.hw.ram import ram_sources
from headrace.hw.stream_fifo import StreamFifo
from headrace.models.errors import ToolError, UserError
from headrace.sim import cosim_run

pytestmark = pytest.mark.cosim

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def fifo():
    return {"fifo.v": to_verilog(StreamFifo(45, depth=8), "fifo"), **ram_sources()}


def run(sources, seed=1, module="cocotb_stream_fifo", **more):
    return cosim_run.run(sources, "fifo", module, python_path=[HERE], env={"SEED": str(seed)}, timeout_s=300, **more)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stream_fifo(fifo, seed):
    result = run(fifo, seed, plusargs=[f"+poison={seed}"]).check()
    assert [test.name for test in result.tests] == ["random_back_pressure", "one_item_a_cycle"]


def test_planted_fault_is_seen(fifo):
    """A RAM that writes to the wrong half now and then."""
    old, new = "mem[w_addr][lane", "mem[w_addr ^ (w_data[2:0] == 5)][lane"
    faulty = fifo | {"hr_ram_sdp.v": fifo["hr_ram_sdp.v"].replace(old, new)}
    assert faulty != fifo
    result = run(faulty)
    assert [test.name for test in result.failures] == ["random_back_pressure", "one_item_a_cycle"]
    with pytest.raises(AssertionError, match="cycle .*: item"):
        result.check()


def test_cached_start_is_quick(fifo):
    run(fifo)
    started = time.monotonic()
    cosim_run.build(fifo, "fifo")
    assert time.monotonic() - started < 2


def test_a_missing_module_is_named(fifo):
    with pytest.raises(RuntimeError, match="(?s)no test of 'cocotb_none'.*cocotb_none"):
        run(fifo, module="cocotb_none")


def test_a_missing_top_is_named(fifo):
    with pytest.raises(ValueError, match="no module 'other'"):
        cosim_run.run(fifo, "other", "cocotb_stream_fifo")


def test_an_endless_simulation_is_stopped(fifo, tmp_path):
    (tmp_path / "cocotb_endless.py").write_text(
        "import cocotb\nfrom cocotb.clock import Clock\nfrom cocotb.triggers import Timer\n"
        "@cocotb.test()\nasync def endless(dut):\n"
        "    Clock(dut.clk, 2, 'ns', impl='gpi').start()\n    await Timer(10**9, 'us')\n"
    )
    with pytest.raises(RuntimeError, match="did not end within 5 s"):
        cosim_run.run(fifo, "fifo", "cocotb_endless", python_path=[tmp_path], timeout_s=5)


def test_a_crashed_simulation_names_its_kept_log(fifo, tmp_path):
    (tmp_path / "cocotb_crash.py").write_text(
        "import os\nimport signal\nimport cocotb\n@cocotb.test()\nasync def crash(dut):\n"
        "    print('last words', flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with pytest.raises(ToolError) as caught:
        cosim_run.run(fifo, "fifo", "cocotb_crash", python_path=[tmp_path], timeout_s=60)
    words, _, log = caught.value.message.partition("; its log is ")
    assert words == "the simulation of 'fifo' was ended by SIGKILL"
    assert "last words" in Path(log).read_text()


def test_waves_have_a_window(fifo, tmp_path):
    run(fifo, waves=cosim_run.Waves(file=tmp_path / "all.vcd")).check()
    run(fifo, waves=cosim_run.Waves(file=tmp_path / "part.vcd", begin=100_000, end=200_000)).check()
    whole, part = ((tmp_path / name).stat().st_size for name in ("all.vcd", "part.vcd"))
    assert 0 < part < whole / 3


def test_a_window_of_cycles_is_recorded_and_nothing_else(fifo, tmp_path):
    file = tmp_path / "cycles.vcd"
    run(fifo, waves=cosim_run.Waves.of_cycles(file, 50, 20, period_ps=2000)).check()
    times = [int(line[1:]) for line in file.read_text().splitlines() if line.startswith("#")]
    assert (min(times), max(times)) == (100_000, 139_500)  # the bench moves every 500 ps


def test_wave_formats_are_named(tmp_path):
    with pytest.raises(UserError, match="must be .vcd or .fst"):
        cosim_run.Waves(file=tmp_path / "waves.txt")


def test_port_names():
    ansi = "module top #(parameter N = 1) (input wire clk, /* x */ input [3:0] a, output reg signed [7:0] b // c\n);"
    assert cosim_run.port_names(ansi, "top") == ["clk", "a", "b"]
    assert cosim_run.port_names("module x(a);\nmodule top(clk, rst__b);", "top") == ["clk", "rst__b"]
