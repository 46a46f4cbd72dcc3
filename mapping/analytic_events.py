"""Events of a pass for the energy model, from the same closed forms as the cycles: what the hardware does, padding included.

The names are those of the hardware's counters where it has them (mac_slices, beats, instructions, vec_busy).
"""

import numpy as np

from headrace.hw.isa import Program
from headrace.hw.machine import BLOCK, LANES, Machine
from headrace.hw.sfu_programs import microprograms
from headrace.hw.sfu_timing import sfu_vector_accesses
from headrace.hw.sfu_ucode import ACCUMULATE_PACE, FIRST_LOAD, FLAT
from headrace.mapping.analytic import cache_stream, linear_stream
from headrace.mapping.analytic_timing import MachineColumns
from headrace.mapping.placement import LOGIT_ROWS, MAX_REPS, SILU_ROWS, slices
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig

EVENTS = ("mac_slices", "vec_busy", "vb_rows", "ab_slices", "read_beats", "write_beats", "instructions")
"""mac_slices: array cycles of 16 columns of a stripe. vec_busy: cycles in which the SFU starts a command or issues rows, waits left out (the
hardware's counter vec_active). vb_rows, ab_slices: reads and writes of
rows of 32 bytes and slices of 16 bytes. read_beats, write_beats: 32-byte beats over all ports."""


def step_events(
    config: DecoderConfig, bits: dict[str, int], machine: Machine | MachineColumns, context, *, lm_head: bool, prompt: bool = False
) -> dict[str, np.ndarray]:
    """Events of one pass at KV length `context`, by name."""
    m = MachineColumns.of(machine) if isinstance(machine, Machine) else machine
    c, context = config, np.asarray(context)
    heads, kv, hd, group = c.heads, c.kv_heads, c.head_dim, c.heads // c.kv_heads
    cache = cache_stream(c, m, context)
    rows8 = m.stripe_rows // LANES

    words, mac_slices, mv_rows = 0, 0, 0
    for name in LINEAR_NAMES:
        stream = linear_stream(m, *c.linear_shape(name), bits[name])
        words += stream.words
        mac_slices += stream.stripes * slices(c.linear_shape(name)[1])
        mv_rows += stream.stripes * rows8
    stripes_k, stripes_v = -(-context // m.stripe_rows), hd // m.stripe_rows
    words = words + heads * (cache.key_words + cache.value_words)
    mac_slices = mac_slices + heads * (stripes_k * (hd // BLOCK) + stripes_v * slices_of(context))
    mv_rows = mv_rows + heads * (stripes_k + stripes_v) * rows8
    norm_words = -(-c.width * 4 // m.word_bytes)
    vector_words = 2 * norm_words + kv * cache.scale_words
    layer_words = words + vector_words

    vec = _Vec()
    vec.add(Program.RMSNORM, c.width, count=2)
    vec.add(Program.QUANT, c.width, count=2)
    vec.add(Program.ROPE, hd // 2, reps=heads)
    vec.add(Program.ROPE, hd // 2, reps=kv)
    vec.add(Program.QUANT, hd, reps=kv, count=2)
    vec.add(Program.QUANT, hd, reps=heads)
    vec.add(Program.SOFTMAX, context, reps=heads, per_command=MAX_REPS // group * group)
    vec.add(Program.QUANT, heads * hd)
    vec.add(Program.ADD, c.width, count=2)
    part = -(-SILU_ROWS // m.scales_per_word) * m.scales_per_word
    silu_parts = -(-c.ffn // part)
    vec.add(Program.SILU_MUL, c.ffn)  # in parts: the same rows, the parts' fill apart
    vec.add(Program.QUANT, c.ffn)
    items = kv * (hd // BLOCK + 1 + hd // 2 + 1)
    # LD 11 + 2 heads, MV 6 + 2 heads + gate parts, ST 4, VEC 13 + gate parts, SYS 12 + 2 heads.
    instructions = 46 + 6 * heads + 2 * silu_parts

    layers = c.layers
    embedding_words = 1 + slices(c.width) + 2 * -(-(hd // 2 * 4) // m.word_bytes) + (1 if prompt else 0)
    tail = _Vec()
    tail.add(Program.DEQUANT, c.width)
    events = {
        "mac_slices": layers * mac_slices,
        "vec_busy": layers * vec.busy,
        "vb_rows": layers * (vec.vb_rows + mv_rows + vector_words * m.ports + kv * 2),
        "ab_slices": layers * (mac_slices + vec.int8_slices + items),
        "read_beats": (layers * layer_words + embedding_words) * m.ports,
        "write_beats": layers * items,
        "instructions": layers * instructions + 60,
    }
    if lm_head:
        head = linear_stream(m, c.vocab, c.width, 8)
        tail.add(Program.RMSNORM, c.width)
        tail.add(Program.QUANT, c.width)
        part = -(-min(LOGIT_ROWS, c.vocab // 2 or 1) // m.scales_per_word) * m.scales_per_word
        tail.add(Program.ARGMAX, c.vocab)
        logit_rows = -(-c.vocab // LANES)
        events["mac_slices"] = events["mac_slices"] + head.stripes * slices(c.width)
        events["vb_rows"] = events["vb_rows"] + head.stripes * rows8 + logit_rows + norm_words * m.ports
        events["ab_slices"] = events["ab_slices"] + head.stripes * slices(c.width)
        events["read_beats"] = events["read_beats"] + (head.words + norm_words) * m.ports
        events["write_beats"] = events["write_beats"] + logit_rows + 1
        events["instructions"] = events["instructions"] + 20 + 7 * -(-c.vocab // part)
    events["vec_busy"] = events["vec_busy"] + tail.busy
    events["vb_rows"] = events["vb_rows"] + tail.vb_rows
    events["ab_slices"] = events["ab_slices"] + tail.int8_slices
    shape = np.broadcast_shapes(*(np.shape(v) for v in events.values()))
    return {name: np.broadcast_to(np.asarray(value, float), shape) for name, value in events.items()}


def slices_of(n):
    """AB slices of n INT8, for arrays."""
    return -(-n // BLOCK)


class _Vec:
    """Sums over VEC commands."""

    def __init__(self):
        self.busy, self.vb_rows, self.int8_slices = 0.0, 0.0, 0.0

    def add(self, program: Program, n, *, reps: int = 1, count: int = 1, per_command: int = MAX_REPS) -> None:
        commands = -(-reps // per_command)
        self.busy = self.busy + count * (_issue_cycles(program, n, reps) + commands * FIRST_LOAD)
        self.vb_rows = self.vb_rows + count * _accesses(program, n, reps)
        if program in (Program.QUANT, Program.SOFTMAX, Program.DEQUANT):
            self.int8_slices = self.int8_slices + count * reps * slices_of(n)


def _issue_cycles(program: Program, n, reps: int):
    """Cycles in which rows are issued: a FLAT microinstruction runs over the rows of all repetitions, the others over one row each; a
    sum takes ACCUMULATE_PACE cycles a row."""
    uops = microprograms()[program].uops
    flat = sum(ACCUMULATE_PACE if uop.accumulate else 1 for uop in uops if uop.mode == FLAT)
    single = sum(ACCUMULATE_PACE if uop.accumulate else 1 for uop in uops if uop.mode != FLAT)
    return reps * (2 * flat * slices_of(n) + single)


def _accesses(program: Program, n, reps: int):
    """VB rows read and written: per row of n elements and per repetition, so linear in both."""
    one, two = (sum(sfu_vector_accesses(program, size, 1)) for size in (BLOCK, 2 * BLOCK))
    per_slice = two - one
    return reps * (one - per_slice + per_slice * slices_of(n))
