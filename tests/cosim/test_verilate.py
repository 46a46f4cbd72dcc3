"""The Verilator build: it runs, it is cached, a changed input builds anew, and errors are plain."""

import subprocess
from pathlib import Path

import pytest

from headrace.models.errors import ToolError, UserError
from headrace.sim import verilate

pytestmark = pytest.mark.cosim

COUNTER = """module counter(input clk, output reg [7:0] n);
  initial n = 0;
  always @(posedge clk) n <= n + 8'd{step};
endmodule
"""
MAIN = """#include "Vtop.h"
#include <cstdio>
int main() {
    Vtop top;
    for (int i = 0; i < 10; i++) { top.clk = 0; top.eval(); top.clk = 1; top.eval(); }
    std::printf("%d\\n", top.n);
}
"""


def run(step: int) -> tuple[str, object]:
    path = verilate.build_executable({"counter.v": COUNTER.format(step=step)}, "counter", MAIN)
    return subprocess.run([path], capture_output=True, text=True, check=True).stdout.strip(), path


def test_build_runs_and_is_reused(monkeypatch):
    result, path = run(3)
    assert result == "30"
    assert path.name == "counter" and (path.parent / "build.log").is_file()

    def refuse(*args, **kwargs):
        raise AssertionError("a cached build must not run a tool")

    monkeypatch.setattr(verilate, "_run", refuse)
    assert run(3) == ("30", path)


def test_a_changed_source_is_a_new_build():
    first, second = run(3), run(5)
    assert second[0] == "50" and first[1] != second[1]


def test_broken_verilog_reports_the_log():
    with pytest.raises(RuntimeError, match="Verilator on 'broken' failed.*") as caught:
        verilate.build_executable({"broken.v": "module broken(input clk); assign x = ; endmodule\n"}, "broken", MAIN)
    assert "syntax error" in str(caught.value)


def test_a_missing_tool_is_a_plain_message(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs 'make', which is not on the PATH"):
        verilate.build_executable({"counter.v": COUNTER.format(step=7)}, "counter", MAIN)


@pytest.mark.parametrize("cxx", ["/bin/false", "/bin/false -O1"])
def test_a_compiler_that_cannot_say_its_version_is_refused(cxx, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"C\\+\\+ compiler '{cxx}': --version ended with status 1; set CXX"):
        verilate.build_executable({"counter.v": COUNTER.format(step=7)}, "counter", MAIN)


def test_no_compiler_at_all_is_a_plain_message(monkeypatch, tmp_path):
    for name in ("make", "perl"):
        (tmp_path / name).symlink_to(verilate.shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match="needs 'g\\+\\+', which is not on the PATH"):
        verilate.build_executable({"counter.v": COUNTER.format(step=7)}, "counter", MAIN)


def test_a_failed_compilation_names_the_kept_log(monkeypatch, tmp_path):
    broken = tmp_path / "broken-g++"
    broken.write_text("#!/bin/sh\ncase \"$1\" in --version) echo broken 1.0;; *) echo cannot compile today >&2; exit 3;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ToolError, match="cannot compile today") as caught:
        verilate.build_executable({"counter.v": COUNTER.format(step=7)}, "counter", MAIN)
    words, _, log = caught.value.message.partition("; the whole log is ")
    assert words == "compiling 'counter' failed with status 2"
    assert "cannot compile today" in Path(log).read_text()


def test_a_cache_path_with_a_space_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "a b"))
    with pytest.raises(UserError, match="contains a space"):
        verilate.cache_directory()


def test_names_are_bare():
    with pytest.raises(ValueError, match="bare file name"):
        verilate.build_executable({"../x.v": ""}, "x", MAIN)


def test_runtime_key_knows_the_c_flags_and_traces(tmp_path):
    def key(cflags: str, trace: int) -> str:
        (tmp_path / "Vtop.mk").write_text(f"VM_SC = 0\n\nVM_USER_CFLAGS = \\\n{cflags}\nVM_USER_LDLIBS = \\\n")
        (tmp_path / "Vtop_classes.mk").write_text(
            f"VM_TIMING = 0\nVM_COVERAGE = 0\nVM_TRACE = {trace}\nVM_TRACE_FST = {trace}\nVM_TRACE_VCD = 0\n"
        )
        return verilate._runtime_key(tmp_path, ["CXX=g++"])

    assert key("  -O1 \\\n", 0) == key("  -O1 \\\n", 0)
    assert len({key("", 0), key("  -O1 \\\n", 0), key("  -O0 \\\n", 0), key("", 1)}) == 4
