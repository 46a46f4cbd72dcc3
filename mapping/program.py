"""Code generation: the program of a Llama model, as instructions with the regions that each touches.

One program serves every prompt and output length up to the context it was laid out for: it loops over positions, layers and LM-head parts, and all
lengths come from registers. A position is one pass of the whole model; logits are computed for the last prompt position and every later one.
docs/compiler.md tells its shape.
"""

from headrace.hw.isa import Instruction, Op, Program
from headrace.mapping.emit import Emitter, ab, memory, vb
from headrace.mapping.placement import BLOCK, LANES, LOGIT_ROWS, MAX_REPS, SILU_ROWS, round_up, rows, slices
from headrace.mapping.plan import Addresses, Plan
from headrace.mapping.stream import slice_words, stripe_words
from headrace.mapping.tokens import Item

MARK_START = 0
"""MARK identities: 0 at the start of the prompt, then k at the end of the pass that wrote output token k (k = 1, 2, ...)."""


def log2(value: int) -> int:
    return value.bit_length() - 1


def generate(plan: Plan, address: Addresses) -> list[Instruction]:
    """The program of `items`."""
    return [item.instruction for item in items(plan, address)]


def items(plan: Plan, address: Addresses) -> list[Item]:
    """The program with the regions that each instruction touches; docs/compiler.md tells its shape."""
    # Names of a position's start, of a layer and of the LM head take turns.
    e = Emitter(shared=(("block", "out", "head"), ("row", "p", "index"), ("chunk", "scale_row")))
    _prologue(e, plan, address)
    _position(e, plan, address)
    _layer_loop(e, plan, address)
    _lm_head(e, plan, address)
    e.label("next")
    e.alu(Op.ADD, "position", "position", 1)
    e.end_straight()
    e.branch(Op.BLT, "position", "last", "position")
    e.halt()
    return e.finish()


def _prologue(e: Emitter, plan: Plan, a: Addresses) -> None:
    e.alu(Op.ADD, "last", "prompt_length", "output_tokens")
    e.alu(Op.SUB, "last", "last", 1)
    e.set("position", 0)
    e.set("logit_beat", 0)
    e.set("token_beat", 0)
    e.set("produced", 0)
    count = a.constant_words * plan.machine.word_bytes // 32
    e.load_vector(a.constants, a.constant_words, plan.rows.one, vb(plan.rows.one, count), comment="constants")
    e.end_straight()
    e.mark(MARK_START)


def _position(e: Emitter, plan: Plan, a: Addresses) -> None:
    """Fetch the token (prompt or the last output), compute the registers of this position, look the embedding up."""
    m, r, c = plan.machine, plan.rows, plan.cache
    per, stripe_rows = m.scales_per_word, m.stripe_rows
    word_rows, chunks = m.word_bytes // 32, m.word_bytes // BLOCK
    e.label("position")
    e.set("scratch", "position")
    e.end_straight()
    e.branch(Op.BLT, "position", "prompt_length", "from_prompt")
    e.branch(Op.BLT, 0, 1, "have_token")  # always
    e.label("from_prompt")
    e.alu(Op.SHR, "scratch", "position", log2(per))
    e.load_vector((a.prompt, "scratch"), 1, r.prompt, vb(r.prompt, word_rows), comment="prompt ids")
    e.alu(Op.AND, "scratch", "position", per - 1)
    e.alu(Op.SHR, "scratch", "scratch", 3)
    e.read_vector("token", (r.prompt, "scratch"), "position", vb(r.prompt, word_rows))
    e.end_straight()
    e.label("have_token")
    # Embedding row: block of scale word and stripes, stripe in block, row in stripe.
    width_slices = slices(plan.config.width)
    word8 = slice_words(m, 8)
    stripe = width_slices * word8
    e.alu(Op.SHR, "block", "token", log2(per))
    e.alu(Op.MUL, "block", "block", 1 + m.stripes_per_scale_word * stripe)
    e.alu(Op.AND, "row", "token", per - 1)
    scale_rows = per // LANES
    e.load_vector((a.embedding, "block"), 1, r.embedding_scale, vb(r.embedding_scale, scale_rows), comment="embedding scale")
    e.alu(Op.SHR, "scratch", "row", log2(stripe_rows))
    e.alu(Op.MUL, "scratch", "scratch", stripe)
    e.alu(Op.ADD, "block", "block", "scratch")
    e.alu(Op.AND, "scratch", "token", stripe_rows - 1)
    e.alu(Op.SHR, "scratch", "scratch", log2(chunks))
    e.alu(Op.ADD, "block", "block", "scratch")
    e.alu(Op.AND, "chunk", "token", chunks - 1)
    codes = ab(plan.slices.embedding, width_slices)
    e.gather((a.embedding + 1, "block"), width_slices, word8, plan.slices.embedding, "chunk", codes, comment="embedding codes")
    e.alu(Op.SHR, "row", "row", 3)
    e.alu(Op.AND, "scratch", "token", LANES - 1)
    width_rows = rows(plan.config.width)
    e.vec(
        Program.DEQUANT,
        (plan.slices.embedding, (r.embedding_scale, "row"), r.x, 0, plan.config.width, 1, "scratch"),
        reads=(codes, vb(r.embedding_scale, scale_rows)), writes=(vb(r.x, width_rows),),
    )  # fmt: skip
    # RoPE tables of this position.
    e.alu(Op.MUL, "scratch", "position", 2 * a.rope_words)
    table_rows = 2 * a.rope_words * word_rows
    e.load_vector((a.rope, "scratch"), 2 * a.rope_words, r.cos, vb(r.cos, table_rows), comment="rope tables")
    # Lengths of this position: T = position + 1 tokens.
    e.alu(Op.ADD, "length", "position", 1)
    e.alu(Op.SHR, "k_stripes", (stripe_rows - 1, "length"), log2(stripe_rows))
    e.alu(Op.MUL, "k_words", "k_stripes", c.k_stripe_words)
    e.alu(Op.SHR, "s_words", (per - 1, "length"), log2(per))
    e.alu(Op.ADD, "k_words", "k_words", "s_words")
    e.alu(Op.SHR, "v_slices", (BLOCK - 1, "length"), log2(BLOCK))
    e.alu(Op.MUL, "v_words", "v_slices", c.v_slice_words)
    e.alu(Op.SHL, "score_rows", "v_slices", 1)
    e.alu(Op.MUL, "s_rows", "s_words", word_rows)
    # Where this position's key, value and scales go, relative to a layer's cache.
    e.alu(Op.SHR, "scratch", "position", log2(per))
    e.alu(Op.MUL, "k_chunk", "scratch", c.k_block_words * chunks)
    e.alu(Op.MUL, "k_scale", "scratch", c.k_block_words * per)
    e.alu(Op.AND, "scratch", "position", per - 1)
    e.alu(Op.ADD, "k_scale", "k_scale", "scratch")
    e.alu(Op.SHR, "scratch", "scratch", log2(stripe_rows))
    e.alu(Op.MUL, "scratch", "scratch", c.k_stripe_words * chunks)
    e.alu(Op.ADD, "k_chunk", (chunks, "k_chunk"), "scratch")
    e.alu(Op.AND, "scratch", "position", stripe_rows - 1)
    e.alu(Op.ADD, "k_chunk", "k_chunk", "scratch")
    e.alu(Op.SHR, "v_chunk", "position", log2(BLOCK))
    e.alu(Op.MUL, "v_chunk", "v_chunk", stripe_rows)
    e.alu(Op.AND, "v_lane", "position", BLOCK - 1)
    e.set("v_scale", "position")
    e.set("weights", 0)
    e.set("cache", 0)
    e.end_straight()


def _layer_loop(e: Emitter, plan: Plan, a: Addresses) -> None:
    _attention_inputs(e, plan, a)
    _cache_append(e, plan, a)
    _attention(e, plan, a)
    _mlp(e, plan, a)
    m, step = plan.machine, plan.cache.layer_words
    e.alu(Op.ADD, "weights", "weights", a.layer_words)
    e.alu(Op.ADD, "cache", "cache", step)
    e.alu(Op.ADD, "k_chunk", "k_chunk", step * (m.word_bytes // BLOCK))
    e.alu(Op.ADD, "v_chunk", "v_chunk", step * (m.word_bytes // BLOCK))
    e.alu(Op.ADD, "k_scale", "k_scale", step * m.scales_per_word)
    e.alu(Op.ADD, "v_scale", "v_scale", step * m.scales_per_word)
    e.end_loop("layer", "cache", plan.config.layers * step)


def _linear_load(e: Emitter, a: Addresses, name: str) -> None:
    e.load_weights((a.layers + a.linear[name], "weights"), a.linear_size[name], comment=f"load {name}")


def _linear(e: Emitter, plan: Plan, name: str, act: int, scale: int, out: int) -> None:
    """One linear over all its rows; its weights are in the FIFO's order."""
    outputs, inputs = plan.config.linear_shape(name)
    stripes = plan.linear_stripes(outputs)
    out_rows = stripes * plan.machine.stripe_rows // LANES
    e.mv(
        act, out, scale, stripes, slices(inputs), bits=plan.bits[name], scales=True,
        reads=(ab(act, slices(inputs)), vb(scale, 1)), writes=(vb(out, out_rows),), comment=name,
    )  # fmt: skip


def _norm(e: Emitter, plan: Plan, weight_row: int) -> None:
    """h = rmsnorm(x), then its INT8 form and scale."""
    r, width = plan.rows, plan.config.width
    n = rows(width)
    e.vec(
        Program.RMSNORM, (r.x, weight_row, r.h, r.inverse_width, width, 1),
        reads=(vb(r.x, n), vb(weight_row, n), vb(r.inverse_width, 2)), writes=(vb(r.h, n),),
    )  # fmt: skip
    _quantise(e, plan, r.h, width, plan.slices.h, r.s_h, r.one)


def _quantise(e: Emitter, plan: Plan, x: int, n: int, out: int, scale: int, multiplier: int, reps: int = 1) -> None:
    """QUANT of `reps` vectors of n, split into commands of at most MAX_REPS."""
    for first in range(0, reps, MAX_REPS):
        count = min(MAX_REPS, reps - first)
        x0, out0, scale0 = x + first * rows(n), out + first * slices(n), scale + first
        e.vec(
            Program.QUANT, (x0, out0, scale0, multiplier, n, count),
            reads=(vb(x0, count * rows(n)), vb(multiplier, 1)), writes=(ab(out0, count * slices(n)), vb(scale0, count)),
        )  # fmt: skip


def _attention_inputs(e: Emitter, plan: Plan, a: Addresses) -> None:
    r, s, config = plan.rows, plan.slices, plan.config
    hd, heads, kv = config.head_dim, config.heads, config.kv_heads
    word_rows = plan.machine.word_bytes // 32
    norm_rows = a.norm_words * word_rows
    e.load_vector((a.layers + a.norms, "weights"), 2 * a.norm_words, r.norms, vb(r.norms, 2 * norm_rows), comment="norm weights")
    for name in ("q", "k", "v"):
        _linear_load(e, a, name)
    _norm(e, plan, r.norms)
    for name, out in (("q", r.q), ("k", r.k), ("v", r.v)):
        _linear(e, plan, name, s.h, r.s_h, out)
    half = hd // 2
    for x, count in ((r.q, heads), (r.k, kv)):
        for first in range(0, count, MAX_REPS):
            reps, x0 = min(MAX_REPS, count - first), x + first * rows(hd)
            e.vec(
                Program.ROPE, (x0, r.cos, r.sin, 0, half, reps),
                reads=(vb(x0, reps * rows(hd)), vb(r.cos, rows(half)), vb(r.sin, rows(half))), writes=(vb(x0, reps * rows(hd)),),
            )  # fmt: skip
    _quantise(e, plan, r.k, hd, s.k, r.s_k, r.one, kv)
    _quantise(e, plan, r.v, hd, s.v, r.s_v, r.one, kv)
    _quantise(e, plan, r.q, hd, s.q, r.s_q, r.inverse_sqrt_head, heads)


def _cache_append(e: Emitter, plan: Plan, a: Addresses) -> None:
    m, r, s, c, config = plan.machine, plan.rows, plan.slices, plan.cache, plan.config
    chunks, per, head, kv = m.word_bytes // BLOCK, m.scales_per_word, slices(config.head_dim), config.kv_heads
    k_base, v_base, s_base = (a.cache + base for base in (c.k_base, c.v_base, c.s_base))
    e.store(Op.STK, ((k_base * chunks, "k_chunk"), s.k, head, kv, c.k_head_words * chunks), ab(s.k, kv * head), "cache", "append k")
    e.store(Op.STS, ((k_base * per, "k_scale"), r.s_k, kv, 1, c.k_head_words * per), vb(r.s_k, kv), "cache", "append s_k")
    e.store(
        Op.STT, ((v_base * chunks, "v_chunk"), s.v, head, kv, c.v_head_words * chunks, "v_lane", c.v_stripe_words * chunks),
        ab(s.v, kv * head), "cache", "append v",
    )  # fmt: skip
    e.store(Op.STS, ((s_base * per, "v_scale"), r.s_v, kv, 1, c.s_head_words * per), vb(r.s_v, kv), "cache", "append s_v")


def _attention(e: Emitter, plan: Plan, a: Addresses) -> None:
    m, r, s, c, config = plan.machine, plan.rows, plan.slices, plan.cache, plan.config
    hd, heads, kv, group, head = config.head_dim, config.heads, config.kv_heads, plan.group, slices(config.head_dim)
    cached = (memory("cache"),)
    score_rows = heads * rows(plan.context) + m.stripe_rows // LANES
    all_scores = vb(r.scores, score_rows)
    scale_rows = kv * (c.s_head_words * m.word_bytes // 32)
    all_scales = vb(r.value_scales, scale_rows)
    e.load_vector(
        (a.cache + c.s_base, "cache"), "s_words", r.value_scales, all_scales, outer=kv, stride=c.s_head_words, reads=cached,
        comment="value scales",
    )  # fmt: skip
    e.set("out", 0)
    for h in range(heads):
        base = a.cache + c.k_base + h // group * c.k_head_words
        e.load_weights((base, "cache"), "k_words", reads=cached, comment=f"keys of head {h}")
        e.mv(
            s.q + h * head, (r.scores, "out"), r.s_q + h, "k_stripes", head, bits=8, scales=True,
            reads=(ab(s.q + h * head, head), vb(r.s_q + h, 1)), writes=(all_scores,), comment=f"scores of head {h}",
        )  # fmt: skip
        e.alu(Op.ADD, "out", "out", "score_rows")
    e.set("out", 0)
    e.set("p", 0)
    all_p = ab(s.p, heads * slices(plan.context))
    per_command = MAX_REPS // group * group
    e.set("scale_row", 0)
    e.alu(Op.ADD, "softmax", (group << 16, "s_rows"), 0)
    for first in range(0, heads, per_command):
        reps = min(per_command, heads - first)
        e.vec(
            Program.SOFTMAX,
            ((r.scores, "out"), (r.value_scales, "scale_row"), (s.p, "p"), r.s_out + first, "length", reps, "softmax"),
            reads=(all_scores, all_scales), writes=(all_scores, all_p, vb(r.s_out + first, reps)),
        )  # fmt: skip
        if first + reps < heads:
            for register, step, count in (("out", "score_rows", reps), ("p", "v_slices", reps), ("scale_row", "s_rows", reps // group)):
                e.alu(Op.MUL, "scratch", step, count)
                e.alu(Op.ADD, register, register, "scratch")
    e.set("p", 0)
    for h in range(heads):
        base = a.cache + c.v_base + h // group * c.v_head_words
        e.load_weights(
            (base, "cache"), "v_words", outer=hd // m.stripe_rows, stride=c.v_stripe_words, reads=cached, comment=f"values of head {h}"
        )
        out = r.attn + h * hd // LANES
        e.mv(
            (s.p, "p"), out, r.s_out + h, hd // m.stripe_rows, "v_slices", bits=8, scales=False,
            reads=(all_p, vb(r.s_out + h, 1)), writes=(vb(out, hd // LANES),), comment=f"output of head {h}",
        )  # fmt: skip
        e.alu(Op.ADD, "p", "p", "v_slices")
    _linear_load(e, a, "o")
    _quantise(e, plan, r.attn, heads * hd, s.attn, r.s_attn, r.one)
    _linear(e, plan, "o", s.attn, r.s_attn, r.proj)
    _add_residual(e, plan)


def _add_residual(e: Emitter, plan: Plan) -> None:
    r, n = plan.rows, rows(plan.config.width)
    e.vec(
        Program.ADD, (r.x, r.proj, r.x, 0, plan.config.width, 1), reads=(vb(r.x, n), vb(r.proj, n)), writes=(vb(r.x, n),)
    )


def _mlp(e: Emitter, plan: Plan, a: Addresses) -> None:
    m, r, s, config = plan.machine, plan.rows, plan.slices, plan.config
    norm_rows = a.norm_words * m.word_bytes // 32
    _linear_load(e, a, "up")
    _norm(e, plan, r.norms + norm_rows)
    _linear(e, plan, "up", s.h, r.s_h, r.up)
    _linear_load(e, a, "gate")
    step = round_up(SILU_ROWS, m.scales_per_word)
    width_slices = slices(config.width)
    for first in range(0, config.ffn, step):
        count = min(step, config.ffn - first)
        stripes, row = plan.linear_stripes(count), first // LANES
        e.mv(
            s.h, r.gate + row, r.s_h, stripes, width_slices, bits=plan.bits["gate"], scales=True,
            reads=(ab(s.h, width_slices), vb(r.s_h, 1)), writes=(vb(r.gate + row, stripes * m.stripe_rows // LANES),),
            comment=f"gate from {first}",
        )  # fmt: skip
        n = rows(count)
        e.vec(
            Program.SILU_MUL, (r.gate + row, r.up + row, r.y + row, 0, count, 1),
            reads=(vb(r.gate + row, n), vb(r.up + row, n)), writes=(vb(r.y + row, n),),
        )  # fmt: skip
    _linear_load(e, a, "down")
    _quantise(e, plan, r.y, config.ffn, s.y, r.s_y, r.one)
    _linear(e, plan, "down", s.y, r.s_y, r.proj)
    _add_residual(e, plan)


def _lm_head(e: Emitter, plan: Plan, a: Addresses) -> None:
    """Logits of the last prompt position and of every later one, in parts; the best index; tokens and logits to memory."""
    m, r, config = plan.machine, plan.rows, plan.config
    e.branch(Op.BLT, "length", "prompt_length", "next")
    norm_rows = a.norm_words * m.word_bytes // 32
    e.load_vector(a.final_norm, a.norm_words, r.norms, vb(r.norms, norm_rows), comment="final norm")
    _norm(e, plan, r.norms)
    e.set("head", 0)
    e.set("index", 0)
    e.end_straight()
    part = round_up(min(LOGIT_ROWS, config.vocab // 2 or 1), m.scales_per_word)
    pairs = config.vocab // (2 * part)
    if pairs:
        # The first part of all starts argmax anew, so it cannot be in the loop: the flag is part of the instruction.
        for half in range(2):
            _logits(e, plan, a, half, part, first=half == 0)
        e.end_straight()
    if pairs > 1:
        for half in range(2):
            _logits(e, plan, a, half, part, first=False)
        e.end_loop("logits", "index", pairs * 2 * part)
    done = pairs * 2 * part
    for half, first in enumerate(range(done, config.vocab, part)):
        _logits(e, plan, a, half, min(part, config.vocab - first), first=first == 0)
    best = vb(r.best, 1)
    e.read_vector("token", r.best, 0, best)
    e.store(Op.STV, ((a.tokens * m.memory.ports, "token_beat"), r.best, 1), best, "tokens", "token")
    e.alu(Op.ADD, "token_beat", "token_beat", 1)
    e.alu(Op.ADD, "produced", "produced", 1)
    e.end_straight()
    e.mark("produced")


def _logits(e: Emitter, plan: Plan, a: Addresses, half: int, count: int, *, first: bool) -> None:
    """`count` logits from channel `index` on into buffer `half`."""
    m, r, s, config = plan.machine, plan.rows, plan.slices, plan.config
    stripes, width_slices = plan.linear_stripes(count), slices(config.width)
    words = stripes * stripe_words(m, width_slices, 8) + stripes // m.stripes_per_scale_word
    out, out_rows, store_rows = r.logits[half], stripes * m.stripe_rows // LANES, -(-count // LANES)
    e.load_weights((a.lm_head, "head"), words, comment="lm head")
    e.mv(
        s.h, out, r.s_h, stripes, width_slices, bits=8, scales=True, reads=(ab(s.h, width_slices), vb(r.s_h, 1)),
        writes=(vb(out, out_rows),), comment="logits",
    )  # fmt: skip
    e.store(Op.STV, ((a.logits * m.memory.ports, "logit_beat"), out, store_rows), vb(out, store_rows), "logits", "logits")
    e.vec(
        Program.ARGMAX, (out, 0, r.best, 0, count, 1, "index"), reads=(vb(out, rows(count)),), writes=(vb(r.best, 1),), flag=first
    )
    e.alu(Op.ADD, "head", "head", words)
    e.alu(Op.ADD, "index", "index", count)
    e.alu(Op.ADD, "logit_beat", "logit_beat", store_rows)
