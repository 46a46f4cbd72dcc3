"""Run a cocotb test on Verilog in Verilator: `run` is the whole interface.

cocotb's own runner makes every signal of the design public, which costs minutes of compilation and most of the
speed; here a ``.vlt`` file makes the top's ports public and nothing else, and the build comes from the cache of
`sim.verilate`. In the test, ``Clock(dut.clk, PERIOD, "ns", impl="gpi")`` keeps the clock out of Python; wake Python
rarely.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from headrace.models.errors import ToolError, UserError
from headrace.sim.verilate import build_executable, compiler, keep_log

WAVE_FORMATS = {"vcd": ("--trace-vcd",), "fst": ("--trace-fst",)}


@dataclass(frozen=True, kw_only=True)
class Waves:
    """Record signals (in a build of its own) between two times, in the simulation's time precision (1 ps).

    The file's suffix is the format: ``.vcd``, or ``.fst`` (a tenth of the size; the compiler needs lz4's headers).
    """

    file: Path
    begin: int = 0
    end: int | None = None

    def __post_init__(self):
        if self.format not in WAVE_FORMATS:
            raise UserError(f"waves file '{self.file}': its suffix must be .vcd or .fst")

    @classmethod
    def of_cycles(cls, file: Path, first: int, count: int, *, period_ps: int) -> "Waves":
        """Of `count` clock cycles from cycle `first` on (0: the simulation's start, in reset)."""
        return cls(file=file, begin=first * period_ps, end=(first + count) * period_ps - 1)

    @property
    def format(self) -> str:
        return Path(self.file).suffix.removeprefix(".")


@dataclass(frozen=True)
class TestOutcome:
    """One cocotb test. `failure` is None where it passed, else its message."""

    __test__ = False  # not for pytest

    name: str
    failure: str | None
    wall_s: float


@dataclass(frozen=True)
class CosimResult:
    """Outcome of all tests of a module, the log, and the times of build (0 where it was cached) and run."""

    tests: tuple[TestOutcome, ...]
    log: str
    build_s: float
    run_s: float

    @property
    def failures(self) -> tuple[TestOutcome, ...]:
        return tuple(test for test in self.tests if test.failure is not None)

    def check(self) -> "CosimResult":
        """Itself where every test passed, else AssertionError with the failures and the end of the log."""
        if self.failures:
            lines = [f"{test.name}: {test.failure}" for test in self.failures]
            raise AssertionError("\n".join([*lines, "--- end of the log ---", *self.log.splitlines()[-40:]]))
        return self


def port_names(verilog: str, toplevel: str) -> list[str]:
    """Names of the ports in the header of module `toplevel`."""
    header = re.search(rf"^\s*module\s+{re.escape(toplevel)}\s*(?:#\s*\(.*?\)\s*)?\(([^;]*)\)\s*;", verilog, re.M | re.S)
    if header is None:
        raise ValueError(f"the Verilog has no module '{toplevel}' with a port list")
    text = re.sub(r"//.*|/\*.*?\*/|\(\*.*?\*\)|\[[^\]]*\]", " ", header.group(1))
    names = [re.findall(r"\w+", item)[-1] for item in text.split(",") if item.strip()]
    return names


def public_ports_vlt(ports: Sequence[str], toplevel: str) -> str:
    """Verilator configuration that makes these ports of `toplevel` visible to VPI, and nothing else."""
    lines = [f'public_flat_rw -module "{toplevel}" -var "{name}"' for name in ports]
    return "\n".join(["`verilator_config", *lines, ""])


def _has_header(name: str) -> bool:
    command = [*compiler().split(), "-E", "-x", "c++", "-"]
    return subprocess.run(command, input=f"#include <{name}>\n", text=True, capture_output=True).returncode == 0


def build(
    sources: Mapping[str, str],
    toplevel: str,
    *,
    waves: str | None = None,
    flags: Sequence[str] = (),
    optimise: str = "-O2",
) -> Path:
    """The simulation's executable, from the cache where it is there. `sources` as for `build_executable`.

    waves
        A wave format for a build that can record, else None.
    """
    import cocotb_tools.config

    if waves == "fst" and not _has_header("lz4.h"):
        raise UserError("waves in FST need lz4's headers: install them (Debian: apt install liblz4-dev), or name a .vcd file")

    ports = port_names("\n".join(sources.values()), toplevel)
    libraries = cocotb_tools.config.libs_dir
    all_flags = [
        "--vpi",
        "--timescale", "1ns/1ps",
        "-LDFLAGS", f"-Wl,-rpath,{libraries} -L{libraries} -lcocotbvpi_verilator",
        *(WAVE_FORMATS[waves] if waves else ()),
        *flags,
    ]  # fmt: skip
    main = (Path(__file__).parent / "cpp" / "cocotb_main.cpp").read_text()
    return build_executable(
        {"public.vlt": public_ports_vlt(ports, toplevel), **sources}, toplevel, main, all_flags, optimise=optimise
    )


def _environment(toplevel: str, test_module: str, results: Path, python_path: Sequence[Path], seed: int | None) -> dict[str, str]:
    """What libgpi reads: the Python to embed, the module to import, where the results go."""
    import cocotb_tools.config
    import find_libpython

    libpython = find_libpython.find_libpython()
    if libpython is None:
        raise UserError(
            "co-simulation embeds Python, but this Python has no shared library (libpython): use one built with "
            "--enable-shared (Debian: apt install libpython3-dev)"
        )
    environment = dict(os.environ)
    for name in ("COCOTB_TESTCASE", "COCOTB_TEST_FILTER", "WAVES", "GUI", "COCOTB_RANDOM_SEED"):
        environment.pop(name, None)
    environment |= {
        "GPI_USERS": f"{libpython};{cocotb_tools.config.pygpi_entry_point()}",
        "PYGPI_PYTHON_BIN": sys.executable,
        "PYTHONPATH": os.pathsep.join([*map(str, python_path), *filter(None, sys.path)]),
        "COCOTB_TOPLEVEL": toplevel,
        "COCOTB_TEST_MODULES": test_module,
        "TOPLEVEL_LANG": "verilog",
        "COCOTB_RESULTS_FILE": str(results),
        "COCOTB_TRUST_INERTIAL_WRITES": "1",
        "COCOTB_ANSI_OUTPUT": "0",
    }
    if seed is not None:
        environment["COCOTB_RANDOM_SEED"] = str(seed)
    return environment


def _outcomes(results: Path) -> tuple[TestOutcome, ...]:
    tests = []
    for case in ElementTree.parse(results).iter("testcase"):
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        message = None
        if failure is not None:
            message = failure.get("message") or failure.get("error_msg") or (failure.text or "").strip() or failure.tag
        tests.append(TestOutcome(case.get("name", "?"), message, float(case.get("time", "0"))))
    return tuple(tests)


def run(
    sources: Mapping[str, str],
    toplevel: str,
    test_module: str,
    *,
    plusargs: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python_path: Sequence[Path] = (),
    waves: Waves | None = None,
    seed: int | None = None,
    timeout_s: float | None = None,
    on_line: Callable[[str], None] | None = None,
    flags: Sequence[str] = (),
    optimise: str = "-O2",
) -> CosimResult:
    """Build `toplevel` (or take it from the cache) and run the cocotb tests of `test_module` on it, in a process of its own.

    sources
        File name to Verilog text; Amaranth components by `hw.emit.to_verilog`, RAMs by `hw.ram.ram_sources`.
    test_module
        Importable name; `python_path` folders are searched first.
    plusargs
        ``+name=value`` for the design. Cocotb sees them as well.
    env
        More environment for the test, the way to hand it arguments.
    on_line
        Called with every line of the log as it comes, for progress.

    Test failures are in the result (`CosimResult.check` raises them). ToolError where the simulation gave no
    results (its log is kept then): it crashed, could not import the module, or ran longer than `timeout_s`.
    """
    started = time.monotonic()
    executable = build(sources, toplevel, waves=waves.format if waves is not None else None, flags=flags, optimise=optimise)
    built = time.monotonic()
    command = [str(executable), *plusargs]
    if waves is not None:
        command += [f"+wave_file={Path(waves.file).absolute()}", f"+wave_from={waves.begin}"]
        command += [f"+wave_to={waves.end}"] if waves.end is not None else []
    with tempfile.TemporaryDirectory(prefix="headrace-cosim-") as name:
        results = Path(name) / "results.xml"
        environment = _environment(toplevel, test_module, results, python_path, seed) | dict(env or {})
        lines: deque[str] = deque(maxlen=100_000)
        timed_out = False
        with subprocess.Popen(
            command, cwd=name, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child:

            def stop():
                nonlocal timed_out
                timed_out = True
                child.kill()

            timer = Timer(timeout_s, stop) if timeout_s is not None else None
            if timer is not None:
                timer.start()
            try:
                for line in child.stdout:
                    lines.append(line.rstrip("\n"))
                    if on_line is not None:
                        on_line(lines[-1])
                status = child.wait()
            except BaseException:
                child.kill()
                raise
            finally:
                if timer is not None:
                    timer.cancel()
        ended = time.monotonic()
        tests = ()
        if results.is_file() and not timed_out:
            try:
                tests = _outcomes(results)
            except ElementTree.ParseError:
                tests = ()
    log = "\n".join(lines)
    why = None
    if timed_out:
        why = f"did not end within {timeout_s:g} s and was stopped"
    elif status < 0:
        why = f"was ended by {signal.Signals(-status).name}"
    elif not tests:
        why = f"ended with status {status} and ran no test of '{test_module}'"
    if why is not None:
        kept = keep_log(f"{toplevel}-simulation", log)
        raise ToolError(f"the simulation of '{toplevel}' {why}; its log is {kept}", "\n".join(list(lines)[-40:]))
    return CosimResult(tests, log, built - started, ended - built)
