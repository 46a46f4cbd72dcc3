"""L0: the cycles of the compiled schedule in closed form, from sizes, code widths and machine alone.

The schedule is that of `program.generate`: one pass per position, in which LD, MV, VEC and ST overlap as their tokens let them. Here each
operator is one event in that order: it starts when what it reads is there and its unit is free. Vector programs take `sfu_cycles`; the
weight stream is the fluid of `analytic_flow`; latencies are those of `analytic_timing`. Two layers are evaluated, the first (nothing
prefetched) and the second, which the others repeat. Everything broadcasts over arrays: machines along one axis, contexts along another.

An operator's `cycles` are what it adds to the critical path: by how much its end lies past every end before it. So they sum to the step.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from headrace.hw.isa import Op, Program
from headrace.hw.machine import BLOCK, LANES, Machine
from headrace.hw.sfu_timing import sfu_cycles
from headrace.mapping.analytic_flow import WeightFlow
from headrace.mapping.analytic_timing import (
    BARRIER_CYCLES, BRANCH_TAKEN_CYCLES, DISPATCH_CYCLES, MV_FRONT_CYCLES, MV_START_CYCLES, RAW_FIFO_CYCLES, START_CYCLES, SYS_CYCLES,
    SYS_DEFAULT_CYCLES, TOKEN_CYCLES, MachineColumns,
)  # fmt: skip
from headrace.mapping.placement import LOGIT_ROWS, MAX_REPS, SILU_ROWS, slices
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig

BOUNDS = ("memory", "compute", "sfu", "issue", "control")

# SYS instructions of the program's straight parts; a test counts them in a compiled program.
POSITION_ALU, POSITION_MUL, POSITION_UNITS = 28, 10, 4
"""From the token to the layer loop: ALU instructions, MULs, instructions for units."""
PROMPT_ALU = 3
"""Beside LDV and RDV, where the token comes from the prompt."""
LOOP_NOPS = 4
"""Seeds before, and drains after, the layer loop."""
HEAD_ISSUE_CYCLES = 2 * DISPATCH_CYCLES + SYS_DEFAULT_CYCLES
"""LDW, MV and a register per attention head."""


@dataclass
class OpCost:
    """One operator of a step, over all layers. Arrays broadcast."""

    name: str
    count: int
    cycles: np.ndarray | float = 0.0
    by_bound: dict[str, np.ndarray | float] = field(default_factory=dict)

    def add(self, cycles, bound: str) -> None:
        self.cycles = self.cycles + cycles
        self.by_bound[bound] = self.by_bound.get(bound, 0.0) + cycles

    def bound(self) -> str:
        """What most of its cycles (summed over the arrays) wait for."""
        return max(self.by_bound, key=lambda name: float(np.sum(self.by_bound[name])), default="control")


@dataclass(frozen=True)
class Step:
    """Cycles of a pass, operator by operator."""

    cycles: np.ndarray
    ops: dict[str, OpCost]
    spans: list[tuple]
    """(operator, start, end, bound, repetitions) along the critical path: first layer, then the second for all others."""

    def bound(self) -> str:
        totals = {name: sum(float(np.sum(op.by_bound.get(name, 0.0))) for op in self.ops.values()) for name in BOUNDS}
        return max(totals, key=totals.get)


class _Timeline:
    """Critical path so far, and what each operator added to it."""

    def __init__(self, record: bool = True):
        self.record = record
        self.now: np.ndarray | float = 0.0
        self.ops: dict[str, OpCost] = {}
        self.spans: list[tuple] = []
        self.scale = 1  # repetitions that what is recorded stands for

    def end(self, name: str, time, bound: str, where=None) -> None:
        """`name` ends at `time`; where `where` holds the memory decided, else `bound`."""
        later = np.maximum(self.now, time)
        if not self.record:
            self.now = later
            return
        added = (later - self.now) * self.scale
        op = self.ops.setdefault(name, OpCost(name, 0))
        if where is None:
            op.add(added, bound)
        else:
            op.add(np.where(where, added, 0.0), "memory")
            op.add(np.where(where, 0.0, added), bound)
            bound = "memory" if np.all(where) else bound
        if np.any(added):
            self.spans.append((name, self.now, later, bound, self.scale))
        self.now = later


@lru_cache(maxsize=None)
def _sfu(program: Program, n: int, reps: int) -> int:
    return sfu_cycles(int(program), n, reps)


def vec_cycles(program: Program, n, reps: int = 1, per_command: int = MAX_REPS):
    """Of all commands that `reps` repetitions are split into; n is a number or an array."""
    n = np.asarray(n)
    if n.size > 1 and n.min() == n.max():
        n = n.min()
    if n.ndim:
        values, place = np.unique(n, return_inverse=True)
        return np.array([vec_cycles(program, int(v), reps, per_command) for v in values], float)[place].reshape(np.shape(n))
    full, rest = divmod(reps, per_command)
    return full * _sfu(program, int(n), per_command) + (_sfu(program, int(n), rest) if rest else 0)


def _ceil(a, b):
    return -(-a // b)


@dataclass(frozen=True)
class LinearStream:
    """Words and array cycles of one linear on a machine."""

    words: np.ndarray
    cycles: np.ndarray
    stripes: np.ndarray


def linear_stream(m: MachineColumns, outputs: int, inputs: int, bits: int) -> LinearStream:
    """Rows padded to whole scale words; a stripe takes a cycle a word, or the scale unit's time if that is longer."""
    scale_words = _ceil(outputs, m.scales_per_word)
    stripes = scale_words * m.stripes_per_scale_word
    k = slices(inputs)
    meta = _ceil(k, 2 * m.meta_groups_per_word) if bits < 8 else 0
    per_stripe = k * m.slice_words(bits) + meta
    words = scale_words + stripes * per_stripe
    return LinearStream(words, np.maximum(words, stripes * m.results_cycles), stripes)


@dataclass(frozen=True)
class CacheStream:
    """Words and array cycles of one head's keys and values, and words of one KV head's value scales, at context T."""

    key_words: np.ndarray
    key_cycles: np.ndarray
    value_words: np.ndarray
    value_cycles: np.ndarray
    scale_words: np.ndarray


def cache_stream(config: DecoderConfig, m: MachineColumns, context) -> CacheStream:
    word8, rows = m.slice_words(8), m.stripe_rows
    stripes, scale_words = _ceil(context, rows), _ceil(context, m.scales_per_word)
    key_words = stripes * (config.head_dim // BLOCK) * word8 + scale_words
    value_stripes = config.head_dim // rows
    value_words = value_stripes * _ceil(context, BLOCK) * word8
    front = MV_FRONT_CYCLES
    return CacheStream(
        key_words, np.maximum(np.maximum(key_words, stripes * m.results_cycles), front),
        value_words, np.maximum(np.maximum(value_words, value_stripes * m.results_cycles), front), scale_words,
    )  # fmt: skip


def step(config: DecoderConfig, bits: dict[str, int], machine: Machine | MachineColumns, context, *, lm_head: bool,
         prompt: bool = False, record: bool = True) -> Step:  # fmt: skip
    """One pass at KV length `context` (the new token included).

    bits: code width of each linear. lm_head: logits and the next token are computed (always in decode; in the prefill for the last
    position). prompt: the token is fetched from the prompt. record: say what each operator adds; without it only the cycles.
    """
    m = MachineColumns.of(machine) if isinstance(machine, Machine) else machine
    context = np.asarray(context)
    t = _Timeline(record)
    flow = WeightFlow(m)
    _embedding(config, m, t, flow, prompt)
    layer = _Layer(config, bits, m, context, t, flow)
    layer.run()
    if config.layers > 1:
        first = t.now
        t.scale = config.layers - 1
        layer.run()
        period = t.now - first
        t.scale = 1
        t.now = first + period * (config.layers - 1)
    _drain(t, "control", LOOP_NOPS * DISPATCH_CYCLES)
    if lm_head:
        _lm_head(config, m, t)
    else:
        t.end("control", t.now + BRANCH_TAKEN_CYCLES, "control")
    _next_position(t)
    for name, op in t.ops.items():
        op.count = config.layers if name in LAYER_OPS else 1
    return Step(np.asarray(t.now, float), t.ops, t.spans)


def step_cycles(config: DecoderConfig, bits: dict[str, int], machine: Machine | MachineColumns, context, *, lm_head: bool = True,
                prompt: bool = False) -> np.ndarray:  # fmt: skip
    """Cycles of one pass; see `step`."""
    return step(config, bits, machine, context, lm_head=lm_head, prompt=prompt, record=False).cycles


@dataclass(frozen=True)
class Phase:
    """Sums over the passes of a phase, and its passes' cycles [machines, passes] or [passes]."""

    cycles: np.ndarray
    passes: np.ndarray
    steps: tuple[Step, ...]

    def ops(self) -> dict[str, OpCost]:
        """Operators summed over passes (one machine)."""
        total: dict[str, OpCost] = {}
        for part in self.steps:
            passes = part.cycles.size
            for name, op in part.ops.items():
                into = total.setdefault(name, OpCost(name, 0))
                into.count += op.count * passes
                for bound, cycles in op.by_bound.items():
                    into.add(float(np.sum(np.broadcast_to(cycles, part.cycles.shape))), bound)
        return total

    def bound(self) -> str:
        totals = dict.fromkeys(BOUNDS, 0.0)
        for op in self.ops().values():
            for name, cycles in op.by_bound.items():
                totals[name] += cycles
        return max(totals, key=totals.get)


def prefill(config: DecoderConfig, bits: dict[str, int], machine: Machine | MachineColumns, tokens: int) -> Phase:
    """`tokens` passes at contexts 1 .. tokens; the LM head runs in the last (instruction set version 1 has no wider prefill)."""
    parts = []
    if tokens > 1:
        parts.append(step(config, bits, machine, np.arange(1, tokens), lm_head=False, prompt=True))
    parts.append(step(config, bits, machine, np.array([tokens]), lm_head=True, prompt=True))
    return _phase(parts)


def decode(config: DecoderConfig, bits: dict[str, int], machine: Machine | MachineColumns, first: int, steps: int) -> Phase:
    """`steps` steps at contexts first .. first + steps - 1."""
    return _phase([step(config, bits, machine, np.arange(first, first + steps), lm_head=True)])


def _phase(parts: list[Step]) -> Phase:
    passes = np.concatenate([np.atleast_1d(part.cycles) for part in parts], axis=-1)
    return Phase(passes.sum(axis=-1), passes, tuple(parts))


LAYER_OPS = (
    "attn_norm", "quantise_attn_norm", "q", "k", "v", "rope", "quantise_qkv", "kv_append", "scores", "softmax", "values",
    "quantise_attn", "o", "attn_add", "mlp_norm", "quantise_mlp_norm", "up", "gate", "silu_mul", "quantise_ffn", "down", "mlp_add",
)


class _Layer:
    """One layer of the schedule; state that crosses layers is the timeline, the weight flow and the two units' times."""

    def __init__(self, config: DecoderConfig, bits: dict[str, int], m: MachineColumns, context, t: _Timeline, flow: WeightFlow):
        self.config, self.m, self.t, self.flow, self.context = config, m, t, flow, context
        self.linear = {name: linear_stream(m, *config.linear_shape(name), bits[name]) for name in LINEAR_NAMES}
        self.cache = cache_stream(config, m, context)
        kv, hd = config.kv_heads, config.head_dim
        scales = m.store_cycles(kv)
        self.store_keys = m.store_cycles(kv * hd // BLOCK) + scales  # STK and STS
        self.store_values = m.store_cycles(kv * hd // 2) + scales + TOKEN_CYCLES  # STT (two channels an item) and STS
        flow.loaded, flow.taken = t.now, t.now
        flow.hold(t.now + LOOP_NOPS * DISPATCH_CYCLES + START_CYCLES)
        self.x_ready = t.now  # residual stream complete
        self.vec_free = t.now

    def vec(self, name: str, ready, cycles):
        """A VEC operator: starts when VEC is free and what it reads is there."""
        self.vec_free = np.maximum(self.vec_free, ready) + cycles
        self.t.end(name, self.vec_free, "sfu")
        return self.vec_free

    def mv(self, name: str, words, cycles, ready, ahead=None, bound: str = "compute"):
        """An MV operator; returns when its results are visible to other queues."""
        taken, memory = self.flow.multiply(words, cycles, ready, ahead)
        done = taken + self.m.mv_tail_cycles
        self.t.end(name, done, bound, memory)
        return done + TOKEN_CYCLES

    def weights(self, name: str, ready):
        stream = self.linear[name]
        return self.mv(name, stream.words, stream.cycles, ready)

    def norm(self, name: str, ready):
        """rmsnorm and quantise; returns when MV can take its first word."""
        width = self.config.width
        self.vec(name, ready, vec_cycles(Program.RMSNORM, width))
        done = self.vec(f"quantise_{name}", ready, vec_cycles(Program.QUANT, width))
        return done + TOKEN_CYCLES + MV_START_CYCLES

    def quantise(self, name: str, n: int, ready):
        return self.vec(name, ready, vec_cycles(Program.QUANT, n)) + TOKEN_CYCLES + MV_START_CYCLES

    def run(self) -> None:
        self.attention()
        self.mlp()

    def attention(self) -> None:
        c, m, t = self.config, self.m, self.t
        heads, kv, hd = c.heads, c.kv_heads, c.head_dim
        norm_words = _ceil(c.width * 4, m.word_bytes)
        norms = self.flow.vector(2 * norm_words) + TOKEN_CYCLES
        t.end("attn_norm", np.where(norms > self.x_ready, norms, t.now), "memory")
        ready = self.norm("attn_norm", np.maximum(self.x_ready, norms))
        q = self.weights("q", ready)
        k = self.weights("k", ready)
        v = self.weights("v", ready)
        self.vec("rope", q, vec_cycles(Program.ROPE, hd // 2, heads))
        self.vec("rope", k, vec_cycles(Program.ROPE, hd // 2, kv))
        k_done = self.vec("quantise_qkv", k, vec_cycles(Program.QUANT, hd, kv)) + TOKEN_CYCLES
        v_done = self.vec("quantise_qkv", v, vec_cycles(Program.QUANT, hd, kv)) + TOKEN_CYCLES
        q_done = self.vec("quantise_qkv", v, vec_cycles(Program.QUANT, hd, heads)) + TOKEN_CYCLES + MV_START_CYCLES

        # ST: keys, their scales, values, their scales; then LD may read the cache.
        stored = np.maximum(k_done + self.store_keys, v_done) + self.store_values
        self.flow.hold(stored)
        scales = self.flow.vector(kv * self.cache.scale_words) + TOKEN_CYCLES

        cache = self.cache
        t.end("kv_append", np.where(scales > q_done, scales, t.now), "memory")
        front = np.maximum(MV_FRONT_CYCLES, HEAD_ISSUE_CYCLES)
        issue = "issue" if np.all(cache.key_words < front) else "compute"
        scores = self.mv("scores", heads * cache.key_words, heads * cache.key_cycles, q_done, bound=issue)
        group = heads // kv
        p = self.vec("softmax", np.maximum(scores, scales), vec_cycles(Program.SOFTMAX, self.context, heads, MAX_REPS // group * group))
        # The sequencer stands at the first MV that its queue cannot hold, and the loads behind it wait too.
        ahead = np.minimum(heads, m.queue_depth + 1) * cache.value_words
        attn = self.mv("values", heads * cache.value_words, heads * cache.value_cycles, p + TOKEN_CYCLES + MV_START_CYCLES, ahead)
        o = self.weights("o", self.quantise("quantise_attn", heads * hd, attn))
        self.x_ready = self.vec("attn_add", o, vec_cycles(Program.ADD, c.width))

    def mlp(self) -> None:
        c = self.config
        ready = self.norm("mlp_norm", self.x_ready)
        up = self.weights("up", ready)
        before = self.flow.taken
        gate = self.weights("gate", before)
        # The gate comes in parts of SILU_ROWS, and SILU_MUL of one part runs beside the next: it ends after the last part's arrival,
        # or when VEC has worked through all parts from the first on.
        part = _ceil(SILU_ROWS, self.m.scales_per_word) * self.m.scales_per_word
        parts = np.maximum(1, _ceil(c.ffn, part))
        first = np.minimum(part, c.ffn)
        last = c.ffn - (parts - 1) * part
        silu, silu_last = _silu(first), _silu(last)
        first_gate = gate - (self.flow.taken - before) * (1 - first / c.ffn)
        done = np.maximum(np.maximum(first_gate, up) + (parts - 1) * silu + silu_last, gate + silu_last)
        self.vec_free = np.maximum(self.vec_free, done)
        self.t.end("silu_mul", self.vec_free, "sfu")
        down = self.weights("down", self.quantise("quantise_ffn", c.ffn, self.vec_free))
        self.x_ready = self.vec("mlp_add", down, vec_cycles(Program.ADD, c.width))


def _silu(n):
    return vec_cycles(Program.SILU_MUL, n)


def _embedding(c: DecoderConfig, m: MachineColumns, t: _Timeline, flow: WeightFlow, prompt: bool) -> None:
    """From the start of a position to the layer loop: token, embedding row, RoPE tables, registers."""
    alu = SYS_DEFAULT_CYCLES
    now = alu + BARRIER_CYCLES + BRANCH_TAKEN_CYCLES + (0 if prompt else alu)
    if prompt:
        flow.hold(now + alu + DISPATCH_CYCLES + START_CYCLES)
        ids = flow.vector(1) + TOKEN_CYCLES
        now = np.maximum(ids, now + PROMPT_ALU * alu) + SYS_CYCLES[Op.RDV] + BARRIER_CYCLES
    t.end("control", now, "control")
    registers = POSITION_ALU * alu + POSITION_MUL * SYS_CYCLES[Op.MUL] + POSITION_UNITS * DISPATCH_CYCLES
    flow.loaded = now
    flow.hold(now + 2 * alu + SYS_CYCLES[Op.MUL] + DISPATCH_CYCLES + START_CYCLES)
    flow.vector(1)
    flow.hold(now + 8 * alu + 2 * SYS_CYCLES[Op.MUL] + 2 * DISPATCH_CYCLES + START_CYCLES)
    codes = flow.gather(slices(c.width)) + TOKEN_CYCLES
    t.end("embedding", codes, "memory")
    x = codes + vec_cycles(Program.DEQUANT, c.width)
    t.end("embedding", x, "sfu")
    tables = flow.vector(2 * _ceil(c.head_dim // 2 * 4, m.word_bytes))
    t.end("embedding", tables, "memory")
    t.end("control", now + registers, "control")
    _drain(t, "control", 0)


def _drain(t: _Timeline, name: str, cycles) -> None:
    """A barrier: every unit is idle."""
    t.end(name, t.now + cycles + BARRIER_CYCLES, "control")


def _lm_head(c: DecoderConfig, m: MachineColumns, t: _Timeline) -> None:
    """Final norm, logits in parts that overlap with their stores and argmax, the token."""
    alu = SYS_DEFAULT_CYCLES
    flow = WeightFlow(m, loaded=t.now, taken=t.now)
    flow.hold(t.now + alu + DISPATCH_CYCLES + START_CYCLES)
    weights = flow.vector(_ceil(c.width * 4, m.word_bytes)) + TOKEN_CYCLES
    t.end("final_norm", weights, "memory")
    t.end("final_norm", t.now + vec_cycles(Program.RMSNORM, c.width), "sfu")
    t.end("quantise_final_norm", t.now + vec_cycles(Program.QUANT, c.width), "sfu")
    _drain(t, "control", 0)

    per = m.scales_per_word
    part = _ceil(min(LOGIT_ROWS, c.vocab // 2 or 1), per) * per
    pairs = c.vocab // (2 * part)
    rest = c.vocab - pairs * 2 * part
    # Segments between barriers: the first pair, the loop over the other pairs, what is left.
    for rows, used in ((np.minimum(pairs, 1) * 2 * part, pairs > 0), (np.maximum(pairs - 1, 0) * 2 * part, pairs > 1), (rest, rest > 0)):
        _logits(c, m, t, rows, np.minimum(part, np.maximum(rows, 1)), used)
    t.end("argmax", t.now + SYS_CYCLES[Op.RDV], "issue")
    t.end("argmax", t.now + START_CYCLES + m.store_cycles(1) + TOKEN_CYCLES, "memory")
    _drain(t, "control", alu)  # and MARK


def _logits(c: DecoderConfig, m: MachineColumns, t: _Timeline, rows, part, used) -> None:
    """`rows` logits in parts: the MV of one part beside store and argmax of the one before; ends with a barrier. Nothing where not
    `used`."""
    part_stream, all_stream = linear_stream(m, part, c.width, 8), linear_stream(m, rows, c.width, 8)
    parts = _ceil(rows, part)
    argmax, store = vec_cycles(Program.ARGMAX, part), m.store_cycles(_ceil(part, LANES))
    behind = np.maximum(argmax, store)
    start = t.now + DISPATCH_CYCLES + START_CYCLES
    load = m.restart_cycles + RAW_FIFO_CYCLES
    arrive = start + load + np.maximum(all_stream.words / m.words_per_cycle, all_stream.cycles) + m.mv_tail_cycles + TOKEN_CYCLES
    first = arrive - (parts - 1) * np.maximum(part_stream.words / m.words_per_cycle, part_stream.cycles)
    done = np.maximum(arrive + behind, first + parts * behind)
    memory = all_stream.words / m.words_per_cycle > all_stream.cycles
    t.end("lm_head", np.where(used, arrive, t.now), "compute", memory)
    t.end("argmax", np.where(used, done, t.now), "sfu")
    t.end("control", np.where(used, t.now + BARRIER_CYCLES, t.now), "control")


def _next_position(t: _Timeline) -> None:
    t.end("control", t.now + SYS_DEFAULT_CYCLES + BARRIER_CYCLES + BRANCH_TAKEN_CYCLES, "control")
