"""Where everything lies: vector buffer rows, activation buffer slices, memory sections, for one model on one machine.

Sizes follow docs/machine.md. `Placement` is plain numbers; the compiler reads them and nothing else.
"""

from dataclasses import dataclass

from headrace.hw.machine import Machine
from headrace.mapping.stream import BLOCK, slice_words, stream_words
from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig, require_plain_llama

LANES = 8
MAX_REPS = 16  # repetitions of one VEC command
LOGIT_ROWS = 2048  # LM-head rows between two synchronisations, at most
SILU_ROWS = 256  # gate rows per MV, so that SILU_MUL of one part runs beside the next


def rows(n: int) -> int:
    """VB rows of n float32, in pairs of rows (docs/machine.md, section 4: RN)."""
    return 2 * -(-n // BLOCK)


def slices(n: int) -> int:
    """AB slices of n INT8 (SN)."""
    return -(-n // BLOCK)


class _Allocator:
    """Hands out items of one buffer; what is taken past its end is counted too."""

    def __init__(self, what: str, field: str, size: int, item_bytes: int):
        self.what, self.field, self.size, self.item_bytes, self.next = what, field, size, item_bytes, 0

    def take(self, count: int) -> int:
        start = self.next
        self.next += count
        return start

    @property
    def passed(self) -> str | None:
        """What is needed and what there is, where the first is more."""
        if self.next <= self.size:
            return None
        needed, there = (f"{count * self.item_bytes:,} bytes" for count in (self.next, self.size))
        return f"{self.next} {self.what} ({needed}) of {self.field} = {self.size} ({there})"


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class VectorRows:
    """First VB row of each value; sizes are rows()."""

    one: int
    inverse_sqrt_head: int
    inverse_width: int  # and eps in the row after it
    x: int
    h: int
    norms: int  # attn_norm then mlp_norm; the final norm uses the first
    q: int  # q, k, v follow one another
    k: int
    v: int
    s_q: int
    s_k: int  # s_k, s_v follow one another
    s_v: int
    s_h: int
    s_attn: int
    s_y: int
    s_out: int
    cos: int
    sin: int
    scores: int
    value_scales: int
    attn: int
    proj: int
    gate: int
    up: int
    y: int
    logits: tuple[int, int]
    prompt: int
    embedding_scale: int
    best: int
    end: int


@dataclass(frozen=True)
class ActivationSlices:
    """First AB slice of each INT8 vector."""

    h: int
    q: int
    k: int
    v: int
    p: int
    attn: int
    y: int
    embedding: int
    end: int


def vector_rows(config: DecoderConfig, machine: Machine, context: int) -> tuple[VectorRows, _Allocator]:
    """Places every float vector. Stripes are whole VB rows, and MV rows come in whole stripes, so vectors that an MV writes end at a
    multiple of stripe_rows/8 rows."""
    vb = _Allocator("vector buffer rows", "buffers.vector_rows", machine.buffers.vector_rows, 4 * LANES)
    word_rows = machine.word_bytes // 32
    scale_rows = machine.scales_per_word // LANES

    def outputs(n: int) -> int:  # rows an MV of n channels writes, padding stripes in
        return vb.take(max(rows(n), round_up(n, machine.scales_per_word) // LANES))

    heads, kv, hd = config.heads, config.kv_heads, config.head_dim
    constants = vb.take(round_up(4, word_rows))
    x = vb.take(rows(config.width))
    h = vb.take(rows(config.width))
    norm_rows = round_up(config.width, machine.scales_per_word) // LANES
    norms = vb.take(max(2 * norm_rows, rows(config.width)))
    q, k, v = outputs(heads * hd), outputs(kv * hd), outputs(kv * hd)
    s_q, s_k = vb.take(heads), vb.take(2 * kv)
    s_h, s_attn, s_y = vb.take(1), vb.take(1), vb.take(1)
    s_out = vb.take(heads)
    table = round_up(hd // 2, machine.scales_per_word) // LANES
    cos = vb.take(2 * max(table, rows(hd // 2)))
    scores = vb.take(heads * rows(context) + machine.stripe_rows // LANES)
    value_scales = vb.take(kv * (round_up(context, machine.scales_per_word) // LANES))
    attn = outputs(heads * hd)
    proj = outputs(config.width)
    gate, up = outputs(config.ffn), outputs(config.ffn)
    y = vb.take(rows(config.ffn))
    chunk = round_up(min(LOGIT_ROWS, config.vocab), machine.scales_per_word) // LANES
    logits = (vb.take(chunk), vb.take(chunk))
    prompt, embedding_scale = vb.take(word_rows), vb.take(scale_rows)
    best = vb.take(1)
    placed = VectorRows(
        one=constants, inverse_sqrt_head=constants + 1, inverse_width=constants + 2, x=x, h=h, norms=norms, q=q, k=k, v=v,
        s_q=s_q, s_k=s_k, s_v=s_k + kv, s_h=s_h, s_attn=s_attn, s_y=s_y, s_out=s_out, cos=cos, sin=cos + table, scores=scores,
        value_scales=value_scales, attn=attn, proj=proj, gate=gate, up=up, y=y, logits=logits, prompt=prompt,
        embedding_scale=embedding_scale, best=best, end=vb.next,
    )  # fmt: skip
    return placed, vb


def activation_slices(config: DecoderConfig, machine: Machine, context: int) -> tuple[ActivationSlices, _Allocator]:
    ab = _Allocator("activation buffer slices", "buffers.activation_slices", machine.buffers.activation_slices, BLOCK)
    head = slices(config.head_dim)
    h = ab.take(slices(config.width))
    q, k, v = ab.take(config.heads * head), ab.take(config.kv_heads * head), ab.take(config.kv_heads * head)
    p = ab.take(config.heads * slices(context))
    attn, y = ab.take(config.heads * head), ab.take(slices(config.ffn))
    embedding = ab.take(slices(config.width))
    placed = ActivationSlices(h=h, q=q, k=k, v=v, p=p, attn=attn, y=y, embedding=embedding, end=ab.next)
    return placed, ab


def limits_passed(config: DecoderConfig, machine: Machine, context: int) -> list[str]:
    """What a context asks of the buffers beyond their sizes, in words; empty where it fits."""
    found = (allocator.passed for _, allocator in (vector_rows(config, machine, context), activation_slices(config, machine, context)))
    return [text for text in found if text is not None]


def largest_context(config: DecoderConfig, machine: Machine) -> int:
    """The largest context (multiple of a scale word's tokens) that model and buffers allow. Raises UserError if not even one."""
    step = machine.scales_per_word
    best = 0
    for context in range(step, round_up(config.max_positions, step) + 1, step):
        passed = limits_passed(config, machine, context)
        if passed:
            break
        best = context
    if not best:
        raise UserError(
            f"model {config.name} does not fit machine {machine.name}: even the shortest context ({step} tokens) needs {' and '.join(passed)}"
        )
    return min(best, config.max_positions)


@dataclass(frozen=True)
class CacheGeometry:
    """One layer's KV cache in memory words: K of all heads, V of all heads, V scales of all heads (docs/machine.md, section 3)."""

    capacity: int  # tokens, a multiple of scales_per_word
    k_stripe_words: int
    k_block_words: int
    k_head_words: int
    v_slice_words: int
    v_stripe_words: int
    v_head_words: int
    s_head_words: int
    k_base: int
    v_base: int
    s_base: int
    layer_words: int


def cache_geometry(config: DecoderConfig, machine: Machine, context: int) -> CacheGeometry:
    per, stripe_rows = machine.scales_per_word, machine.stripe_rows
    capacity = round_up(context, max(per, BLOCK))
    word8 = slice_words(machine, 8)
    k_stripe = config.head_dim // BLOCK * word8
    k_block = 1 + machine.stripes_per_scale_word * k_stripe
    k_head = capacity // per * k_block
    v_stripe = capacity // BLOCK * word8
    v_head = config.head_dim // stripe_rows * v_stripe
    s_head = capacity // per
    kv = config.kv_heads
    return CacheGeometry(
        capacity=capacity, k_stripe_words=k_stripe, k_block_words=k_block, k_head_words=k_head, v_slice_words=word8,
        v_stripe_words=v_stripe, v_head_words=v_head, s_head_words=s_head, k_base=0, v_base=kv * k_head,
        s_base=kv * (k_head + v_head), layer_words=kv * (k_head + v_head + s_head),
    )  # fmt: skip


def linear_words(machine: Machine, outputs: int, inputs: int, bits: int) -> int:
    """Words of one linear's stream, rows padded to whole scale words."""
    padded = round_up(outputs, machine.scales_per_word)
    return stream_words(machine, padded // machine.stripe_rows, slices(inputs), bits, True)


def check_supported(config: DecoderConfig, machine: Machine) -> None:
    """Refuses what ISA version 1 cannot run, naming the field."""
    require_plain_llama(config, f"machine {machine.name}")
    hd, group = config.head_dim, config.heads // config.kv_heads
    rules = (
        (hd % 32 == 0, "head_dim", hd, "a multiple of 32"),
        (hd % machine.stripe_rows == 0, "head_dim", hd, f"a multiple of the stripe's {machine.stripe_rows} rows"),
        (hd <= 1024, "head_dim", hd, "up to 1024"),
        (config.width % BLOCK == 0, "width", config.width, "a multiple of 16"),
        (config.ffn % machine.scales_per_word == 0, "ffn", config.ffn, f"a multiple of {machine.scales_per_word}"),
        ((config.heads * hd) % machine.scales_per_word == 0, "heads * head_dim", config.heads * hd,
         f"a multiple of {machine.scales_per_word}"),
        ((config.kv_heads * hd) % machine.scales_per_word == 0, "kv_heads * head_dim", config.kv_heads * hd,
         f"a multiple of {machine.scales_per_word}"),
        (group <= MAX_REPS, "heads / kv_heads", group, f"up to {MAX_REPS}"),
    )  # fmt: skip
    broken = [f"{name} = {value}, where {allowed} is allowed" for fine, name, value, allowed in rules if not fine]
    if broken:
        raise UserError(f"model {config.name} cannot run on machine {machine.name}: {'; '.join(broken)}")
    if machine.sfu.lanes != LANES or machine.memory.port_bytes != 32:
        raise UserError(
            f"machine {machine.name}: sfu.lanes = {machine.sfu.lanes}, memory.port_bytes = {machine.memory.port_bytes}; "
            f"programs are compiled for lanes = {LANES} and port_bytes = 32"
        )
