"""The operator graph of a `DecoderConfig`: of a name of configs/models or a GGUF file, which have no config.json."""

from __future__ import annotations

from headrace.models.decoder import DecoderConfig
from headrace.models.graph import LOGITS
from headrace.models.masks import Mask
from headrace.models.operators import Builder, OperatorGraph

DECODER = "decoder-only transformer"
"""Architecture of what is no plain Llama: such a config has sizes and operators, but no name of a published class."""

_FUNCTIONS = {"silu": "silu", "gelu_tanh": "gelu", "relu": "relu"}
"""Activation of a config -> kind of operator."""


def graph_of_config(config: DecoderConfig) -> OperatorGraph:
    """Linears of query, key and value apart, as `config` has them."""
    c = config
    architecture = "LlamaForCausalLM" if c.plain_llama else DECODER
    b, layer_norm = Builder(c.name, architecture), c.norm == "layernorm"
    x = b.embedding("embedding", c.vocab, c.width)
    if c.embedding_scale != 1:
        x = b.vector("scale", "embedding_scale", (x,), c.width)
    if c.positions == "learned":
        table = b.embedding("positions", c.max_positions + c.position_offset, c.width)
        x = b.vector("add", "positions_add", (x, table), c.width)
    for b.layer in range(c.layers):
        delta = _attention(b, c, b.norm("attn_norm", x, c.width, layer_norm=layer_norm))
        x = _added(b, c, "attn", x, delta, layer_norm)
        delta = _mlp(b, c, b.norm("mlp_norm", x, c.width, layer_norm=layer_norm))
        x = _added(b, c, "mlp", x, delta, layer_norm)
    b.layer = -1
    h = b.norm("final_norm", x, c.width, layer_norm=layer_norm, rows=LOGITS)
    b.head(h, c.width, c.vocab, tied=c.tie_embeddings, softcap=c.logit_cap is not None)
    return b.finish(c.layers, max_positions=c.max_positions)


def _linear(b: Builder, c: DecoderConfig, name: str, x: str) -> str:
    return b.linear(name, x, *c.linear_shape(name), bias=name in c.biases)


def _attention(b: Builder, c: DecoderConfig, h: str) -> str:
    q, k, v = (_linear(b, c, name, h) for name in "qkv")
    if c.qk_norm:
        q, k = b.head_norm("q_norm", q, c.heads, c.head_dim), b.head_norm("k_norm", k, c.kv_heads, c.head_dim)
    attended = b.attention(
        q, k, v, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, mask=Mask(window=c.window_of(b.layer)),
        rope=c.head_dim if c.positions == "rope" else 0, softcap=c.score_cap is not None,
    )  # fmt: skip
    return _linear(b, c, "o", attended)


def _mlp(b: Builder, c: DecoderConfig, h: str) -> str:
    up, function = _linear(b, c, "up", h), _FUNCTIONS[c.activation]
    if not c.gated:
        return _linear(b, c, "down", b.vector(function, function, (up,), c.ffn))
    return _linear(b, c, "down", b.gated(function, _linear(b, c, "gate", h), up, c.ffn))


def _added(b: Builder, c: DecoderConfig, half: str, x: str, delta: str, layer_norm: bool) -> str:
    if c.post_norms:
        delta = b.norm(f"post_{half}_norm", delta, c.width, layer_norm=layer_norm)
    return b.vector("add", f"{half}_add", (x, delta), c.width)
