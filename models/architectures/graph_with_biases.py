"""Operator graphs of transformers with layer norms and ungated MLPs; sizes are those of `transformers_with_biases`."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from headrace.models.architectures import transformers_with_biases as sizes
from headrace.models.architectures.base import Size, Tensor, split_heads
from headrace.models.architectures.graph_llama_like import FUNCTION_OF, Activation
from headrace.models.graph import LOGITS, TOKENS
from headrace.models.masks import Mask
from headrace.models.operators import Builder, OperatorGraph


class Gpt2(sizes.Gpt2):
    activation_function: Activation = "gelu_new"


class Opt(sizes.Opt):
    activation_function: Activation = "relu"


class Falcon(sizes.Falcon):
    alibi: bool = False
    activation: Activation = "gelu"
    max_position_embeddings: Size | None = None


class GptNeoX(sizes.GptNeoX):
    hidden_act: Activation = "gelu"
    rotary_pct: float = Field(default=0.25, ge=0, le=1, validation_alias=AliasChoices("rotary_pct", "partial_rotary_factor"))
    use_parallel_residual: bool = True
    max_position_embeddings: Size | None = None


class Bert(sizes.Bert):
    hidden_act: Activation = "gelu"


def _mlp(b: Builder, h: str, width: int, ffn: int, act: str, bias: bool = True) -> str:
    up = b.linear("up", h, ffn, width, bias=bias)
    function = FUNCTION_OF[act]
    return b.linear("down", b.vector(function, function, (up,), ffn), width, ffn, bias=bias)


def _add(b: Builder, name: str, x: str, delta: str, width: int) -> str:
    return b.vector("add", name, (x, delta), width)


def _learned_positions(b: Builder, x: str, rows: int, width: int) -> str:
    return _add(b, "positions_add", x, b.embedding("positions", rows, width), width)


def gpt2(name: str, architecture: str, c: Gpt2) -> OperatorGraph:
    b, width, heads = Builder(name, architecture), c.n_embd, c.n_head
    ffn = 4 * width if c.n_inner is None else c.n_inner
    x = _learned_positions(b, b.embedding("embedding", c.vocab_size, width), c.n_positions, width)
    for b.layer in range(c.n_layer):
        qkv = b.linear("qkv", b.norm("norm0", x, width, layer_norm=True), 3 * width, width, bias=True)
        attended = b.attention(qkv, qkv, qkv, heads=heads, kv_heads=heads, head_dim=split_heads(width, heads, "n_embd"), mask=Mask())
        x = _add(b, "attn_add", x, b.linear("o", attended, width, width, bias=True), width)
        x = _add(b, "mlp_add", x, _mlp(b, b.norm("norm1", x, width, layer_norm=True), width, ffn, c.activation_function), width)
    b.layer = -1
    b.head(b.norm("final_norm", x, width, layer_norm=True, rows=LOGITS), width, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.n_layer, max_positions=c.n_positions)


def opt(name: str, architecture: str, c: Opt) -> OperatorGraph:
    """Norms stand before each half, or (opt-350m) after its addition."""
    b, width, heads, bias = Builder(name, architecture), c.hidden_size, c.num_attention_heads, c.enable_bias
    narrow = width if c.word_embed_proj_dim is None else c.word_embed_proj_dim

    def norm(label: str, x: str, rows=TOKENS) -> str:
        return b.norm(label, x, width, layer_norm=True, affine=c.layer_norm_elementwise_affine, rows=rows)

    x = b.embedding("embedding", c.vocab_size, narrow)
    if narrow != width:
        x = b.linear("project_in", x, width, narrow)
    x = _learned_positions(b, x, c.max_position_embeddings + 2, width)
    before = c.do_layer_norm_before
    for b.layer in range(c.num_hidden_layers):
        h = norm("norm0", x) if before else x
        q, k, v = (b.linear(part, h, width, width, bias=bias) for part in "qkv")
        attended = b.attention(q, k, v, heads=heads, kv_heads=heads, head_dim=split_heads(width, heads), mask=Mask())
        x = _add(b, "attn_add", x, b.linear("o", attended, width, width, bias=bias), width)
        x = x if before else norm("norm0", x)
        x = _add(b, "mlp_add", x, _mlp(b, norm("norm1", x) if before else x, width, c.ffn_dim, c.activation_function, bias), width)
        x = x if before else norm("norm1", x)
    b.layer = -1
    if before and not c.remove_final_layer_norm:
        x = norm("final_norm", x, LOGITS)
    if narrow != width:
        x = b.linear("project_out", x, narrow, width, rows=LOGITS)
    b.head(x, narrow, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.num_hidden_layers, max_positions=c.max_position_embeddings)


def bloom(name: str, architecture: str, c: sizes.Bloom) -> OperatorGraph:
    """Positions are a slope on the scores (ALiBi, Press et al. 2022)."""
    b, width, heads = Builder(name, architecture), c.hidden_size, c.n_head
    x = b.norm("embedding_norm", b.embedding("embedding", c.vocab_size, width), width, layer_norm=True)
    for b.layer in range(c.n_layer):
        qkv = b.linear("qkv", b.norm("norm0", x, width, layer_norm=True), 3 * width, width, bias=True)
        attended = b.attention(qkv, qkv, qkv, heads=heads, kv_heads=heads, head_dim=split_heads(width, heads), mask=Mask(), alibi=True)
        x = _add(b, "attn_add", x, b.linear("o", attended, width, width, bias=True), width)
        x = _add(b, "mlp_add", x, _mlp(b, b.norm("norm1", x, width, layer_norm=True), width, 4 * width, "gelu_new"), width)
    b.layer = -1
    b.head(b.norm("final_norm", x, width, layer_norm=True, rows=LOGITS), width, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.n_layer)


def falcon(name: str, architecture: str, c: Falcon) -> OperatorGraph:
    """Attention and MLP side by side on one norm, or each on its own (`parallel_attn`, `new_decoder_architecture`)."""
    b, width, heads, bias = Builder(name, architecture), c.hidden_size, c.num_attention_heads, c.bias
    kv_heads = sizes.falcon(c).kv.kv_heads
    head = split_heads(width, heads)
    ffn = 4 * width if c.ffn_hidden_size is None else c.ffn_hidden_size
    own_norms = 2 if c.num_ln_in_parallel_attn is None else c.num_ln_in_parallel_attn
    two_norms = c.new_decoder_architecture and own_norms == 2
    x = b.embedding("embedding", c.vocab_size, width)
    for b.layer in range(c.num_hidden_layers):
        h = b.norm("norm0", x, width, layer_norm=True)
        qkv = b.linear("qkv", h, width + 2 * kv_heads * head, width, bias=bias)
        attended = b.attention(
            qkv, qkv, qkv, heads=heads, kv_heads=kv_heads, head_dim=head, mask=Mask(), rope=0 if c.alibi else head, alibi=c.alibi,
        )  # fmt: skip
        delta = b.linear("o", attended, width, width, bias=bias)
        if not c.parallel_attn:
            x = _add(b, "attn_add", x, delta, width)
        if not c.parallel_attn or two_norms:
            h = b.norm("norm1", x, width, layer_norm=True)
        inner = _mlp(b, h, width, ffn, c.activation, bias)
        if c.parallel_attn:
            inner = _add(b, "attn_add", inner, delta, width)
        x = _add(b, "mlp_add", x, inner, width)
    b.layer = -1
    b.head(b.norm("final_norm", x, width, layer_norm=True, rows=LOGITS), width, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.num_hidden_layers, max_positions=c.max_position_embeddings)


def gpt_neox(name: str, architecture: str, c: GptNeoX) -> OperatorGraph:
    """A share `rotary_pct` of each head is turned; attention and MLP side by side unless `use_parallel_residual` is off."""
    b, width, heads = Builder(name, architecture), c.hidden_size, c.num_attention_heads
    head = split_heads(width, heads)
    x = b.embedding("embedding", c.vocab_size, width)
    for b.layer in range(c.num_hidden_layers):
        qkv = b.linear("qkv", b.norm("norm0", x, width, layer_norm=True), 3 * width, width, bias=c.attention_bias)
        attended = b.attention(
            qkv, qkv, qkv, heads=heads, kv_heads=heads, head_dim=head, mask=Mask(), rope=int(head * c.rotary_pct) // 2 * 2,
        )  # fmt: skip
        delta = b.linear("o", attended, width, width, bias=c.attention_bias)
        after = _add(b, "attn_add", x, delta, width)
        inner = _mlp(b, b.norm("norm1", x if c.use_parallel_residual else after, width, layer_norm=True), width, c.intermediate_size, c.hidden_act)
        x = _add(b, "mlp_add", after, inner, width)
    b.layer = -1
    b.head(b.norm("final_norm", x, width, layer_norm=True, rows=LOGITS), width, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.num_hidden_layers, max_positions=c.max_position_embeddings)


def bert(name: str, architecture: str, c: Bert) -> OperatorGraph:
    """Norms after each addition; every position sees all; the head runs at every position that logits are asked for."""
    b, width, heads = Builder(name, architecture), c.hidden_size, c.num_attention_heads
    x = _learned_positions(b, b.embedding("embedding", c.vocab_size, width), c.max_position_embeddings, width)
    x = _add(b, "token_types_add", x, b.embedding("token_types", c.type_vocab_size, width), width)
    x = b.norm("embedding_norm", x, width, layer_norm=True)
    for b.layer in range(c.num_hidden_layers):
        q, k, v = (b.linear(part, x, width, width, bias=True) for part in "qkv")
        attended = b.attention(
            q, k, v, heads=heads, kv_heads=heads, head_dim=split_heads(width, heads), mask=Mask(causal=False), cached=True,
        )  # fmt: skip
        x = b.norm("norm0", _add(b, "attn_add", x, b.linear("o", attended, width, width, bias=True), width), width, layer_norm=True)
        x = b.norm("norm1", _add(b, "mlp_add", x, _mlp(b, x, width, c.intermediate_size, c.hidden_act), width), width, layer_norm=True)
    b.layer = -1
    dense = b.linear("head.dense", x, width, width, bias=True, rows=LOGITS)
    h = b.norm("head.norm", b.vector(FUNCTION_OF[c.hidden_act], "head.act", (dense,), width, LOGITS), width, layer_norm=True, rows=LOGITS)
    weight = Tensor(name="lm_head", shape=(c.vocab_size, width), kind="linear", tied=c.tie_word_embeddings)
    logits = b.add("lm_head", "lm_head", (b.quantise(h, (LOGITS, width)),), (LOGITS, c.vocab_size), (weight,))
    b.add("argmax", "argmax", (b.bias("lm_head", logits, c.vocab_size, LOGITS),), (LOGITS, c.vocab_size))
    return b.finish(c.num_hidden_layers, max_positions=c.max_position_embeddings, encoder=True)


GRAPHS = {
    "GPT2LMHeadModel": (Gpt2, gpt2),
    "OPTForCausalLM": (Opt, opt),
    "BloomForCausalLM": (sizes.Bloom, bloom),
    "FalconForCausalLM": (Falcon, falcon),
    "GPTNeoXForCausalLM": (GptNeoX, gpt_neox),
    "BertForMaskedLM": (Bert, bert),
}
