"""Cycles of one pass of any operator graph on a machine, in closed form, operator by operator.

The overlap is that of `analytic`, driven by the graph alone: LD brings weights and cache in the order of the operators as far ahead as the
FIFOs hold, MV and VEC take their operators in order, and each starts when its unit is free and its inputs are made. So a step is bound by
memory, by the array or by the SFU, whichever its operators wait for. A pass is one position of one sequence, as machines of version 1
have it: a prefill or a verification of several tokens reads the weights for each.

A graph whose `missing` is not empty runs on no machine of version 1. What it lacks is costed as if it were there: functions by
`graph_vectors`, experts as loads that wait until the router's choice is known to the sequencer, keys that a mask hides as not loaded (a
stripe of keys is loaded whole), a recurrent state as an LDV of it and single-beat stores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.hw.isa import Op as Instruction
from headrace.hw.machine import BLOCK, LANES, Machine
from headrace.mapping.analytic import (
    HEAD_ISSUE_CYCLES, LOOP_NOPS, POSITION_ALU, POSITION_MUL, POSITION_UNITS, PROMPT_ALU, OpCost, Step, linear_stream,
)  # fmt: skip
from headrace.mapping.analytic_flow import WeightFlow
from headrace.mapping.analytic_timing import (
    BARRIER_CYCLES, BRANCH_TAKEN_CYCLES, DISPATCH_CYCLES, MV_FRONT_CYCLES, MV_START_CYCLES, RAW_FIFO_CYCLES, START_CYCLES, SYS_CYCLES,
    SYS_DEFAULT_CYCLES, TOKEN_CYCLES, MachineColumns,
)  # fmt: skip
from headrace.mapping.graph_vectors import vector_cycles
from headrace.mapping.placement import LOGIT_ROWS, MAX_REPS, SILU_ROWS, slices
from headrace.models.functions import FUNCTIONS
from headrace.models.graph import LOGITS
from headrace.models.operators import ATTENTION_KINDS, STATE_BYTES, Lengths, Op, OperatorGraph, element_bits
from headrace.models.scheme import Scheme

IN_PARTS = frozenset({"silu_mul", "gelu_mul", "gelu", "gelu_erf", "relu", "relu_squared"})
"""Activations that run on the first results of a linear beside its others, as the compiler has it for SILU_MUL."""

VECTOR_TENSORS = ("norm", "bias", "conv", "other")
"""Kinds of tensors that are float32 vectors: LDV brings those of a layer at its start."""


@dataclass(frozen=True)
class AttentionStream:
    """Words and array cycles of one head's keys and values; words of the values' scales of one KV head; keys seen."""

    key_words: np.ndarray
    key_cycles: np.ndarray
    value_words: np.ndarray
    value_cycles: np.ndarray
    scale_words: np.ndarray
    key_slices: np.ndarray
    value_slices: np.ndarray
    stripes: np.ndarray


def attention_stream(op: Op, m: MachineColumns, context, bits: int = 8, group: int | None = None) -> AttentionStream:
    """At KV length `context` of a pass of one position. Keys lie in stripes, values in blocks of 16 keys; each run of keys starts a new one."""
    alive = op.alive(context)
    runs = op.mask.runs(alive) if op.mask.causal else [(1, np.asarray(alive))]
    stripes = sum(count * -(-keys // m.stripe_rows) for count, keys in runs)
    blocks = sum(count * -(-keys // BLOCK) for count, keys in runs)
    scale_words = sum(count * -(-keys // m.scales_per_word) for count, keys in runs)
    scale_words = scale_words * (-(-op.head_dim // (group or op.head_dim)) if bits <= 8 else 0)
    word = m.slice_words(8) * element_bits(op.head_dim, bits, group) / 8
    value_stripes = -(-op.head_dim // m.stripe_rows)
    key_slices, value_slices = stripes * -(-op.head_dim // BLOCK), value_stripes * blocks
    key_words, value_words = key_slices * word + scale_words, value_slices * word
    front = MV_FRONT_CYCLES

    def cycles(words, taken, streams):
        return np.maximum(np.maximum(np.maximum(words, taken), streams * m.results_cycles), front)

    return AttentionStream(
        key_words, cycles(key_words, key_slices, stripes), value_words, cycles(value_words, value_slices, value_stripes), scale_words,
        key_slices, value_slices, stripes,
    )  # fmt: skip


def vector_words(op: Op, m: MachineColumns):
    """Memory words of an operator's float32 vectors, each padded to whole words."""
    sizes = [int(np.prod(tensor.shape)) for tensor in op.tensors if tensor.kind in VECTOR_TENSORS]
    return sum(-(-4 * size // m.word_bytes) for size in sizes)


class _Path:
    """Critical path so far, and what each operator added to it."""

    def __init__(self):
        self.now: np.ndarray | float = 0.0
        self.ops: dict[str, OpCost] = {}

    def end(self, name: str, time, bound: str, memory=None) -> None:
        """`name` ends at `time`; where `memory` holds a load decided, else `bound`."""
        later = np.maximum(self.now, time)
        added = later - self.now
        op = self.ops.setdefault(name, OpCost(name, 0))
        if memory is None:
            op.add(added, bound)
        else:
            op.add(np.where(memory, added, 0.0), "memory")
            op.add(np.where(memory, 0.0, added), bound)
        self.now = later


class _Walk:
    """One pass: state of the units, and when each activation is there."""

    def __init__(self, graph: OperatorGraph, scheme: Scheme, m: MachineColumns, context, prompt: bool):
        self.graph, self.scheme, self.m, self.context = graph, scheme, m, np.asarray(context)
        self.kv_bits = graph.bits_of_cache(scheme)
        self.path, self.flow = _Path(), WeightFlow(m)
        self.vec_free: np.ndarray | float = 0.0
        self.stored: np.ndarray | float = 0.0  # ST is idle from then on
        self.vectors: np.ndarray | float = 0.0  # float32 vectors of this layer are loaded
        self.there: dict[str, tuple] = {}  # activation -> (time, unit that makes it)
        self.parts: dict[str, tuple] = {}  # linear's output -> (array begins, array ends, results complete)
        self.streams: dict[tuple, object] = {}
        self.layer: int | None = None
        self.in_layers = False
        self.head_part, self.head_parts, self.head_extra = 0, 0, 0  # rows of a part of the logits, parts, cycles on each beside argmax
        self.arrive, self.first_part = 0.0, 0.0  # the last and the first part of the logits are there
        self._start(prompt)

    # Control.

    def _start(self, prompt: bool) -> None:
        """From the start of a position to its first load: token and registers."""
        alu, flow = SYS_DEFAULT_CYCLES, self.flow
        now = alu + BARRIER_CYCLES + BRANCH_TAKEN_CYCLES + (0 if prompt else alu)
        if prompt:
            flow.hold(now + alu + DISPATCH_CYCLES + START_CYCLES)
            ids = flow.vector(1) + TOKEN_CYCLES
            now = np.maximum(ids, now + PROMPT_ALU * alu) + SYS_CYCLES[Instruction.RDV] + BARRIER_CYCLES
        self.path.end("control", now, "control")
        self.registers = now + POSITION_ALU * alu + POSITION_MUL * SYS_CYCLES[Instruction.MUL] + POSITION_UNITS * DISPATCH_CYCLES
        flow.loaded = now
        flow.hold(now + 8 * alu + 2 * SYS_CYCLES[Instruction.MUL] + 2 * DISPATCH_CYCLES + START_CYCLES)

    def _drain(self, cycles=0) -> None:
        """A barrier: every unit is idle, and nothing is loaded ahead."""
        self.path.end("control", np.maximum(self.path.now, self.stored) + cycles + BARRIER_CYCLES, "control")
        self.vec_free = self.path.now
        self.flow.loaded = self.flow.taken = self.path.now

    def enter(self, op: Op, following: list[Op]) -> None:
        """Before the first operator of a layer, of the part before the layers, or of the part after them: barriers and vectors."""
        before, self.layer = self.layer, op.layer
        if before is not None and (before < 0) != (op.layer < 0):
            if op.layer >= 0 and not self.in_layers:
                self.in_layers = True
                tables = {o.shape[-1] for o in self.graph.operators if o.kind == "rope"}
                loaded = self.flow.vector(sum(2 * -(-size // 2 * 4 // self.m.word_bytes) for size in tables))
                self.path.end("embedding", loaded, "memory")
                self.path.end("control", self.registers, "control")
                self._drain()
                self.flow.hold(self.path.now + LOOP_NOPS * DISPATCH_CYCLES + START_CYCLES)
            else:
                self._drain(LOOP_NOPS * DISPATCH_CYCLES)
                self.flow.hold(self.path.now + SYS_DEFAULT_CYCLES + DISPATCH_CYCLES + START_CYCLES)
        words = sum(vector_words(o, self.m) for o in following)
        if words:
            self.vectors = self.flow.vector(words) + TOKEN_CYCLES

    # Operators.

    def ready(self, op: Op, unit: str, skip: tuple[str, ...] = ()):
        """When `unit` may take the operator for its inputs' sake."""
        time = 0.0
        for name in op.inputs:
            if name in skip or name not in self.there:
                continue
            made, by = self.there[name]
            if by != unit:
                made = made + TOKEN_CYCLES + (MV_START_CYCLES if unit == "mv" else 0)
            time = np.maximum(time, made)
        return time

    def vec(self, op: Op, ready, cycles) -> None:
        if op.tensors:
            self.path.end(op.name, np.where(self.vectors > np.maximum(ready, self.vec_free), self.vectors, self.path.now), "memory")
            ready = np.maximum(ready, self.vectors)
        self.vec_free = np.maximum(self.vec_free, ready) + cycles
        self.path.end(op.name, self.vec_free, "sfu")
        self.there[op.output] = (self.vec_free, "vec")

    def mv(self, op: Op, words, cycles, ready, *, ahead=None, bound: str = "compute") -> None:
        before = self.flow.taken
        taken, memory = self.flow.multiply(words, cycles, ready, ahead)
        done = taken + self.m.mv_tail_cycles
        self.path.end(op.name, done, bound, memory)
        self.there[op.output] = (done, "mv")
        self.parts[op.output] = (np.maximum(before, ready), taken, done)

    def run(self, op: Op) -> None:
        self.path.ops.setdefault(op.name, OpCost(op.name, 0)).count += 1
        if op.kind == "embedding":
            self.flow.vector(1)
            codes = self.flow.gather(slices(op.matrix.shape[1]))
            self.path.end(op.name, codes, "memory")
            self.there[op.output] = (codes, "ld")
        elif op.kind == "linear":
            self._linear(op)
        elif op.kind == "lm_head":
            self._lm_head(op)
        elif op.kind == "kv_append":
            self._append(op)
        elif op.kind in ATTENTION_KINDS:
            self._attend(op)
        elif op.kind == "argmax":
            self._argmax(op)
        elif self.head_part and LOGITS in op.shape:  # runs on parts of the logits, as argmax does
            self.head_extra = self.head_extra + vector_cycles(op.kind, self.head_part)
            self.there[op.output] = self.there[op.inputs[0]]
        else:
            self._vector(op)

    def _vector(self, op: Op) -> None:
        ready = self.ready(op, "vec")
        rows, n = op.row_count(Lengths()), op.row_length(self.context)
        if op.state:
            state = self.flow.vector(-(-STATE_BYTES * op.state // self.m.word_bytes)) + TOKEN_CYCLES
            self.path.end(op.name, np.where(state > np.maximum(ready, self.vec_free), state, self.path.now), "memory")
            ready = np.maximum(ready, state)
        arriving = [self.parts[name] for name in op.inputs if name in self.parts]
        if op.kind in IN_PARTS and rows == 1 and arriving:
            self._in_parts(op, ready, arriving, int(n))
            return
        if op.kind == "conv":
            cycles = vector_cycles("conv_tap", n * rows, element_times=op.tensors[0].shape[-1])
        else:
            group = op.heads // op.kv_heads if op.kv_heads else 1
            per_command = max(1, MAX_REPS // group) * group if group <= MAX_REPS else MAX_REPS
            key = (op.kind, rows, per_command, op.mask, op.keep, None if op.mask else n)
            cycles = self.streams.get(key)
            if cycles is None:
                cycles = self.streams[key] = vector_cycles(op.kind, n, rows, per_command=per_command)
        self.vec(op, ready, cycles)
        if op.state:
            self.stored = np.maximum(self.stored, self.vec_free + TOKEN_CYCLES) + self.m.store_cycles(-(-STATE_BYTES * op.state // (4 * LANES)))

    def _in_parts(self, op: Op, ready, arriving: list[tuple], n: int) -> None:
        """Parts of SILU_ROWS beside the linear that makes them: ends after the last part's arrival, or when VEC has worked through all."""
        begins, ends, complete = max(arriving, key=lambda part: float(np.max(part[2])))
        whole_words = -(-SILU_ROWS // self.m.scales_per_word) * self.m.scales_per_word
        first = np.minimum(whole_words, n)
        parts = np.maximum(1, -(-n // whole_words))
        cycles, last = vector_cycles(op.kind, first), vector_cycles(op.kind, n - (parts - 1) * whole_words)
        early = complete + TOKEN_CYCLES - (ends - begins) * (1 - first / n)
        others = [made + TOKEN_CYCLES for _, _, made in arriving if made is not complete]
        for time in (*others, self.vec_free):
            early = np.maximum(early, time)
        self.vec_free = np.maximum(early + (parts - 1) * cycles + last, complete + TOKEN_CYCLES + last)
        self.path.end(op.name, self.vec_free, "sfu")
        self.there[op.output] = (self.vec_free, "vec")

    def _linear(self, op: Op) -> None:
        weight, bits = op.matrix, op.bits(self.scheme)
        key = (weight.shape, bits)
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = linear_stream(self.m, *weight.shape, bits)
        ready = self.ready(op, "mv")
        if weight.experts > 1:
            # The sequencer reads the choice from the vector buffer before it can address an expert.
            chosen = self.there[op.inputs[1]][0]
            self.flow.hold(chosen + TOKEN_CYCLES + weight.active * SYS_CYCLES[Instruction.RDV] + DISPATCH_CYCLES + START_CYCLES)
        self.mv(op, weight.active * stream.words, weight.active * stream.cycles, ready)

    def _stream(self, op: Op) -> AttentionStream:
        key = ("attention", op.mask, op.keep, op.head_dim)
        if key not in self.streams:
            self.streams[key] = attention_stream(op, self.m, self.context, self.kv_bits, self.graph.kv_group)
        return self.streams[key]

    def _append(self, op: Op) -> None:
        """ST writes keys, their scales, values, their scales; then LD may read the cache, the values' scales first."""
        k, v = (self.there[name][0] + TOKEN_CYCLES for name in op.inputs)
        kv, share = op.kv_heads, element_bits(op.head_dim, self.kv_bits, self.graph.kv_group) / 8
        scales = self.m.store_cycles(kv) if self.kv_bits <= 8 else 0
        keys = self.m.store_cycles(int(-(-kv * op.head_dim * share // BLOCK))) + scales
        values = self.m.store_cycles(int(-(-kv * op.head_dim * share // 2))) + scales + TOKEN_CYCLES
        stored = np.maximum(k + keys, v) + values
        self.stored = np.maximum(self.stored, stored)
        self.flow.hold(stored)
        loaded = self.flow.vector(kv * self._stream(op).scale_words)
        self.path.end(op.name, np.where(loaded > self.vec_free, loaded, self.path.now), "memory")
        self.there[op.output] = (loaded, "ld")

    def _attend(self, op: Op) -> None:
        stream, heads = self._stream(op), op.heads
        ready = self.ready(op, "mv", skip=(op.inputs[1],))  # the cache is loaded, not waited for
        if op.kind == "attention_qk":
            front = max(MV_FRONT_CYCLES, HEAD_ISSUE_CYCLES)
            bound = "issue" if np.all(stream.key_words < front) else "compute"
            self.mv(op, heads * stream.key_words, heads * stream.key_cycles, ready, bound=bound)
        else:
            # The sequencer stands at the first MV that its queue cannot hold, and the loads behind it wait too.
            ahead = np.minimum(heads, self.m.queue_depth + 1) * stream.value_words
            self.mv(op, heads * stream.value_words, heads * stream.value_cycles, ready, ahead=ahead)

    def _lm_head(self, op: Op) -> None:
        """Logits in parts; what follows runs on one part beside the next, and so do the stores."""
        m, (vocab, width) = self.m, op.matrix.shape
        self._drain()
        per = m.scales_per_word
        part = -(-min(LOGIT_ROWS, vocab // 2 or 1) // per) * per
        bits = op.bits(self.scheme)
        whole, one = linear_stream(m, vocab, width, bits), linear_stream(m, part, width, bits)
        rate = m.words_per_cycle
        start = self.path.now + DISPATCH_CYCLES + START_CYCLES + m.restart_cycles + RAW_FIFO_CYCLES
        arrive = start + np.maximum(whole.words / rate, whole.cycles) + m.mv_tail_cycles + TOKEN_CYCLES
        self.head_part, self.head_parts = int(np.max(part)), -(-vocab // part)
        self.arrive, self.first_part = arrive, arrive - (self.head_parts - 1) * np.maximum(one.words / rate, one.cycles)
        self.path.end(op.name, arrive, "compute", whole.words / rate > whole.cycles)
        self.there[op.output] = (arrive, "mv")

    def _argmax(self, op: Op) -> None:
        m = self.m
        behind = np.maximum(vector_cycles("argmax", self.head_part) + self.head_extra, m.store_cycles(-(-self.head_part // LANES)))
        self.path.end(op.name, np.maximum(self.arrive + behind, self.first_part + self.head_parts * behind), "sfu")
        self._drain()
        self.path.end(op.name, self.path.now + SYS_CYCLES[Instruction.RDV], "issue")
        self.path.end(op.name, self.path.now + START_CYCLES + m.store_cycles(1) + TOKEN_CYCLES, "memory")
        self._drain(SYS_DEFAULT_CYCLES)
        self.head_part, self.head_extra = 0, 0
        self.there[op.output] = (self.path.now, "vec")

    def finish(self, logits: bool) -> Step:
        if not logits:
            self._drain(LOOP_NOPS * DISPATCH_CYCLES)
            self.path.end("control", self.path.now + BRANCH_TAKEN_CYCLES, "control")
        self.path.end("control", self.path.now + SYS_DEFAULT_CYCLES + BARRIER_CYCLES + BRANCH_TAKEN_CYCLES, "control")
        shape = np.broadcast_shapes(np.shape(self.path.now), np.shape(self.context))
        return Step(np.broadcast_to(np.asarray(self.path.now, float), shape), self.path.ops, [])


def segments(operators) -> list[list[Op]]:
    """Runs of operators of one layer, or of none."""
    found: list[list[Op]] = []
    for op in operators:
        if not found or found[-1][-1].layer != op.layer:
            found.append([])
        found[-1].append(op)
    return found


def step(
    graph: OperatorGraph, scheme: Scheme, machine: Machine | MachineColumns, context, *, logits: bool, prompt: bool = False
) -> Step:
    """One pass of one position at KV length `context` (itself included; a number or an array). An encoder's position sees all of it.

    logits: the LM head runs. prompt: the token is fetched from the prompt.
    """
    m = MachineColumns.of(machine) if isinstance(machine, Machine) else machine
    walk = _Walk(graph, scheme, m, context, prompt)
    for part in segments(op for op in graph.operators if logits or LOGITS not in op.shape):
        walk.enter(part[0], part)
        for op in part:
            walk.run(op)
    return walk.finish(logits)


assert set(IN_PARTS) <= set(FUNCTIONS)
