"""The ladder of fidelity held together: cycles of the same runs on the RTL, on the cycle simulator and in closed form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.hw.machine import Machine
from headrace.mapping.analytic import decode, prefill
from headrace.models.decoder import LINEAR_NAMES
from headrace.models.quantise import QuantisedModel
from headrace.sim.closed_loop import cycle_run, run_rtl


@dataclass(frozen=True, kw_only=True)
class Run:
    """A prompt (token ids) and a number of output tokens; `case` names it."""

    case: str
    model: QuantisedModel
    machine: Machine
    prompt: list[int]
    outputs: int


def _row(case: str, rtl: int, ours: int, analytic: float) -> dict:
    closed = int(np.ceil(analytic))
    return {"case": case, "rtl": rtl, "cycle": ours, "analytic": closed, "error": ours / rtl - 1, "analytic_error": closed / rtl - 1}


def _rows(run: Run, seed: int, note: Callable[[str], None]) -> Iterator[dict]:
    """One for the prefill, one for each decode step."""
    config, machine, length = run.model.config, run.machine, len(run.prompt)
    bits = {name: run.model.layers[0][name].bits for name in LINEAR_NAMES}
    rtl = run_rtl(run.model, machine, run.prompt, run.outputs, seed=seed, note=lambda text: note(f"{run.case}: {text}"))
    note(f"{run.case}: cycle simulator")
    ours = dict(cycle_run(config, bits, machine, run.prompt, rtl.tokens).marks)
    theirs = dict(rtl.marks)

    def cycles(at, first):
        return at[first + 1] - at[first]

    yield _row(f"{run.case}, prefill of {length}", cycles(theirs, 0), cycles(ours, 0), float(prefill(config, bits, machine, length).cycles))
    for k in range(1, run.outputs):
        closed = float(decode(config, bits, machine, length + k, 1).cycles)
        yield _row(f"{run.case}, step at {length + k}", cycles(theirs, k), cycles(ours, k), closed)


def ladder(runs: list[Run], *, seed: int = 0, note: Callable[[str], None] = lambda text: None) -> dict:
    """`rows`, mean and worst absolute error of the cycle level against the RTL, and of the closed forms."""
    rows = [row for run in runs for row in _rows(run, seed, note)]

    def summary(key):
        errors = np.abs([row[key] for row in rows])
        return float(errors.mean()), float(errors.max())

    (mean, worst), (analytic_mean, analytic_worst) = summary("error"), summary("analytic_error")
    return {"rows": rows, "mean": mean, "worst": worst, "analytic_mean": analytic_mean, "analytic_worst": analytic_worst, "kinds": {"rtl": "simulated", "cycle": "simulated", "analytic": "estimated"}}
