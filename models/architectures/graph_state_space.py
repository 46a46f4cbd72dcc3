"""Operator graphs of Mamba (Gu and Dao 2023, algorithm 2) and RWKV 4 (Peng et al. 2023, sections 3.1 to 3.3); sizes are those of `state_space`."""

from __future__ import annotations

from headrace.models.architectures import state_space as sizes
from headrace.models.graph import LOGITS, TOKENS
from headrace.models.operators import Builder, OperatorGraph


def mamba_mixer(
    b: Builder, h: str, width: int, inner: int, state: int, kernel: int, rank: int, *, bias: bool = False, conv_bias: bool = True
) -> str:
    """Input projection, convolution, selective scan, gate, output projection. Its state: `kernel` - 1 inputs and `state` values a channel."""
    both = b.linear("in", h, 2 * inner, width, bias=bias)
    taps = b.tensor("conv", inner, kernel, kind="conv")
    weights = (taps, b.tensor("conv.bias", inner, kind="bias")) if conv_bias else (taps,)
    x = b.add("conv", "conv", (both,), (TOKENS, inner), weights, state=inner * (kernel - 1))
    x = b.vector("silu", "conv_silu", (x,), inner)
    select = b.linear("x", x, rank + 2 * state, inner)
    dt = b.vector("softplus", "softplus", (b.linear("dt", select, inner, rank, bias=True),), inner)
    weights = (b.tensor("a_log", inner, state), b.tensor("d", inner))
    y = b.add("selective_scan", "scan", (x, dt, select), (inner, TOKENS, state), weights, state=inner * state)
    y = b.vector("silu_mul", "gate_mul", (both, y), inner)
    return b.linear("out", y, width, inner, bias=bias)


def mamba(name: str, architecture: str, c: sizes.Mamba) -> OperatorGraph:
    b, width = Builder(name, architecture), c.hidden_size
    rank = -(-width // 16) if c.time_step_rank == "auto" else c.time_step_rank
    x = b.embedding("embedding", c.vocab_size, width)
    for b.layer in range(c.num_hidden_layers):
        h = b.norm("norm", x, width)
        delta = mamba_mixer(
            b, h, width, c.expand * width, c.state_size, c.conv_kernel, rank, bias=c.use_bias, conv_bias=c.use_conv_bias,
        )  # fmt: skip
        x = b.vector("add", "add", (x, delta), width)
    b.layer = -1
    b.head(b.norm("final_norm", x, width, rows=LOGITS), width, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.num_hidden_layers)


def rwkv(name: str, architecture: str, c: sizes.Rwkv) -> OperatorGraph:
    """Time mixing keeps a numerator, a denominator and a running maximum a channel; both mixings keep the token before."""
    b, width = Builder(name, architecture), c.hidden_size
    attention = width if c.attention_hidden_size is None else c.attention_hidden_size
    ffn = 4 * width if c.intermediate_size is None else c.intermediate_size
    x = b.embedding("embedding", c.vocab_size, width)
    x = b.norm("first_norm", x, width, layer_norm=True)
    for b.layer in range(c.num_hidden_layers):
        h = b.norm("norm0", x, width, layer_norm=True)
        mixed = b.add("token_shift", "time_shift", (h,), (3, TOKENS, width), (b.tensor("time_mixes", 5, width),), state=width)
        parts = b.add("quantise", "quantise_time_shift", (mixed,), (3, TOKENS, width))
        k, v, r = (
            b.add("linear", part, (parts,), (TOKENS, attention), (b.tensor(part, attention, width, kind="linear"),))
            for part in ("key", "value", "receptance")
        )
        weights = (b.tensor("time_decay_and_first", 2, attention),)
        y = b.add("wkv", "wkv", (k, v), (TOKENS, attention), weights, state=3 * attention)
        y = b.vector("sigmoid_mul", "receptance_mul", (r, y), attention)
        x = b.vector("add", "attn_add", (x, b.linear("output", y, width, attention)), width)
        h = b.norm("norm1", x, width, layer_norm=True)
        mixed = b.add("token_shift", "channel_shift", (h,), (2, TOKENS, width), state=width)
        parts = b.add("quantise", "quantise_channel_shift", (mixed,), (2, TOKENS, width))
        key = b.add("linear", "ffn_key", (parts,), (TOKENS, ffn), (b.tensor("ffn_key", ffn, width, kind="linear"),))
        r = b.add("linear", "ffn_receptance", (parts,), (TOKENS, width), (b.tensor("ffn_receptance", width, width, kind="linear"),))
        value = b.linear("ffn_value", b.vector("relu_squared", "relu_squared", (key,), ffn), width, ffn)
        x = b.vector("add", "ffn_add", (x, b.vector("sigmoid_mul", "ffn_gate", (r, value), width)), width)
    b.layer = -1
    b.head(b.norm("final_norm", x, width, layer_norm=True, rows=LOGITS), width, c.vocab_size, tied=c.tie_word_embeddings)
    return b.finish(c.num_hidden_layers)


GRAPHS = {"MambaForCausalLM": (sizes.Mamba, mamba), "RwkvForCausalLM": (sizes.Rwkv, rwkv)}
