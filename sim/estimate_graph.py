"""Latency, energy and resources of any operator graph on a machine: the document of `sim.estimate`, from `mapping.analytic_graph`.

Every number is estimated. Where machines of version 1 cannot run the graph, `missing` and `note` say so: it is then the cost that the graph
would have with the machine's memory, array and SFU, its missing parts counted as `analytic_graph` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.hw.board import Board
from headrace.hw.machine import Machine
from headrace.hw.resources import machine_resources
from headrace.mapping.analytic import Phase, Step
from headrace.mapping.analytic_events import EVENTS
from headrace.mapping.analytic_graph import step
from headrace.mapping.graph_events import image_bytes, step_events
from headrace.mapping.transforms import Pass, Work
from headrace.models.errors import UserError
from headrace.models.decoder import SIZE_LIMITS
from headrace.models.operators import MATRIX_KINDS, Lengths
from headrace.models.scheme import Scheme, refuse_single_tensors
from headrace.sim.energy import Energy, EnergyTable
from headrace.sim.estimate import Workload, assert_bounds, board_fit, check_scheme, energy_if_known, utilisation

PASSES_AT_ONCE = 4096
"""A walk holds a time for every activation and pass."""


@dataclass
class _Tally:
    """Sums over passes."""

    cycles: float = 0.0
    events: dict[str, float] = field(default_factory=lambda: dict.fromkeys(EVENTS, 0.0))
    ops: dict[tuple[str, str], dict] = field(default_factory=dict)
    each: list = field(default_factory=list)
    """Cycles of the passes of each addition."""


def estimate_graph(
    work: Work, scheme: Scheme, machine: Machine, board: Board, table: EnergyTable | None, workload: Workload, *, applied=(),
    by_op: bool = False, scope: str = "board",
) -> dict:
    """`work` at `workload`, whose batch is that of `work`. applied: the document's list of transforms. UserError where a scheme or a length does
    not fit the model."""
    graph, graphs = work.graph, work.graphs
    check_scheme(scheme)
    check_fit(work, scheme, workload)
    room = machine.memory.ports * board.pseudo_channel_bytes or board.ddr_bytes
    held = sum(image_bytes(one, scheme, machine, workload.longest, work.batch) for one in graphs)
    bits = graph.bits_of_cache(scheme)
    resources = machine_resources(machine)
    document: dict = {
        "model": graph.name, "architecture": graph.architecture, "machine": machine.name, "scheme": scheme.name, "level": "analytic",
        "cost_model": "graph", "batch": work.batch, "kind": "estimated", "transforms": list(applied), "missing": list(work.missing),
        "memory": {
            "weight_bytes": sum(one.counted.weight_bytes(scheme) for one in graphs),
            "kv_bytes_per_token": _plain(graph.kv_bytes_per_token(bits)), "kv_cache_bytes": _plain(graph.kv_cache_bytes(workload.longest, bits)),
            "state_bytes": graph.state_bytes, "image_bytes": held, "available_bytes": room, "fits": held <= room,
        },
        "resources": resources, "board": board_fit(machine, board, resources), "energy_scope": scope,
    }  # fmt: skip
    run = _Run(work, scheme, machine, table, resources, scope, by_op)
    if graph.encoder:
        document |= run.encoder(workload.prefill)
    elif workload.context is not None:
        document |= run.one_step(workload.context)
    else:
        document |= run.phases(workload.prefill, workload.decode)
    if scope == "board" and document["energy_by"] is not None:
        part = document["step"] if workload.context is not None else document["total"]
        power = part["energy_j"] / part["latency_s"]
        fit = document["board"]
        fit["checks"].append({"check": "power_w", "needs": power, "has": board.tdp_w, "ok": power <= board.tdp_w})
        fit["fits"] = fit["fits"] and power <= board.tdp_w
    document["note"] = "; ".join(_notes(work, document))
    return document


def check_fit(work: Work, scheme: Scheme, workload: Workload) -> None:
    """UserError where the scheme's widths or the positions of a pass are not those of a graph of `work`, on a machine or a GPU."""
    refuse_single_tensors(scheme, "an operator graph")
    for graph in work.graphs:
        linears = {op.matrix.name.rsplit(".", 1)[-1] for op in graph.operators if op.kind in MATRIX_KINDS}
        for name in scheme.linear_bits:
            if name not in linears:
                raise UserError(f"scheme {scheme.name}: linear_bits names {name}; {graph.architecture} has {', '.join(sorted(linears))}")
        longest = workload.prefill if graph.encoder else workload.longest
        ahead = max((part.offset for part in work.decode_passes if part.graph is graph), default=0)  # of proposed tokens
        limit = graph.max_positions or SIZE_LIMITS["max_positions"]
        if longest + ahead > limit:
            reason = f" ({longest}, and {ahead} proposed tokens after it)" if ahead else ""
            raise UserError(f"context = {longest + ahead}{reason}; model {graph.name} allows 1 to {limit}")


def _notes(work: Work, document: dict) -> list[str]:
    notes = list(work.graph.notes)
    if document["missing"]:
        notes.append(f"no machine of version 1 can run this: it lacks {', '.join(document['missing'])}; this is an estimate of the graph")
    notes.append("limits of the machine's buffers and stripes are not checked here")
    if work.graph.encoder:
        notes.append("an encoder: one pass over the prompt, layer by layer, no decode; the machine reads a layer's weights for each position")
    if work.batch > 1:
        notes.append(f"each of the {work.batch} sequences is a pass of its own: weights are read per sequence, and a step takes {work.batch} passes")
    if any(op.tensors and op.tensors[0].experts > op.tensors[0].active for op in work.graph.operators if op.kind in MATRIX_KINDS):
        notes.append("experts are taken uniformly and independently; required bytes of a batch count the expected distinct ones")
    if work.draft is not None:
        k = work.draft.proposed
        notes.append(
            f"the machine takes one position a pass: a verification of {k + 1} positions is {k + 1} passes and reads the weights as often; "
            "required bytes count them once"
        )
    if work.exits:
        notes.append("a token that leaves early still has its keys and values of the later layers computed; the prefill takes all layers")
    if work.chunk is not None:
        notes.append("the machine takes one position a pass, so chunks save it no weights; required bytes count them once a chunk")
    return notes


@dataclass(frozen=True)
class _Run:
    work: Work
    scheme: Scheme
    machine: Machine
    table: EnergyTable | None
    resources: dict
    scope: str
    by_op: bool

    def _add(self, tally: _Tally, part: Pass, contexts: np.ndarray, *, logits: bool, prompt: bool = False) -> None:
        """The passes of `part` at `contexts`, of all sequences."""
        times, each = part.share * self.work.batch, []
        for first in range(0, len(contexts), PASSES_AT_ONCE):
            at = contexts[first : first + PASSES_AT_ONCE] + part.offset
            found = step(part.graph, self.scheme, self.machine, at, logits=logits, prompt=prompt)
            each.append(found.cycles * times)
            for name, value in step_events(part.graph, self.scheme, self.machine, at, logits=logits, prompt=prompt).items():
                tally.events[name] += times * float(value.sum())
            if self.by_op:
                self._add_ops(tally, part, found, at, logits)
        tally.each.append(np.concatenate(each))
        tally.cycles += float(tally.each[-1].sum())

    def _add_ops(self, tally: _Tally, part: Pass, at: Step, contexts: np.ndarray, logits: bool) -> None:
        times = part.share * self.work.batch
        one = Phase(at.cycles.sum(), at.cycles, (at,))
        for name, cost in one.ops().items():
            row = tally.ops.setdefault((part.label, name), {"count": 0.0, "by_bound": {}, "bytes": 0.0, "macs": 0.0})
            row["count"] += times * cost.count
            for bound, cycles in cost.by_bound.items():
                row["by_bound"][bound] = row["by_bound"].get(bound, 0.0) + times * cycles
        graph, lengths = part.graph, Lengths(context=contexts, logits=int(logits))
        bits = graph.bits_of_cache(self.scheme)
        for op in graph.operators:
            row = tally.ops.get((part.label, op.name))
            if row is not None:
                row["bytes"] += times * float(np.sum(np.broadcast_to(graph.op_bytes(op, self.scheme, bits, lengths), contexts.shape)))
                row["macs"] += times * float(np.sum(np.broadcast_to(op.macs(lengths), contexts.shape)))

    def _rows(self, phase_name: str, tally: _Tally) -> list[dict]:
        return [
            {
                "phase": phase_name, "name": label + name, "count": _plain(round(row["count"], 6)),
                "cycles": _whole(sum(row["by_bound"].values())), "bytes": int(row["bytes"]), "macs": int(row["macs"]),
                "bound": max(row["by_bound"], key=row["by_bound"].get, default="control"),
            }
            for (label, name), row in tally.ops.items()
        ]  # fmt: skip

    def _bound(self, parts: list[tuple[Pass, np.ndarray, bool]]) -> str:
        """What most cycles wait for, from the passes' operators."""
        totals: dict[str, float] = {}
        for part, contexts, logits in parts:
            at = step(part.graph, self.scheme, self.machine, contexts[-1:] + part.offset, logits=logits)
            for op in at.ops.values():
                for name, cycles in op.by_bound.items():
                    totals[name] = totals.get(name, 0.0) + part.share * len(contexts) * float(np.sum(cycles))
        return max(totals, key=totals.get)

    def _energy(self, tally: _Tally) -> Energy | None:
        return energy_if_known(tally.events, tally.cycles, self.machine, self.resources, self.table, self.scope)

    def _used(self, what: str, cycles: float, macs: float, required: float) -> dict[str, float]:
        """Utilisation; no result may beat the memory's peak or the array's."""
        assert_bounds(self.machine, what, cycles, required, macs)
        return utilisation(self.machine, cycles, macs, required)

    def _decode(self, contexts: np.ndarray) -> tuple[_Tally, np.ndarray]:
        """Sums over decode steps at `contexts`, and the cycles of each."""
        tally = _Tally()
        for part in self.work.decode_passes:
            self._add(tally, part, contexts, logits=True)
        return tally, sum(tally.each)

    def _prefill(self, tokens: int) -> _Tally:
        tally = _Tally()
        graphs = [(self.work.graph, "")] + ([(self.work.draft.graph, "draft.")] if self.work.draft else [])
        for graph, label in graphs:
            part = Pass(graph, label=label)
            if graph.encoder:
                self._add(tally, part, np.full(tokens, tokens), logits=True, prompt=True)
                continue
            if tokens > 1:
                self._add(tally, part, np.arange(1, tokens), logits=False, prompt=True)
            self._add(tally, part, np.array([tokens]), logits=True, prompt=True)
        return tally

    def one_step(self, context: int) -> dict:
        clock, contexts = self.machine.clock_hz, np.array([context])
        tally, _ = self._decode(contexts)
        joules = self._energy(tally)
        required, macs = float(self.work.decode_bytes(self.scheme, context)), float(self.work.decode_macs(context))
        part = {
            "context": context, "latency_s": tally.cycles / clock, "cycles": _whole(tally.cycles),
            "tokens_per_s": self.work.batch * clock / tally.cycles, "energy_j": joules.total[1] if joules else None,
            "utilisation": self._used("step", tally.cycles, macs, required), "bound": self._bound([(p, contexts, True) for p in self.work.decode_passes]),
        }  # fmt: skip
        document = {"step": part | self._speculation(), "energy_by": joules.middle() if joules else None}
        return document | ({"ops": self._rows("step", tally)} if self.by_op else {})

    def encoder(self, tokens: int) -> dict:
        tally = self._prefill(tokens)
        part, joules = self._prefill_part(tokens, tally)
        document = {
            "prefill": part, "decode": None, "energy_by": joules.middle() if joules else None,
            "total": {"latency_s": part["latency_s"], "energy_j": part["energy_j"],
                      "power_w": part["energy_j"] / part["latency_s"] if joules else None},
        }  # fmt: skip
        return document | ({"ops": self._rows("prefill", tally)} if self.by_op else {})

    def _prefill_part(self, tokens: int, tally: _Tally) -> tuple[dict, Energy | None]:
        work, graph = self.work, self.work.graph
        at = Lengths(tokens=tokens, context=tokens, logits=tokens if graph.encoder else 1, sequences=work.batch)
        macs = float(graph.macs(at)) + (float(work.draft.graph.macs(at)) if work.draft else 0.0)
        joules = self._energy(tally)
        passes = [(Pass(graph), np.arange(1, tokens + 1), graph.encoder or tokens == 1)]
        return {
            "tokens": tokens, "latency_s": tally.cycles / self.machine.clock_hz, "cycles": _whole(tally.cycles),
            "energy_j": joules.total[1] if joules else None,
            "utilisation": self._used("prefill", tally.cycles, macs, work.prefill_bytes(self.scheme, tokens)), "bound": self._bound(passes),
        }, joules  # fmt: skip

    def phases(self, prompt: int, steps: int) -> dict:
        work, clock = self.work, self.machine.clock_hz
        contexts = np.arange(prompt + 1, prompt + steps + 1)
        first = self._prefill(prompt)
        prefill, first_j = self._prefill_part(prompt, first)
        later, each = self._decode(contexts)
        later_j = self._energy(later)
        required = float(np.sum(work.decode_bytes(self.scheme, contexts)))
        macs, tokens = float(np.sum(work.decode_macs(contexts))), steps * work.batch
        per_token = [value / tokens for value in later_j.total] if later_j else None
        decode = {
            "steps": steps, "latency_s": later.cycles / clock, "cycles": _whole(later.cycles), "tokens_per_s": tokens * clock / later.cycles,
            "first_step_s": float(each[0]) / clock, "last_step_s": float(each[-1]) / clock, "energy_j": later_j.total[1] if later_j else None,
            "energy_j_per_token": per_token[1] if per_token else None,
            "energy_j_per_token_range": [per_token[0], per_token[2]] if per_token else None,
            "utilisation": self._used("decode", later.cycles, macs, required), "bound": self._bound([(p, contexts, True) for p in work.decode_passes]),
        }  # fmt: skip
        latency = (first.cycles + later.cycles) / clock
        joules = first_j.total[1] + later_j.total[1] if first_j and later_j else None
        document = {
            "prefill": prefill | self._chunks(prompt, first, float(each[0])), "decode": decode | self._speculation(),
            "total": {"latency_s": latency, "energy_j": joules, "power_w": joules / latency if joules else None},
            "energy_by": {name: first_j.by[name][1] + later_j.by[name][1] for name in first_j.by} if joules else None,
        }  # fmt: skip
        return document | ({"ops": self._rows("prefill", first) + self._rows("decode", later)} if self.by_op else {})

    def _chunks(self, prompt: int, tally: _Tally, decode_cycles: float) -> dict:
        """Of a chunked prefill: its first token comes after the interleaved decode steps too, and no decode step waits longer than a chunk."""
        if self.work.chunk is None:
            return {}
        clock, passes = self.machine.clock_hz, np.concatenate(tally.each[: 2 if prompt > 1 else 1])
        gaps, end = [], 0
        for size, _ in self.work.chunks(prompt):
            gaps.append(float(passes[end : end + size].sum()))
            end += size
        waited = (len(gaps) - 1) * self.work.interleaved * decode_cycles
        return {"chunks": {
            "chunk": self.work.chunk, "count": len(gaps), "interleaved_steps": (len(gaps) - 1) * self.work.interleaved,
            "first_token_s": (tally.cycles + waited) / clock, "longest_wait_of_a_step_s": max(gaps) / clock,
        }}  # fmt: skip

    def _speculation(self) -> dict:
        draft = self.work.draft
        if draft is None:
            return {}
        return {"speculative": {
            "draft": draft.graph.name, "proposed": draft.proposed, "acceptance": draft.acceptance,
            "tokens_per_verification": draft.tokens_per_verification,
        }}  # fmt: skip


def _plain(value: float) -> int | float:
    """A whole number as an integer."""
    return int(value) if float(value).is_integer() else float(value)


def _whole(cycles: float) -> int:
    return int(np.ceil(cycles))
