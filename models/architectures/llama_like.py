"""Decoders with RMS norms, a gated MLP and grouped KV heads: Llama and those that changed a part of it."""

from __future__ import annotations

from pydantic import Field

from headrace.models.architectures.base import (
    Architecture, Counted, DoesNotFit, Fields, Heads, KvCache, Layers, Size, Tensor, Vocab, embedding, linear, lm_head, rms_norm,
    split_heads,
)


class Llama(Fields):
    vocab_size: Vocab
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads | None = None
    head_dim: Size | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def kv_heads(self) -> int:
        heads = self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads
        if self.num_attention_heads % heads:
            raise DoesNotFit("num_key_value_heads", heads, f"a divisor of num_attention_heads = {self.num_attention_heads}")
        return heads

    @property
    def width_of_head(self) -> int:
        return split_heads(self.hidden_size, self.num_attention_heads) if self.head_dim is None else self.head_dim


class Mistral(Llama):
    num_key_value_heads: Heads | None = 8


class Qwen2(Llama):
    num_key_value_heads: Heads | None = 32


class Qwen3(Llama):
    num_key_value_heads: Heads | None = 32
    head_dim: Size | None = 128


class Qwen3Moe(Llama):
    num_key_value_heads: Heads | None = 4
    moe_intermediate_size: Size
    num_experts: Size
    num_experts_per_tok: Size
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] | None = Field(default=None, max_length=1024)


class Mixtral(Llama):
    num_key_value_heads: Heads | None = 8
    num_local_experts: Size
    num_experts_per_tok: Size


class Gemma(Llama):
    num_key_value_heads: Heads | None = 4
    head_dim: Size | None = 256
    tie_word_embeddings: bool = True


class Phi3(Llama):
    pass


def _attention(c: Llama, *, qkv_bias: bool, o_bias: bool) -> list[Tensor]:
    head, n = c.width_of_head, c.num_hidden_layers
    q, kv = c.num_attention_heads * head, c.kv_heads * head
    return [
        *linear("layers.q", q, c.hidden_size, copies=n, bias=qkv_bias),
        *linear("layers.k", kv, c.hidden_size, copies=n, bias=qkv_bias),
        *linear("layers.v", kv, c.hidden_size, copies=n, bias=qkv_bias),
        *linear("layers.o", c.hidden_size, q, copies=n, bias=o_bias),
    ]


def _mlp(c: Llama, layers: int, *, bias: bool = False) -> list[Tensor]:
    width, ffn = c.hidden_size, c.intermediate_size
    return [
        *linear("layers.gate", ffn, width, copies=layers, bias=bias), *linear("layers.up", ffn, width, copies=layers, bias=bias),
        *linear("layers.down", width, ffn, copies=layers, bias=bias),
    ]


def _experts(c: Llama, layers: int, ffn: int, experts: int, active: int) -> list[Tensor]:
    """A router over `experts` gated MLPs, of which a token takes `active`."""
    if active > experts:
        raise DoesNotFit("num_experts_per_tok", active, f"1 to the {experts} experts")
    width = c.hidden_size
    shapes = {"gate": (ffn, width), "up": (ffn, width), "down": (width, ffn)}
    return linear("layers.router", experts, width, copies=layers) + [
        Tensor(name=f"layers.experts.{name}", shape=shape, kind="linear", copies=layers, experts=experts, active=active)
        for name, shape in shapes.items()
    ]


def _decoder(c: Llama, inner: list[Tensor], *, norms: int = 2, head_norms: bool = False) -> Counted:
    """Embedding, layers of `inner` with `norms` norms (and those of query and key), last norm, LM head."""
    n, width = c.num_hidden_layers, c.hidden_size
    tensors = [*embedding("embedding", c.vocab_size, width), *inner]
    tensors += [tensor for i in range(norms) for tensor in rms_norm(f"layers.norm{i}", width, copies=n)]
    if head_norms:
        tensors += rms_norm("layers.q_norm", c.width_of_head, copies=n) + rms_norm("layers.k_norm", c.width_of_head, copies=n)
    tensors += rms_norm("final_norm", width) + lm_head(c.vocab_size, width, c.tie_word_embeddings)
    return Counted(tensors=tuple(tensors), kv=KvCache(layers=n, kv_heads=c.kv_heads, head_dim=c.width_of_head))


def llama(c: Llama) -> Counted:
    inner = _attention(c, qkv_bias=c.attention_bias, o_bias=c.attention_bias) + _mlp(c, c.num_hidden_layers, bias=c.mlp_bias)
    return _decoder(c, inner)


def mistral(c: Mistral) -> Counted:
    return _decoder(c, _attention(c, qkv_bias=False, o_bias=False) + _mlp(c, c.num_hidden_layers))


def qwen2(c: Qwen2) -> Counted:
    return _decoder(c, _attention(c, qkv_bias=True, o_bias=False) + _mlp(c, c.num_hidden_layers))


def qwen3(c: Qwen3) -> Counted:
    inner = _attention(c, qkv_bias=c.attention_bias, o_bias=c.attention_bias) + _mlp(c, c.num_hidden_layers)
    return _decoder(c, inner, head_norms=True)


def qwen3_moe(c: Qwen3Moe) -> Counted:
    dense_only = set(c.mlp_only_layers or ())
    sparse = sum(i not in dense_only and (i + 1) % c.decoder_sparse_step == 0 for i in range(c.num_hidden_layers))
    inner = _attention(c, qkv_bias=c.attention_bias, o_bias=c.attention_bias)
    if sparse:
        inner += _experts(c, sparse, c.moe_intermediate_size, c.num_experts, c.num_experts_per_tok)
    if sparse < c.num_hidden_layers:
        inner += _mlp(c, c.num_hidden_layers - sparse)
    return _decoder(c, inner, head_norms=True)


def mixtral(c: Mixtral) -> Counted:
    inner = _attention(c, qkv_bias=False, o_bias=False)
    inner += _experts(c, c.num_hidden_layers, c.intermediate_size, c.num_local_experts, c.num_experts_per_tok)
    return _decoder(c, inner)


def gemma2(c: Gemma) -> Counted:
    """Norms before and after both halves of a layer."""
    inner = _attention(c, qkv_bias=c.attention_bias, o_bias=c.attention_bias) + _mlp(c, c.num_hidden_layers)
    return _decoder(c, inner, norms=4)


def gemma3(c: Gemma) -> Counted:
    inner = _attention(c, qkv_bias=c.attention_bias, o_bias=c.attention_bias) + _mlp(c, c.num_hidden_layers)
    return _decoder(c, inner, norms=4, head_norms=True)


def phi3(c: Phi3) -> Counted:
    """Query, key and value in one linear, gate and up in another."""
    head, n, width = c.width_of_head, c.num_hidden_layers, c.hidden_size
    inner = [
        *linear("layers.qkv", (c.num_attention_heads + 2 * c.kv_heads) * head, width, copies=n),
        *linear("layers.o", width, c.num_attention_heads * head, copies=n),
        *linear("layers.gate_up", 2 * c.intermediate_size, width, copies=n),
        *linear("layers.down", width, c.intermediate_size, copies=n),
    ]
    return _decoder(c, inner)


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(fields=Llama, count=llama),
    "MistralForCausalLM": Architecture(fields=Mistral, count=mistral),
    "Qwen2ForCausalLM": Architecture(fields=Qwen2, count=qwen2),
    "Qwen3ForCausalLM": Architecture(fields=Qwen3, count=qwen3),
    "Qwen3MoeForCausalLM": Architecture(fields=Qwen3Moe, count=qwen3_moe),
    "MixtralForCausalLM": Architecture(fields=Mixtral, count=mixtral),
    "Gemma2ForCausalLM": Architecture(fields=Gemma, count=gemma2),
    "Gemma3ForCausalLM": Architecture(fields=Gemma, count=gemma3),
    "Phi3ForCausalLM": Architecture(fields=Phi3, count=phi3),
}
