"""What `headrace rtl` writes: the machine's Verilog, its memory map, and a testbench that runs without this package.

The folder's Verilog is that of co-simulation and of synthesis, from the same functions. Expectations come from the golden
executor; the testbench reads them after the machine has halted.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from headrace.hw import axil
from headrace.hw.dsp48e2 import dsp_sources
from headrace.hw.machine import Machine
from headrace.hw.ram import read_verilog
from headrace.hw.sim_top import MODULE as SIMULATION
from headrace.hw.sim_top import sim_sources
from headrace.hw.top import control_parameters, memory_map, top_sources
from headrace.mapping.compiler import compile_model
from headrace.models.errors import UserError
from headrace.models.quantise import QuantisedModel
from headrace.sim.closed_loop import golden_run
from headrace.sim.cosim import memory_words_for

Note = Callable[[str], None]

README = """Machine {machine}
{rule}
*.v                    the machine, top module headrace_top; all that synthesis needs (define nothing; DSP48E2 is the vendor's)
memory_map.json        AXI4-Lite addresses of registers and 64-bit counters
machine.json           the description that all of this was made from
"""

README_TESTBENCH = """sim/                   for simulation only: model of DSP48E2, memory behind the ports, retirement trace, testbench
image.bin, image.json  memory image of {model}, {scheme}, and its manifest
expected_*.hex         tokens and logits (float32 bits) of the golden executor, read after the machine has halted
run.sh                 builds and runs the testbench with Verilator; prints PASS or FAIL

The run: {prompt_tokens} prompt tokens, {outputs} output tokens.
"""


SIMULATION_ONLY = (f"{SIMULATION}.v", "hr_sim_store.v", "hr_sim_trace.v", "hr_sim_dram.v", "hr_sim_clock.v", *dsp_sources())
"""Of `sim_sources`; the rest is `top_sources` for synthesis."""


def _description_files(machine: Machine) -> dict[str, str]:
    title = f"Machine {machine.name}"
    return {
        "memory_map.json": memory_map(machine) + "\n",
        "machine.json": json.dumps(machine.model_dump(mode="json"), indent=1) + "\n",
        "README.txt": README.format(machine=machine.name, rule="=" * len(title)),
    }


def machine_files(machine: Machine) -> dict[str, bytes]:
    """Path to content, without a testbench: the Verilog for synthesis, memory map, description."""
    files = top_sources(machine, simulation=False) | _description_files(machine)
    return {name: text.encode() for name, text in files.items()}


def _parameters(machine: Machine, manifest: Mapping, prompt_tokens: int, outputs: int) -> str:
    """Macros of the testbench."""
    ports = machine.memory.ports
    values = {
        "PROMPT_TOKENS": prompt_tokens,
        "OUTPUTS": outputs,
        "VOCAB": manifest["vocab"],
        "LOGIT_BEATS": manifest["logit_beats"],
        "TOKENS_BEAT": manifest["sections"]["tokens"]["base"] * ports,
        "LOGITS_BEAT": manifest["sections"]["logits"]["base"] * ports,
        "CYCLES": control_parameters(machine).counter_map()["cycles"],
    }
    names = ("ARGUMENTS", "HEADER_WORD", "CONTROL", "STATUS", "ERROR", "ERROR_PC", "START_BIT", "SNAPSHOT_BIT")
    values |= {name: getattr(axil, name) for name in names}
    lines = [f"`define HR_{name} {value}\n" for name, value in values.items()]
    if machine.memory.dram is not None:
        lines.append("`define HR_DRAM_CLOCK\n")
    return "".join(lines)


def _hex_words(values: np.ndarray) -> bytes:
    """`$readmemh` text, one 32-bit word a line."""
    return "".join(f"{int(value):08x}\n" for value in values.reshape(-1)).encode()


def package_files(
    machine: Machine, model: QuantisedModel, prompt: list[int], outputs: int, note: Note = lambda text: None
) -> dict[str, bytes]:
    """Path to content of the whole folder, byte for byte the same for the same input."""
    note("compiling the image")
    image = compile_model(model, machine, prompt, outputs=outputs)
    with tempfile.TemporaryDirectory(prefix="headrace-rtl-") as name:
        manifest = image.write(Path(name) / "image.bin")
        files = {file: (Path(name) / file).read_bytes() for file in ("image.bin", "image.json")}
    note("running the golden executor")
    tokens, logits = golden_run(model, prompt, outputs)
    if not np.isfinite(logits).all():
        raise UserError(f"model {model.config.name}: its logits are not finite, and the machine would stop with an error; choose another prompt")
    note("emitting the Verilog")
    sources = sim_sources(machine, memory_words=memory_words_for(manifest["total_words"], machine.word_bytes))
    texts = {f"sim/{file}" if file in SIMULATION_ONLY else file: text for file, text in sources.items()}
    texts |= {
        "sim/hr_tb.v": read_verilog("hr_tb.v"),
        "sim/hr_tb_parameters.vh": _parameters(machine, manifest, len(prompt), outputs),
        "run.sh": read_verilog("hr_tb_run.sh"),
    } | _description_files(machine)
    texts["README.txt"] += README_TESTBENCH.format(
        model=model.config.name, scheme=model.scheme.name, prompt_tokens=len(prompt), outputs=outputs
    )
    files |= {file: text.encode() for file, text in texts.items()}
    files["expected_tokens.hex"] = _hex_words(tokens.astype(np.uint32))
    files["expected_logits.hex"] = _hex_words(np.ascontiguousarray(logits, np.float32).view(np.uint32))
    return files


def check_target(target: Path, force: bool) -> None:
    """UserError where `target` must not be replaced."""
    if target.exists() and not target.is_dir():
        raise UserError(f"-o {target}: is a file; allowed is a new or an empty folder")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise UserError(f"-o {target}: the folder is not empty; allowed is a new or an empty folder, or --force to replace it")
    if target.is_dir() and any(target.iterdir()) and not (target / "machine.json").is_file():
        raise UserError(f"-o {target}: --force replaces only a folder that this command wrote, and this one holds no machine.json")
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"-o {target}: nothing can be written into {above}")


def write_folder(target: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write `files` into `target`, whole or not at all: made beside it, then renamed."""
    check_target(target, force)
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fresh = work / "new"
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if name.endswith(".sh"):
                path.chmod(0o755)
        if target.exists():
            os.rename(target, work / "old")
        try:
            os.rename(fresh, target)
        except OSError:
            if (work / "old").exists():
                os.rename(work / "old", target)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
