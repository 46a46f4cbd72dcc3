"""Yosys from the PyPI package `pyosys`, one process per run.

A Yosys error ends the process that called it, and its log goes to the C standard output: both stay in a child.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.models.errors import ToolError

_CHILD = """
import sys
from pyosys import libyosys
design = libyosys.Design()
for line in open("script.ys"):
    if line.strip():
        libyosys.run_pass(line.strip(), design)
"""


class YosysError(ToolError):
    """Yosys refused a command; the text ends with the last lines of its log."""


_PASS = re.compile(r"(\d+(?:\.\d+)?)\. Executing (.*)")


def run(
    script: Sequence[str], inputs: Mapping[str, str], outputs: Sequence[str] = (), *, note: Callable[[str], None] = lambda text: None
) -> dict[str, str]:
    """Run the commands of `script` in a folder of `inputs` (file name to text); return the texts of `outputs`.

    The log of the run is returned as output ``"log"`` as well. `note` is told of every pass that begins.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-yosys-") as name:
        folder = Path(name)
        for file, text in inputs.items():
            (folder / file).write_text(text)
        (folder / "script.ys").write_text("\n".join(script) + "\n")
        lines = []
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        ) as child:  # fmt: skip
            try:
                for line in child.stdout:
                    lines.append(line)
                    if begun := _PASS.match(line):
                        note(f"{begun[1]} {begun[2].rstrip()}")
            except BaseException:
                child.kill()
                raise
        if child.returncode:
            said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            raise YosysError(f"Yosys ended with status {child.returncode} and said: {said}", "".join(lines[-12:]))
        return {file: (folder / file).read_text() for file in outputs} | {"log": "".join(lines)}
