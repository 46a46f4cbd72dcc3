"""Latency, energy and resources of a workload on a machine, from sizes alone: the document that `headrace estimate` prints."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.hw.board import Board, check_fit
from headrace.hw.isa import INSTRUCTION_BYTES
from headrace.hw.machine import Machine
from headrace.hw.resources import machine_resources
from headrace.mapping.analytic import Phase, Step, decode, prefill, step
from headrace.mapping.analytic_events import step_events
from headrace.mapping.analytic_timing import MachineColumns
from headrace.mapping.plan import Plan, make_plan
from headrace.mapping.placement import LANES, linear_words, round_up
from headrace.mapping.required import macs_by_op, required_bytes, required_bytes_by_op, required_prefill_bytes, useful_macs
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.models.scheme import Scheme, refuse_cache_and_mask, refuse_single_tensors, weight_bytes
from headrace.sim.chrome_trace import span_times
from headrace.sim.energy import Energy, EnergyTable, energy

DELIVERABLE_BYTES = 4 << 20
"""The sequential read on all ports that defines the deliverable bandwidth."""

LEVELS = ("analytic", "cycle")


@dataclass(frozen=True)
class Workload:
    """A prefill and decode steps of `batch` sequences; with `context`, one decode step at that KV length instead."""

    prefill: int = 128
    decode: int = 128
    batch: int = 1
    context: int | None = None

    def __post_init__(self):
        for name in ("prefill", "decode", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}; allowed is 1 or more")
        if self.context is not None and self.context < 1:
            raise UserError(f"context = {self.context}; allowed is 1 or more")

    @property
    def longest(self) -> int:
        """KV length that the caches must hold."""
        return self.prefill + self.decode if self.context is None else self.context


def energy_if_known(
    events: dict[str, float], cycles: float, machine: Machine, resources: dict, table: EnergyTable | None, scope: str
) -> Energy | None:
    """None without a table of the board's energies, or where the machine's LUTs are not known."""
    return energy(events, cycles, machine, resources, table, scope=scope) if table is not None and resources["lut"] is not None else None


def assert_bounds(machine: Machine, what: str, cycles: float, required: float, macs: float) -> None:
    """No result may beat the memory's peak or the array's."""
    if not (cycles > 0 and cycles >= required / peak_bytes_per_cycle(machine) and cycles >= macs / machine.array.macs_per_cycle):
        raise AssertionError(f"{what}: {cycles} cycles for {required} bytes and {macs} MACs beat the peaks of {machine.name}")


def check_scheme(scheme: Scheme) -> dict[str, int]:
    """Code bits of each linear. Refuses what instruction set version 1 cannot run."""
    refuse_single_tensors(scheme, "a machine of version 1")
    for name in LINEAR_NAMES:
        if scheme.bits_of(name) not in (4, 8):
            raise UserError(f"scheme {scheme.name}: {scheme.bits_of(name)} bits for {name}; machines of version 1 decode 4 and 8 bits")
    if scheme.activation_bits != 8:
        raise UserError(f"scheme {scheme.name}: activation_bits = {scheme.activation_bits}; machines of version 1 allow 8")
    refuse_cache_and_mask(scheme, "a machine of version 1")
    if scheme.sparsity is not None and scheme.sparsity.n != scheme.sparsity.m:
        raise UserError(f"scheme {scheme.name}: sparsity.n = {scheme.sparsity.n}; machines of version 1 allow 16 (dense)")
    return {name: scheme.bits_of(name) for name in LINEAR_NAMES}


def image_bytes(plan: Plan) -> int:
    """Memory that the compiled image and its caches take, padding included; the program counted as a full instruction memory."""
    c, m = plan.config, plan.machine
    norm_words = -(-c.width * 4 // m.word_bytes)
    layer = 2 * norm_words + sum(linear_words(m, *c.linear_shape(name), plan.bits[name]) for name in LINEAR_NAMES)
    head = linear_words(m, c.vocab, c.width, 8)
    rope = plan.context * 2 * -(-c.head_dim // 2 * 4 // m.word_bytes)
    prompt = round_up(plan.context, m.scales_per_word) * 4 // m.word_bytes
    outputs = -(-plan.outputs * -(-c.vocab // LANES) // m.memory.ports) + -(-plan.outputs // m.memory.ports)
    words = c.layers * (layer + plan.cache.layer_words) + head * (1 if c.tie_embeddings else 2) + norm_words + rope + prompt + outputs
    program = m.buffers.imem_words * INSTRUCTION_BYTES
    return words * m.word_bytes + program


def deliverable_bytes_per_cycle(machine: Machine) -> float:
    """Of the DMA reading 4 MiB sequentially on all ports, refresh on."""
    m = MachineColumns.of(machine)
    words = DELIVERABLE_BYTES / machine.word_bytes
    return float(DELIVERABLE_BYTES / (words / m.words_per_cycle + m.load_cycles))


def peak_bytes_per_cycle(machine: Machine) -> float:
    return machine.word_bytes * machine.memory.beats_per_cycle


def utilisation(machine: Machine, cycles: float, macs: float, required: float) -> dict[str, float]:
    """`mac`, `bandwidth` (of the deliverable) and `peak_fraction`; raises AssertionError where a bound is broken."""
    result = {
        "mac": float(macs / (cycles * machine.array.macs_per_cycle)),
        "bandwidth": float(required / (cycles * deliverable_bytes_per_cycle(machine))),
        "peak_fraction": float(required / (cycles * peak_bytes_per_cycle(machine))),
    }
    for name, value in result.items():
        if not 0 <= value <= 1:
            raise AssertionError(f"utilisation.{name} = {value} of machine {machine.name} is outside 0..1")
    return result


def estimate(
    config: DecoderConfig, scheme: Scheme, machine: Machine, board: Board, table: EnergyTable | None, workload: Workload, *,
    by_op: bool = False, scope: str = "board", level: str = "analytic", note: Callable[[str], None] = lambda text: None,
) -> dict:
    """The document of design section 7 without its stamp. `table` None: no energies are known for the board and they are null.

    level "cycle": cycles are those of `sim.cycle`, which runs the compiled program; bounds, events and resources stay the closed forms'.
    note is told before the work starts that takes long.
    """
    if level not in LEVELS:
        raise UserError(f"level = {level}; allowed: {', '.join(LEVELS)}")
    if level == "cycle" and by_op:
        raise UserError("--by-op: operators are those of the analytic level; --level cycle has every instruction in --trace")
    if level == "cycle" and workload.context == 1:
        raise UserError("--context 1: a step of the cycle level follows another one; allowed is 2 or more")
    bits = check_scheme(scheme)
    room = machine.memory.ports * board.pseudo_channel_bytes or board.ddr_bytes
    try:
        plan = make_plan(config, machine, bits, workload.longest, workload.decode + 1 if workload.context is None else 1)
    except UserError as error:  # the buffers' limits; the memory's stands with them
        weights = weight_bytes(config, scheme)
        if weights > room:
            raise UserError(f"{error}; and its weights alone take {weights:,} bytes of memory, where {_reach(machine, board)} {room:,}") from None
        raise
    held = image_bytes(plan)
    resources = machine_resources(machine)
    batch = workload.batch
    # Each sequence of a batch has its own caches; weights are stored once.
    held += (batch - 1) * config.layers * plan.cache.layer_words * machine.word_bytes
    document = {
        "model": config.name, "machine": machine.name, "scheme": scheme.name, "level": level, "cost_model": "schedule",
        "batch": batch, "kind": "estimated" if level == "analytic" else "simulated",
        "memory": {
            "weight_bytes": weight_bytes(config, scheme), "kv_bytes_per_token": config.kv_bytes_per_token(scheme.kv_bits),
            "image_bytes": held, "available_bytes": room, "fits": held <= room,
        },
        "resources": resources,
        "board": board_fit(machine, board, resources),
        "energy_scope": scope,
    }  # fmt: skip
    if level == "cycle":
        passes = 1 if workload.context is not None else workload.prefill + workload.decode
        note(f"cycle level: {passes:,} passes of {config.name}")
    run = _Run(config, scheme, bits, machine, table, resources, batch, scope, plan if level == "cycle" else None)
    if workload.context is not None:
        document |= run.one_step(workload.context, by_op)
    else:
        document |= run.phases(workload.prefill, workload.decode, by_op)
    if scope == "board" and document["energy_by"] is not None:
        part = document["step"] if workload.context is not None else document["total"]
        power = part["energy_j"] / part["latency_s"]
        board_rows = document["board"]
        board_rows["checks"].append({"check": "power_w", "needs": power, "has": board.tdp_w, "ok": power <= board.tdp_w})
        board_rows["fits"] = board_rows["fits"] and power <= board.tdp_w
    if batch > 1:
        document["note"] = (
            f"each of the {batch} sequences is a pass of its own: weights are read per sequence, and a step takes {batch} passes"
        )
    return document


def _reach(machine: Machine, board: Board) -> str:
    """Whose memory it is, as the subject of a sentence."""
    return f"{machine.memory.ports} ports of board {board.name} reach" if board.pseudo_channel_bytes else f"board {board.name} has"


def board_fit(machine: Machine, board: Board, resources: dict) -> dict:
    """Can the board carry the machine? What the description decides (`check_fit`), and the resource model against what the shell leaves.

    `fits` False does not stop an estimate: it is of a machine that this board cannot hold.
    """
    rows = check_fit(machine, board)
    for check, has in (
        ("lut", board.lut - board.shell_lut), ("ff", board.ff - board.shell_ff),
        ("bram", board.bram36 - board.shell_bram36), ("uram", board.uram),
    ):  # fmt: skip
        needs = resources[check]
        rows.append({"check": check, "needs": needs, "has": has, "ok": None if needs is None else needs <= has})
    return {"name": board.name, "fits": all(row["ok"] is not False for row in rows), "checks": rows}


@dataclass(frozen=True)
class _Run:
    """One model on one machine: phases to parts of the document."""

    config: DecoderConfig
    scheme: Scheme
    bits: dict[str, int]
    machine: Machine
    table: EnergyTable | None
    resources: dict
    batch: int
    scope: str
    plan: Plan | None
    """Of the program to run at the cycle level; None at the analytic one."""

    def one_step(self, context: int, by_op: bool) -> dict:
        at = step(self.config, self.bits, self.machine, np.array([context]), lm_head=True)
        cycles = float(at.cycles[0] if self.plan is None else _step_cycles(self.plan, context)) * self.batch
        energy_ = self._energy(self._events(np.array([context]), lm_head=True), cycles)
        required = float(required_bytes(self.config, self.scheme, context, batch=self.batch))
        macs = float(useful_macs(self.config, context)) * self.batch
        assert_bounds(self.machine, "step", cycles, required, macs)
        part = {
            "context": context, "latency_s": cycles / self.machine.clock_hz, "cycles": _whole(cycles),
            "tokens_per_s": self.batch * self.machine.clock_hz / cycles, "energy_j": _middle(energy_),
            "utilisation": utilisation(self.machine, cycles, macs, required), "bound": at.bound(),
        }  # fmt: skip
        document = {"step": part, "energy_by": energy_.middle() if energy_ else None}
        if by_op:
            document["ops"] = self._ops("step", _single(at), [(np.array([context]), True)])
        return document

    def phases(self, prompt: int, steps: int, by_op: bool) -> dict:
        c, clock = self.config, self.machine.clock_hz
        first, later = prefill(c, self.bits, self.machine, prompt), decode(c, self.bits, self.machine, prompt + 1, steps)
        before, last = np.arange(1, prompt), np.array([prompt])
        contexts = np.arange(prompt + 1, prompt + steps + 1)

        first_cycles, passes = float(first.cycles), later.passes
        if self.plan is not None:
            first_cycles, passes = _phase_cycles(self.plan, prompt, steps)
        prefill_cycles = first_cycles * self.batch
        prefill_events = self._events(last, lm_head=True, prompt=True)
        prefill_macs = float(useful_macs(c, prompt))
        if prompt > 1:
            prefill_events = _sum(prefill_events, self._events(before, lm_head=False, prompt=True))
            prefill_macs += float(np.sum(useful_macs(c, before, lm_head=False)))
        prefill_energy = self._energy(prefill_events, prefill_cycles)
        prefill_required = float(required_prefill_bytes(c, self.scheme, prompt, batch=self.batch))

        decode_cycles = float(later.cycles if self.plan is None else passes.sum()) * self.batch
        decode_energy = self._energy(self._events(contexts, lm_head=True), decode_cycles)
        decode_required = float(np.sum(required_bytes(c, self.scheme, contexts, batch=self.batch)))
        decode_macs = float(np.sum(useful_macs(c, contexts))) * self.batch
        prefill_macs *= self.batch
        assert_bounds(self.machine, "prefill", prefill_cycles, prefill_required, prefill_macs)
        assert_bounds(self.machine, "decode", decode_cycles, decode_required, decode_macs)

        tokens = steps * self.batch
        latency_s = (prefill_cycles + decode_cycles) / clock
        per_token = [value / tokens for value in decode_energy.total] if decode_energy else None
        total_j = _middle(prefill_energy) + _middle(decode_energy) if decode_energy else None
        document = {
            "prefill": {
                "tokens": prompt, "latency_s": prefill_cycles / clock, "cycles": _whole(prefill_cycles), "energy_j": _middle(prefill_energy),
                "utilisation": utilisation(self.machine, prefill_cycles, prefill_macs, prefill_required), "bound": first.bound(),
            },
            "decode": {
                "steps": steps, "latency_s": decode_cycles / clock, "cycles": _whole(decode_cycles),
                "tokens_per_s": tokens * clock / decode_cycles, "first_step_s": float(passes[0]) * self.batch / clock,
                "last_step_s": float(passes[-1]) * self.batch / clock, "energy_j": _middle(decode_energy),
                "energy_j_per_token": per_token[1] if per_token else None,
                "energy_j_per_token_range": [per_token[0], per_token[2]] if per_token else None,
                "utilisation": utilisation(self.machine, decode_cycles, decode_macs, decode_required), "bound": later.bound(),
            },
            "total": {"latency_s": latency_s, "energy_j": total_j, "power_w": total_j / latency_s if total_j else None},
            "energy_by": _added(prefill_energy, decode_energy),
        }  # fmt: skip
        if by_op:
            parts = [(before, False), (last, True)] if prompt > 1 else [(last, True)]
            document["ops"] = self._ops("prefill", first, parts) + self._ops("decode", later, [(contexts, True)])
        return document

    def _events(self, contexts, **how) -> dict[str, float]:
        """Totals over passes at `contexts`, of all sequences."""
        events = step_events(self.config, self.bits, self.machine, contexts, **how)
        return {name: float(np.sum(value)) * self.batch for name, value in events.items()}

    def _energy(self, events: dict[str, float], cycles: float) -> Energy | None:
        return energy_if_known(events, cycles, self.machine, self.resources, self.table, self.scope)

    def _ops(self, name: str, phase: Phase, passes: list[tuple[np.ndarray, bool]]) -> list[dict]:
        """Operators of a phase. Bytes are those that its passes require, macs the useful ones; cycles add up to the phase's."""
        sizes: dict[str, float] = {}
        macs: dict[str, float] = {}
        for contexts, lm_head in passes:
            for into, values in (
                (sizes, required_bytes_by_op(self.config, self.scheme, contexts, lm_head=lm_head)),
                (macs, macs_by_op(self.config, contexts, lm_head=lm_head)),
            ):
                for op, value in values.items():
                    into[op] = into.get(op, 0.0) + float(np.sum(np.broadcast_to(value, contexts.shape)))
        return [
            {
                "phase": name, "name": op.name, "count": op.count * self.batch, "cycles": _whole(float(op.cycles) * self.batch),
                "bytes": int(sizes.get(op.name, 0)) * self.batch, "macs": int(macs.get(op.name, 0)) * self.batch, "bound": op.bound(),
            }
            for op in phase.ops().values()
        ]  # fmt: skip


def _step_cycles(plan: Plan, context: int) -> int:
    from headrace.sim.cycle_model import run_step, span  # imports numba, which the analytic level does without

    return span(run_step(plan, context), 0, 1)


def _phase_cycles(plan: Plan, prompt: int, steps: int) -> tuple[float, np.ndarray]:
    """(cycles of the prefill, of each decode step) at the cycle level."""
    from headrace.sim.cycle_model import run_phases, span

    result = run_phases(plan, prompt, steps + 1)
    return float(span(result, 0, 1)), np.array([span(result, k, k + 1) for k in range(1, steps + 1)], float)


def cycle_trace(config: DecoderConfig, bits: dict[str, int], machine: Machine, context: int) -> dict:
    """Every instruction of one decode step at `context` on the cycle simulator, as a Chrome trace."""
    from headrace.sim.cycle_model import chrome_trace, program_of, run_step, step_program

    plan = make_plan(config, machine, bits, context, 1)
    program = step_program(program_of(plan)[0], context)
    return chrome_trace(run_step(plan, context), program, machine, name=f"{config.name} on {machine.name}, step at context {context}")


def step_trace(config: DecoderConfig, bits: dict[str, int], machine: Machine, context: int) -> dict:
    """The critical path of one decode step at `context` as a Chrome trace: one span per operator and layer, in microseconds.

    Layers from the second on are alike, so the second stands for them and says how often.
    """
    at = step(config, bits, machine, context, lm_head=True)
    events = [
        {"name": name, "ph": "X", "pid": 0, "tid": 0, **span_times(float(start) / machine.clock_hz, float(end) / machine.clock_hz),
         "args": {"bound": bound, "repeats": repeats, "cycles": float(end - start)}}
        for name, start, end, bound, repeats in at.spans
    ]  # fmt: skip
    return {"traceEvents": events, "otherData": {"model": config.name, "machine": machine.name, "context": context, "level": "analytic"}}


def _single(at: Step) -> Phase:
    return Phase(at.cycles.sum(axis=-1), at.cycles, (at,))


def _whole(cycles: float) -> int:
    """The fluid model gives fractions of a cycle."""
    return int(np.ceil(cycles))


def _sum(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a[name] + b[name] for name in a}


def _middle(value: Energy | None) -> float | None:
    return value.total[1] if value else None


def _added(a: Energy | None, b: Energy | None) -> dict[str, float] | None:
    return {name: a.by[name][1] + b.by[name][1] for name in a.by} if a and b else None
