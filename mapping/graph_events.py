"""Events of a pass of an operator graph for the energy model, under the names of `analytic_events`, and the memory that its image takes.

They are counted from the graph and the machine's layout. Instructions are those that the compiler of version 1 would need: for a graph that
it cannot compile, as many as an operator of the same shape has.
"""

from __future__ import annotations

import numpy as np

from headrace.hw.isa import INSTRUCTION_BYTES
from headrace.hw.machine import BLOCK, LANES, Machine
from headrace.mapping.analytic import linear_stream
from headrace.mapping.analytic_events import EVENTS
from headrace.mapping.analytic_graph import IN_PARTS, attention_stream, vector_words
from headrace.mapping.analytic_timing import MachineColumns
from headrace.mapping.graph_vectors import buffer_rows, issue_cycles
from headrace.mapping.placement import LOGIT_ROWS, MAX_REPS, SILU_ROWS, slices
from headrace.models.graph import LOGITS
from headrace.models.operators import ATTENTION_KINDS, MATRIX_KINDS, STATE_BYTES, Lengths, Op, OperatorGraph, key_bytes
from headrace.models.scheme import Scheme

POSITION_INSTRUCTIONS, HEAD_INSTRUCTIONS, HEAD_PART_INSTRUCTIONS, LAYER_INSTRUCTIONS = 60, 20, 7, 13
"""Beside those of operators: of a position, of the LM head, of a part of the logits, of a layer (as in `analytic_events`)."""


def step_events(
    graph: OperatorGraph, scheme: Scheme, machine: Machine | MachineColumns, context, *, logits: bool, prompt: bool = False
) -> dict[str, np.ndarray]:
    """Events of one pass of one position at KV length `context`, by name."""
    m = MachineColumns.of(machine) if isinstance(machine, Machine) else machine
    context = np.asarray(context)
    total: dict[str, object] = dict.fromkeys(EVENTS, 0.0)
    total["read_beats"] = (1 if prompt else 0) * m.ports
    total["instructions"] = POSITION_INSTRUCTIONS + LAYER_INSTRUCTIONS * graph.layers
    kinds: dict[tuple, dict] = {}
    for op in graph.operators:
        if LOGITS in op.shape and not logits:
            continue
        shapes = tuple((tensor.shape, tensor.kind, tensor.active) for tensor in op.tensors)
        key = (op.kind, op.shape, shapes, op.heads, op.kv_heads, op.head_dim, op.mask, op.keep, op.state)
        if key not in kinds:
            kinds[key] = _of_operator(op, graph, scheme, m, context)
        for name, value in kinds[key].items():
            total[name] = total[name] + value
    tables = {op.shape[-1] for op in graph.operators if op.kind == "rope"}
    total["read_beats"] = total["read_beats"] + sum(2 * -(-size // 2 * 4 // m.word_bytes) for size in tables) * m.ports
    return {name: np.broadcast_to(np.asarray(value, float), context.shape) for name, value in total.items()}


def _of_operator(op: Op, graph: OperatorGraph, scheme: Scheme, m: MachineColumns, context) -> dict[str, object]:
    vectors = vector_words(op, m)
    events: dict[str, object] = {"read_beats": vectors * m.ports, "vb_rows": vectors * m.ports}
    rows8 = m.stripe_rows // LANES
    bits = graph.bits_of_cache(scheme)
    if op.kind == "embedding":
        events["read_beats"] = (1 + slices(op.matrix.shape[1])) * m.ports
    elif op.kind in MATRIX_KINDS:
        outputs, inputs = op.matrix.shape
        stream, active = linear_stream(m, outputs, inputs, op.bits(scheme)), op.matrix.active
        taken = active * stream.stripes * slices(inputs)
        events |= {"mac_slices": taken, "ab_slices": taken, "vb_rows": active * stream.stripes * rows8,
                   "read_beats": active * stream.words * m.ports, "instructions": 2 * active}  # fmt: skip
        if op.kind == "lm_head":
            part = -(-min(LOGIT_ROWS, outputs // 2 or 1) // m.scales_per_word) * m.scales_per_word
            logit_rows = -(-outputs // LANES)
            events["vb_rows"] = events["vb_rows"] + logit_rows
            events |= {"write_beats": logit_rows + 1, "instructions": HEAD_INSTRUCTIONS + HEAD_PART_INSTRUCTIONS * -(-outputs // part)}
    elif op.kind in ATTENTION_KINDS:
        stream, heads = attention_stream(op, m, context, bits, graph.kv_group), op.heads
        scores = op.kind == "attention_qk"
        taken = heads * (stream.key_slices if scores else stream.value_slices)
        stripes = stream.stripes if scores else -(-op.head_dim // m.stripe_rows)
        words = heads * (stream.key_words if scores else stream.value_words)
        events |= {"mac_slices": taken, "ab_slices": taken, "vb_rows": heads * stripes * rows8, "read_beats": words * m.ports,
                   "instructions": 3 * heads}  # fmt: skip
    elif op.kind == "kv_append":
        kv, share = op.kv_heads, bits / 8
        scales = 2 * kv if bits <= 8 else 0
        items = int(np.ceil(kv * op.head_dim * share / BLOCK)) + int(np.ceil(kv * op.head_dim * share / 2)) + scales
        loaded = kv * attention_stream(op, m, context, bits, graph.kv_group).scale_words
        events |= {"ab_slices": items, "write_beats": items, "read_beats": loaded * m.ports, "vb_rows": loaded * m.ports + scales,
                   "instructions": 5}  # fmt: skip
    else:
        _of_function(op, m, context, events)
    if op.state:
        words, beats = -(-STATE_BYTES * op.state // m.word_bytes), -(-STATE_BYTES * op.state // (4 * LANES))
        events["read_beats"] = events["read_beats"] + words * m.ports
        events["vb_rows"] = events["vb_rows"] + words * m.ports + beats
        events["write_beats"], events["instructions"] = beats, events["instructions"] + 2
    return events


def _of_function(op: Op, m: MachineColumns, context, events: dict[str, object]) -> None:
    n, rows = op.row_length(context), op.row_count(Lengths())
    taps = op.tensors[0].shape[-1] if op.kind == "conv" else 1
    kind = "conv_tap" if op.kind == "conv" else op.kind
    events["vec_busy"] = issue_cycles(kind, n, rows, taps)
    events["vb_rows"] = events["vb_rows"] + buffer_rows(kind, n, rows, taps)
    if op.kind in ("quantise", "softmax", "dequantise"):
        events["ab_slices"] = rows * -(-n // BLOCK)
    commands = -(-rows // MAX_REPS)
    if op.kind in IN_PARTS:
        part = -(-SILU_ROWS // m.scales_per_word) * m.scales_per_word
        commands = 2 * -(-n // part)  # and the linear's parts
    events["instructions"] = commands


def image_bytes(graph: OperatorGraph, scheme: Scheme, machine: Machine, context: int, sequences: int = 1) -> int:
    """Memory that weights in the machine's layout, cache, state, tables and a full instruction memory take. Caches of a window hold its keys."""
    m = MachineColumns.of(machine)
    bits = graph.bits_of_cache(scheme)
    tables = {op.shape[-1] for op in graph.operators if op.kind == "rope"}
    words = context * sum(2 * -(-size // 2 * 4 // m.word_bytes) for size in tables)
    cache = 0.0
    for op in graph.operators:
        words += vector_words(op, m)
        if op.kind in MATRIX_KINDS and not op.matrix.tied:
            words += op.matrix.experts * linear_stream(m, *op.matrix.shape, op.bits(scheme)).words
        elif op.kind == "embedding":
            words += linear_stream(m, *op.matrix.shape, scheme.embedding_bits).words
        elif op.kind == "kv_append":
            capacity = -(-int(op.kept(context)) // machine.scales_per_word) * machine.scales_per_word
            cache += 2 * capacity * op.kv_heads * key_bytes(op.head_dim, bits, graph.kv_group)
    held = int(words) * machine.word_bytes + machine.buffers.imem_words * INSTRUCTION_BYTES
    return held + int(np.ceil(sequences * (cache + graph.state_bytes)))
