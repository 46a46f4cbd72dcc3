"""The demo's document: the closed loop on the embedded model, GPU rows and operators beside it."""

from collections.abc import Callable

from headrace.hw.board import load_board
from headrace.models.configfile import list_configs
from headrace.sim.energy import load_energy
from headrace.sim.estimate import Workload, estimate
from headrace.sim.gpu import gpu_rows, parse_gpu
from headrace.sim.loop_session import LoopSession

GPUS = ("A100-SXM-80", "V100-SXM2-32")
ROW_KEYS = ("gpu", "stack", "dtype", "tokens_per_s", "energy_j_per_token", "kind")


def demo_document(session: LoopSession, prompt: str, tokens: int, *, seed: int = 0, note: Callable[[str], None]) -> tuple[dict, list[dict]]:
    """(document without stamp and report, operators of prefill and decode). tokens: at least 2, so that there is a decode step."""
    ids = session.encode(prompt, tokens)
    document = session.run(prompt, ids, tokens, seed=seed, note=note)
    document["gpu"] = [
        {"gpu": row["name"]} | {key: row[key] for key in row if key != "name"}
        for name in GPUS
        for row in gpu_rows(parse_gpu(name), session.config, session.scheme, prefill=len(ids), decode=tokens - 1)
    ]
    board = load_board(session.machine.board)
    table = load_energy(board.name) if board.name in list_configs("energy") else None
    workload = Workload(prefill=len(ids), decode=tokens - 1)
    return document, estimate(session.config, session.scheme, session.machine, board, table, workload, by_op=True)["ops"]
