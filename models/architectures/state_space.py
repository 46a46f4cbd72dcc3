"""Models whose state has a fixed size, so that no token adds to a cache: Mamba, RWKV 4."""

from __future__ import annotations

from typing import Literal

from headrace.models.architectures.base import (
    Architecture, Counted, Fields, Layers, Size, Tensor, Vocab, embedding, layer_norm, linear, lm_head, rms_norm,
)


class Mamba(Fields):
    vocab_size: Vocab
    hidden_size: Size
    num_hidden_layers: Layers
    state_size: Size = 16
    expand: Size = 2
    conv_kernel: Size = 4
    time_step_rank: Size | Literal["auto"] = "auto"
    use_bias: bool = False
    use_conv_bias: bool = True
    tie_word_embeddings: bool = True


class Rwkv(Fields):
    vocab_size: Vocab
    hidden_size: Size
    num_hidden_layers: Layers
    attention_hidden_size: Size | None = None
    intermediate_size: Size | None = None
    tie_word_embeddings: bool = False


def mamba(c: Mamba) -> Counted:
    n, width, inner = c.num_hidden_layers, c.hidden_size, c.expand * c.hidden_size
    rank = -(-width // 16) if c.time_step_rank == "auto" else c.time_step_rank
    tensors = [
        *embedding("embedding", c.vocab_size, width), *rms_norm("layers.norm", width, copies=n),
        *linear("layers.in", 2 * inner, width, copies=n, bias=c.use_bias),
        Tensor(name="layers.conv", shape=(inner, c.conv_kernel), kind="conv", copies=n),
        *([Tensor(name="layers.conv.bias", shape=(inner,), kind="bias", copies=n)] if c.use_conv_bias else []),
        *linear("layers.x", rank + 2 * c.state_size, inner, copies=n), *linear("layers.dt", inner, rank, copies=n, bias=True),
        Tensor(name="layers.a_log", shape=(inner, c.state_size), kind="other", copies=n),
        Tensor(name="layers.d", shape=(inner,), kind="other", copies=n),
        *linear("layers.out", width, inner, copies=n, bias=c.use_bias),
        *rms_norm("final_norm", width), *lm_head(c.vocab_size, width, c.tie_word_embeddings),
    ]
    return Counted(tensors=tuple(tensors), kv=None)


def rwkv(c: Rwkv) -> Counted:
    """Time mixing (decay, bonus, three mixes) and channel mixing (two mixes); the first layer has a norm more."""
    n, width = c.num_hidden_layers, c.hidden_size
    attention = width if c.attention_hidden_size is None else c.attention_hidden_size
    ffn = 4 * width if c.intermediate_size is None else c.intermediate_size
    tensors = [
        *embedding("embedding", c.vocab_size, width), *layer_norm("first_norm", width),
        *layer_norm("layers.norm0", width, copies=n), *layer_norm("layers.norm1", width, copies=n),
        Tensor(name="layers.time_decay_and_first", shape=(2, attention), kind="other", copies=n),
        Tensor(name="layers.time_mixes", shape=(5, width), kind="other", copies=n),
        *linear("layers.key", attention, width, copies=n), *linear("layers.value", attention, width, copies=n),
        *linear("layers.receptance", attention, width, copies=n), *linear("layers.output", width, attention, copies=n),
        *linear("layers.ffn_key", ffn, width, copies=n), *linear("layers.ffn_receptance", width, width, copies=n),
        *linear("layers.ffn_value", width, ffn, copies=n),
        *layer_norm("final_norm", width), *lm_head(c.vocab_size, width, c.tie_word_embeddings),
    ]
    return Counted(tensors=tuple(tensors), kv=None)


ARCHITECTURES = {
    "MambaForCausalLM": Architecture(fields=Mamba, count=mamba),
    "RwkvForCausalLM": Architecture(fields=Rwkv, count=rwkv),
}
