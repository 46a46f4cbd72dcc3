"""Machines and GPUs side by side for any operator graph and its transforms: the document of `sim.compare` from `estimate_graph`.

A machine of version 1 reads the weights for every position; the roofline of a GPU reads them once for all positions of a step (a batch, a
verification), as `Work.decode_bytes` counts. Break-even points are not searched for: a transform may change the batch.
"""

from __future__ import annotations

import numpy as np

from headrace.hw.board import load_board, refuse_descriptive
from headrace.hw.machine import load_machine
from headrace.mapping.transforms import Work
from headrace.models.compressed import scheme_of
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError
from headrace.sim.compare import DEFAULT_SCHEME, machine_row
from headrace.sim.energy import load_energy
from headrace.sim.estimate import Workload
from headrace.sim.estimate_graph import check_fit, estimate_graph
from headrace.sim.gpu import GpuChoice, rows_left_out, rows_of_steps


def compare_graph(
    work: Work, applied: list[dict], machines: list[str], gpus: list[GpuChoice], scheme_name: str | None, *,
    overrides: dict[str, list[str]], prefill: int, decode: int, model: str = "",
) -> tuple[dict, list]:
    """As `compare.compare`; the batch is that of `work`. Raises UserError for an encoder, which has no decode."""
    graph = work.graph
    if graph.encoder:
        raise UserError(f"compare: model {graph.name} is an encoder ({graph.architecture}); allowed is a decoder, whose decode is compared")
    workload = Workload(prefill=prefill, decode=decode, batch=work.batch)
    refuse_descriptive(overrides["board"])
    used: list = [graph.name, [[op.kind, op.name, op.layer, op.shape] for op in graph.operators], applied, vars(workload)]
    rows, schemes = [], []
    for name in machines:
        machine = load_machine(name, overrides["machine"])
        board = load_board(machine.board, overrides["board"])
        scheme = scheme_of(model, scheme_name, machine.scheme, overrides["scheme"])
        table = load_energy(board.name) if board.name in list_configs("energy") else None
        rows.append(machine_row(estimate_graph(work, scheme, machine, board, table, workload, applied=applied)))
        schemes.append(scheme)
        used += [machine, board, scheme, table]
    scheme = schemes[0] if schemes else scheme_of(model, scheme_name, DEFAULT_SCHEME, overrides["scheme"])
    check_fit(work, scheme, workload)
    contexts = np.arange(prefill + 1, prefill + decode + 1)
    held = tuple(work.held_bytes(one, workload.longest) for one in (None, scheme))
    half, packed = work.decode_bytes(None, contexts), work.decode_bytes(scheme, contexts)
    left_out: list[dict] = []
    for choice in gpus:
        rows += rows_of_steps(choice, graph.name, scheme, half, packed, work.decode_macs(contexts), work.batch, held=held)
        left_out += rows_left_out(choice, scheme, held[0], work.batch)
        used += [choice.gpu, choice.stack, scheme]
    return {
        "model": graph.name, "prefill": prefill, "decode": decode, "batch": work.batch, "transforms": applied, "notes": list(graph.notes),
        "rows": rows, "left_out": left_out, "break_even": [],
    }, used  # fmt: skip
