"""The evaluator of `headrace sweep`: one point by the estimate."""

from collections.abc import Callable
from functools import lru_cache

from headrace.hw.board import load_board, refuse_descriptive
from headrace.hw.machine import load_machine
from headrace.mapping.sweep import Point, Sweep, points
from headrace.models.configfile import StrictModel, apply_overrides, list_configs, split_overrides, validate
from headrace.models.errors import UserError
from headrace.models.packed import is_packed
from headrace.models.registry import model_config
from headrace.models.scheme import load_scheme
from headrace.sim.energy import load_energy
from headrace.sim.estimate import Workload, estimate

RESULTS = (
    "used_scheme", "prefill_latency_s", "decode_latency_s", "tokens_per_s", "bound", "mac_utilisation", "bandwidth_utilisation",
    "energy_j_per_token", "energy_j_per_token_lo", "energy_j_per_token_hi", "energy_scope", "dsp", "lut", "ff", "bram", "uram",
    "image_bytes", "fits", "kind",
)  # fmt: skip

_model_config = lru_cache(maxsize=64)(model_config)


@lru_cache(maxsize=256)
def _load(load: Callable[[str], StrictModel], name: str):
    """A file is read once a process: reading YAML takes longer than the estimate."""
    return load(name)


def _changed(base: StrictModel, overrides: list[str]):
    if not overrides:
        return base
    source = f"{base.name} with {' '.join(overrides)}"
    return validate(type(base), apply_overrides(base.model_dump(), overrides, source=source), source=source)


@lru_cache(maxsize=64)
def _energy_table(board: str):
    return load_energy(board) if board in list_configs("energy") else None


def evaluate_point(point: Point) -> dict[str, object]:
    """The keys of `RESULTS`. Raises UserError for a machine that is not legal or a model that does not fit it."""
    groups = split_overrides(point.overrides)
    machine = _changed(_load(load_machine, point.machine), groups["machine"])
    board = _changed(_load(load_board, machine.board), groups["board"])
    scheme = _changed(_load(load_scheme, point.scheme or machine.scheme), groups["scheme"])
    workload = Workload(**point.workload.model_dump())
    document = estimate(_model_config(point.model), scheme, machine, board, _energy_table(board.name), workload)
    decode, resources = document["decode"], document["resources"]
    low, high = decode["energy_j_per_token_range"] or (None, None)
    values = (
        scheme.name, document["prefill"]["latency_s"], decode["latency_s"], decode["tokens_per_s"], decode["bound"],
        decode["utilisation"]["mac"], decode["utilisation"]["bandwidth"], decode["energy_j_per_token"], low, high,
        document["energy_scope"] if low is not None else None, *(resources[name] for name in ("dsp", "lut", "ff", "bram", "uram")),
        document["memory"]["image_bytes"], document["memory"]["fits"] and document["board"]["fits"], document["kind"],
    )  # fmt: skip
    return dict(zip(RESULTS, values, strict=True))


def check_names(sweep: Sweep) -> None:
    """Raise UserError for a model, scheme, machine or path that does not exist, before anything is evaluated.

    A value may still make a combination that is not legal: that point then says so in its ``error``.
    """
    for model in sweep.models:
        if is_packed(model):
            raise UserError(f"sweep {sweep.name}: models: {model} has a scheme of its own; allowed are models, and their schemes in the field 'schemes'")
        _model_config(model)
    first = next(points(sweep))
    groups = split_overrides(first.overrides)
    refuse_descriptive(groups["board"])
    for name in sweep.machines:
        machine = load_machine(name)
        apply_overrides(machine.model_dump(), groups["machine"], source=f"sweep {sweep.name}: grid")
        apply_overrides(load_board(machine.board).model_dump(), groups["board"], source=f"sweep {sweep.name}: grid")
        for scheme in sweep.schemes or (machine.scheme,):
            apply_overrides(load_scheme(scheme).model_dump(), groups["scheme"], source=f"sweep {sweep.name}: grid")
    if "scheme" in sweep.grid:
        raise UserError(f"sweep {sweep.name}: grid.scheme: schemes are given in the field 'schemes'")
