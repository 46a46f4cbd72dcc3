"""The closed loop: one prompt through compiler, RTL and golden executor, compared bit for bit, with cycles, energy and bandwidth.

The RTL gets an image and the prompt's length; it feeds its own tokens back. Its tokens and logits are read from its memory after it has halted;
golden runs on the compressed model alone, never seeing image or program. Only then are the two compared.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.hw.machine import Machine
from headrace.hw.resources import machine_resources
from headrace.mapping.analytic import decode, prefill
from headrace.mapping.analytic_events import step_events
from headrace.mapping.compiler import compile_model
from headrace.mapping.plan import make_plan
from headrace.mapping.required import required_bytes, required_prefill_bytes, useful_macs
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.models.quantise import QuantisedModel
from headrace.sim.cosim import Cosim, run_image
from headrace.sim.cosim_run import Waves
from headrace.sim.cycle import CycleResult
from headrace.sim.cycle_model import run_phases
from headrace.sim.energy import Energy, energy, load_energy
from headrace.sim.estimate import utilisation
from headrace.sim.golden import GoldenExecutor
from headrace.sim.session import nan_named

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Both sides' results. `tokens`, `logits` are the RTL's; `golden_*` the golden executor's. logits: float32 [outputs, vocab]."""

    rtl: Cosim
    golden_tokens: np.ndarray
    golden_logits: np.ndarray

    @property
    def tokens_equal(self) -> bool:
        return np.array_equal(self.rtl.tokens, self.golden_tokens)

    @property
    def logits_equal(self) -> bool:
        """Bit for bit: NaN patterns and signs of zero count."""
        return np.array_equal(self.rtl.logits.view(np.uint32), self.golden_logits.view(np.uint32))


def golden_run(model: QuantisedModel, prompt: list[int], outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int64 [outputs], logits float32 [outputs, vocab]) of greedy decoding."""
    executor = GoldenExecutor(model)
    with nan_named(model.config):
        logits = [executor.prefill(prompt)]
        while len(logits) < outputs:
            logits.append(executor.step(int(np.argmax(logits[-1]))))
    stacked = np.stack(logits)
    return stacked.argmax(axis=1), stacked


def run_rtl(
    model: QuantisedModel, machine: Machine, prompt: list[int], outputs: int, *, seed: int = 0, context: int | None = None,
    waves: Waves | None = None, note: Note = lambda text: None, image_folder: Path | None = None,
) -> Cosim:
    """Compile and run on the RTL. `image_folder` keeps image and manifest.

    Raises UserError for what does not fit, CosimError where the machine latches an error.
    """
    note("compiling")
    image = compile_model(model, machine, prompt, outputs=outputs, context=context)
    with tempfile.TemporaryDirectory(prefix="headrace-loop-") as name:
        path = (image_folder or Path(name)) / "model.img"
        manifest = image.write(path)
        note("building the simulator (cached after the first time) and running the RTL")
        return run_image(path, manifest, machine, arguments=(len(prompt), outputs), outputs=outputs, seed=seed, waves=waves)


def prove(
    model: QuantisedModel, machine: Machine, prompt: list[int], outputs: int, *, note: Note = lambda text: None, **how
) -> Proof:
    """`run_rtl` (which takes `how`), then golden; neither sees the other."""
    rtl = run_rtl(model, machine, prompt, outputs, note=note, **how)
    note("running the golden executor")
    tokens, logits = golden_run(model, prompt, outputs)
    return Proof(rtl=rtl, golden_tokens=tokens, golden_logits=logits)


def cycle_run(
    config: DecoderConfig, bits: dict[str, int], machine: Machine, prompt: list[int], tokens: Sequence[int], context: int | None = None
) -> CycleResult:
    """The same program on the cycle simulator, which is given the tokens but nothing of the RTL's time."""
    plan = make_plan(config, machine, bits, context, len(tokens))
    return run_phases(plan, len(prompt), len(tokens), [*prompt, *(int(token) for token in tokens)])


def rtl_events(counters: dict[str, int]) -> dict[str, float]:
    """The RTL's counters under the names of `mapping.analytic_events`, as far as the hardware counts them."""
    return {
        "read_beats": sum(v for k, v in counters.items() if k.startswith("read_beats")),
        "write_beats": sum(v for k, v in counters.items() if k.startswith("write_beats")),
        "mac_slices": counters["mac_slices"],
        "vec_busy": counters["vec_active"],
        "instructions": sum(v for k, v in counters.items() if k.startswith("instructions_")),
    }


def report(
    proof: Proof, model: QuantisedModel, machine: Machine, prompt_text: str, prompt: list[int], text: str, *, context: int | None = None
) -> dict:
    """The document of `cosim` (design section 7, without stamp): cycles of the RTL beside those of the levels above it.

    context: that of the image, as for `run_rtl`.
    """
    config, scheme = model.config, model.scheme
    bits = {name: model.layers[0][name].bits for name in LINEAR_NAMES}
    marks = dict(proof.rtl.marks)
    outputs, length = len(proof.rtl.tokens), len(prompt)
    if sorted(marks) != list(range(outputs + 1)):
        raise UserError(f"the trace holds marks {sorted(marks)}; expected 0 to {outputs}")
    prefill_cycles = marks[1] - marks[0]
    ours = dict(cycle_run(config, bits, machine, prompt, proof.rtl.tokens, context).marks)
    earlier, last = np.arange(1, length), np.array([length])
    prefill_macs = float(useful_macs(config, last).sum())
    if length > 1:
        prefill_macs += float(useful_macs(config, earlier, lm_head=False).sum())
    document = {
        "model": config.name, "machine": machine.name, "scheme": scheme.name, "prompt": prompt_text, "text": text, "tokens": outputs,
        "token_ids": [int(t) for t in proof.rtl.tokens], "prompt_tokens": length,
        "rtl_tokens_equal": bool(proof.tokens_equal), "logits_equal": bool(proof.logits_equal),
        "prefill": {
            "cycles": {"rtl": prefill_cycles, "cycle": ours[1] - ours[0], "analytic": int(np.ceil(prefill(config, bits, machine, length).cycles))},
            "utilisation": utilisation(machine, prefill_cycles, prefill_macs, float(required_prefill_bytes(config, scheme, length))),
        },
        "decode": None,
        "sim_cycles_per_s": proof.rtl.sim_cycles_per_s, "build_s": proof.rtl.build_s, "start_s": proof.rtl.start_s,
        "kind": "simulated",
    }  # fmt: skip
    energy_ = run_energy(proof.rtl, config, bits, machine, length, outputs)
    document["energy"] = None
    if energy_ is not None:
        document["energy"] = {
            "total_j": energy_.total[1], "total_j_range": [energy_.total[0], energy_.total[2]], "energy_by": energy_.middle(),
            "energy_scope": "board", "of": "the whole run; events from the RTL's counters, buffer accesses from the analytic level",
        }  # fmt: skip
    if outputs > 1:
        document["decode"] = _decode(config, scheme, bits, machine, length, outputs, marks[outputs] - marks[1], ours[outputs] - ours[1], energy_, proof.rtl.cycles)
    return document


def _decode(config, scheme, bits, machine, length, outputs, cycles, our_cycles, energy_, all_cycles) -> dict:
    contexts = np.arange(length + 1, length + outputs)
    required = float(required_bytes(config, scheme, contexts).sum())
    used = utilisation(machine, cycles, float(useful_macs(config, contexts).sum()), required)
    steps = outputs - 1
    return {
        "steps": steps,
        "cycles": {"rtl": cycles, "cycle": our_cycles, "analytic": int(np.ceil(decode(config, bits, machine, length + 1, steps).cycles))},
        "hbm": {"bytes": int(required), "utilisation": used["bandwidth"], "peak_fraction": used["peak_fraction"]},
        "utilisation": used,
        "tokens_per_s": steps * machine.clock_hz / cycles,
        # Counters run over the whole program: a step's share is by cycles.
        "energy_j_per_token": None if energy_ is None else energy_.total[1] * cycles / all_cycles / steps,
        "energy_j_per_token_range": None if energy_ is None else [v * cycles / all_cycles / steps for v in (energy_.total[0], energy_.total[2])],
    }  # fmt: skip


def run_energy(rtl: Cosim, config: DecoderConfig, bits: dict[str, int], machine: Machine, length: int, outputs: int) -> Energy | None:
    """Energy of the run: events from the RTL's counters; buffer accesses, which it does not count, from the closed forms.

    None where the board has no energy table or the machine's LUTs are not known.
    """
    resources = machine_resources(machine)
    if machine.board not in list_configs("energy") or resources["lut"] is None or resources["ff"] is None:
        return None
    passes = [(np.arange(length, length + outputs), True), (np.arange(1, length), False)]
    events: dict[str, float] = {}
    for contexts, lm_head in passes:
        for name, value in step_events(config, bits, machine, contexts, lm_head=lm_head).items():
            events[name] = events.get(name, 0.0) + float(value.sum())
    return energy(events | rtl_events(rtl.counters), rtl.cycles, machine, resources, load_energy(machine.board), scope="board")
