"""Yosys from the PyPI package `pyosys`, one process per run.

A Yosys error ends the process that called it, and its log goes to the C standard output: both stay in a child.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_CHILD = """
import sys
from pyosys import libyosys
design = libyosys.Design()
for line in open("script.ys"):
    if line.strip():
        libyosys.run_pass(line.strip(), design)
"""


class YosysError(RuntimeError):
    """Yosys refused a command; the message ends with the last lines of its log."""


def run(script: Sequence[str], inputs: Mapping[str, str], outputs: Sequence[str] = ()) -> dict[str, str]:
    """Run the commands of `script` in a folder of `inputs` (file name to text); return the texts of `outputs`.

    The log of the run is returned as output ``"log"`` as well.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-yosys-") as name:
        folder = Path(name)
        for file, text in inputs.items():
            (folder / file).write_text(text)
        (folder / "script.ys").write_text("\n".join(script) + "\n")
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        if child.returncode:
            tail = "\n".join(child.stdout.splitlines()[-12:])
            raise YosysError(f"Yosys ended with status {child.returncode}:\n{tail}")
        return {file: (folder / file).read_text() for file in outputs} | {"log": child.stdout}
