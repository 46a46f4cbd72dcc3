"""Machines and GPUs side by side: the document of `headrace compare`."""

from headrace.hw.board import load_board, refuse_descriptive
from headrace.hw.machine import load_machine
from headrace.mapping.required import held_bytes
from headrace.models.compressed import scheme_of
from headrace.models.configfile import list_configs
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig, require_plain_llama
from headrace.sim.energy import load_energy
from headrace.sim.estimate import Workload, estimate
from headrace.sim.gpu import GpuChoice, break_even_batch, break_even_measured, gpu_rows, rows_left_out

DEFAULT_SCHEME = "w4a8kv8"


def compare(
    config: DecoderConfig, machines: list[str], gpus: list[GpuChoice], scheme_name: str | None, *, overrides: dict[str, list[str]],
    prefill: int, decode: int, batch: int, model: str = "",
) -> tuple[dict, list]:
    """(document without its stamp, everything that decided it). `overrides` as `configfile.split_overrides` gives them. model: its name or path.

    Machines run under `scheme_name`, else their own scheme; GPU bounds under `scheme_name`, else the first machine's, else w4a8kv8;
    a packed file has its own.
    """
    require_plain_llama(config, "`compare`")
    workload = Workload(prefill=prefill, decode=decode, batch=batch)
    refuse_descriptive(overrides["board"])
    used: list = [config.to_dict(), vars(workload)]
    rows, schemes = [], []
    for name in machines:
        machine = load_machine(name, overrides["machine"])
        board = load_board(machine.board, overrides["board"])
        scheme = scheme_of(model, scheme_name, machine.scheme, overrides["scheme"])
        table = load_energy(board.name) if board.name in list_configs("energy") else None
        document = estimate(config, scheme, machine, board, table, workload)
        rows.append(machine_row(document))
        schemes.append(scheme)
        used += [machine, board, scheme, table]
    scheme = schemes[0] if schemes else scheme_of(model, scheme_name, DEFAULT_SCHEME, overrides["scheme"])
    if workload.longest > config.max_positions:
        raise UserError(f"context = {workload.longest}; model {config.name} allows 1 to {config.max_positions}")
    machine_rows, left_out = list(rows), []
    held = held_bytes(config, None, prefill + decode, batch=batch)
    for choice in gpus:
        rows += gpu_rows(choice, config, scheme, prefill=prefill, decode=decode, batch=batch)
        left_out += rows_left_out(choice, scheme, held, batch)
        used += [choice.gpu, choice.stack, scheme]
    break_even = [
        {
            "machine": row["name"], "gpu": gpu.name,
            "tokens_per_s_batch": break_even_batch(gpu, config, row["tokens_per_s"], prefill=prefill, decode=decode),
            "energy_measured": break_even_measured(gpu, config.name, row["energy_j_per_token"]) if row["energy_j_per_token"] else None,
        }
        for row in machine_rows for gpu in dict((choice.gpu.name, choice.gpu) for choice in gpus).values()
    ]  # fmt: skip
    return {
        "model": config.name, "prefill": prefill, "decode": decode, "batch": batch, "rows": rows, "left_out": left_out, "break_even": break_even,
    }, used  # fmt: skip


def machine_row(document: dict) -> dict:
    """The row of an estimate's document."""
    decode = document["decode"]
    notes = [document["note"]] if document.get("note") else []
    if not document["memory"]["fits"]:
        notes.append(f"the image of {document['memory']['image_bytes'] / 1e9:.4g} GB does NOT fit the board's memory")
    board = document["board"]
    notes += [f"board {board['name']} lacks {row['check']}: {row['needs']:g} needed, {row['has']:g} there" for row in board["checks"] if row["ok"] is False]
    return {
        "name": document["machine"], "kind": document["kind"], "dtype": document["scheme"], "stack": document["level"],
        "tokens_per_s": decode["tokens_per_s"], "energy_j_per_token": decode["energy_j_per_token"],
        "energy_j_per_token_range": decode["energy_j_per_token_range"],
        "energy_scope": document["energy_scope"] if decode["energy_j_per_token"] is not None else None, "usd_per_mtok": None,
        "model": document["model"], "batch": document["batch"], "limit": decode["bound"], "src": "estimate of this tool",
        "note": "; ".join(notes), "fits": document["memory"]["fits"] and board["fits"],
    }  # fmt: skip
