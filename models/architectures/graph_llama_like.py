"""Operator graphs of decoders with RMS norms and a gated MLP. The sizes are those of `llama_like`; here come the fields that decide
what attends to what, with the names and defaults of the published classes."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from headrace.models.architectures import llama_like as sizes
from headrace.models.architectures.base import DoesNotFit, Size
from headrace.models.masks import Mask
from headrace.models.operators import Builder, OperatorGraph

Activation = Literal["silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu"]
FUNCTION_OF = {
    "silu": "silu", "swish": "silu", "gelu": "gelu_erf", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu",
}
"""Name in a config.json -> kind of operator; gelu is that of erf, the others its approximation by tanh."""

LayerType = Literal["full_attention", "sliding_attention"]
LayerTypes = list[LayerType]


class Llama(sizes.Llama):
    hidden_act: Activation = "silu"
    max_position_embeddings: Size | None = None

    def window(self, layer: int) -> int | None:
        """Keys that the layer's attention reaches back, itself included; None for all."""
        return None


class _Windowed(Llama):
    """Every layer has the window. A `layer_types` is not asked for, as the published classes do not ask."""

    sliding_window: Size | None = None

    def window(self, layer: int) -> int | None:
        return self.sliding_window


class _WindowedByLayer(_Windowed):
    """Those layers have the window that `layer_types` says, without it those that `slides` says."""

    layer_types: LayerTypes | None = Field(default=None, max_length=1024)

    def slides(self, layer: int) -> bool:
        raise NotImplementedError

    def window(self, layer: int) -> int | None:
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise DoesNotFit("layer_types", f"{len(types)} entries", f"one for each of the {self.num_hidden_layers} layers")
        slides = self.slides(layer) if types is None else types[layer] == "sliding_attention"
        return self.sliding_window if slides else None


class Mistral(sizes.Mistral, _Windowed):
    sliding_window: Size | None = 4096


class Mixtral(sizes.Mixtral, _Windowed):
    pass


class Phi3(sizes.Phi3, _Windowed):
    pass


class _Qwen(_WindowedByLayer):
    use_sliding_window: bool = False
    sliding_window: Size | None = 4096
    max_window_layers: int = Field(default=28, ge=0, le=1024)

    def slides(self, layer: int) -> bool:
        return layer >= self.max_window_layers

    def window(self, layer: int) -> int | None:
        return super().window(layer) if self.use_sliding_window else None


class Qwen2(sizes.Qwen2, _Qwen):
    pass


class Qwen3(sizes.Qwen3, _Qwen):
    pass


class Qwen3Moe(sizes.Qwen3Moe, _Windowed):
    use_sliding_window: bool = False
    sliding_window: Size | None = 4096

    def window(self, layer: int) -> int | None:
        return super().window(layer) if self.use_sliding_window else None


class _Gemma(_WindowedByLayer):
    hidden_act: Activation = Field(default="gelu_pytorch_tanh", alias="hidden_activation")
    sliding_window: Size | None = 4096
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None


class Gemma2(sizes.Gemma, _Gemma):
    """Every second layer sees everything, the first does not."""

    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0


class Gemma3(sizes.Gemma, _Gemma):
    """One layer of `sliding_window_pattern` sees everything: five local ones to a global one (Gemma 3 report, section 2)."""

    sliding_window_pattern: Size = Field(default=6, validation_alias=AliasChoices("sliding_window_pattern", "_sliding_window_pattern"))

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0


def mlp(b: Builder, h: str, width: int, ffn: int, act: str, *, bias: bool = False) -> str:
    up = b.linear("up", h, ffn, width, bias=bias)
    gate = b.linear("gate", h, ffn, width, bias=bias)
    return b.linear("down", b.gated(FUNCTION_OF[act], gate, up, ffn), width, ffn, bias=bias)


def attention(
    b: Builder, c: Llama, h: str, *, qkv_bias: bool = False, o_bias: bool = False, head_norms: bool = False, softcap: bool = False,
    fused: bool = False,
) -> str:
    head = c.width_of_head
    q_width, kv_width = c.num_attention_heads * head, c.kv_heads * head
    if fused:
        q = k = v = b.linear("qkv", h, q_width + 2 * kv_width, c.hidden_size)
    else:
        q = b.linear("q", h, q_width, c.hidden_size, bias=qkv_bias)
        k = b.linear("k", h, kv_width, c.hidden_size, bias=qkv_bias)
        v = b.linear("v", h, kv_width, c.hidden_size, bias=qkv_bias)
    if head_norms:
        q, k = b.head_norm("q_norm", q, c.num_attention_heads, head), b.head_norm("k_norm", k, c.kv_heads, head)
    attended = b.attention(
        q, k, v, heads=c.num_attention_heads, kv_heads=c.kv_heads, head_dim=head, mask=Mask(window=c.window(b.layer)), rope=head,
        softcap=softcap,
    )  # fmt: skip
    return b.linear("o", attended, c.hidden_size, q_width, bias=o_bias)


def _decoder(name: str, architecture: str, c: Llama, inner, *, four_norms: bool = False, scaled: bool = False, **how) -> OperatorGraph:
    """Embedding, layers, last norm, head. inner(b, h): what a layer's second half computes. four_norms: each half's output is normed as well."""
    b, width = Builder(name, architecture), c.hidden_size
    x = b.embedding("embedding", c.vocab_size, width)
    if scaled:
        x = b.vector("scale", "embedding_scale", (x,), width)
    for b.layer in range(c.num_hidden_layers):
        delta = attention(b, c, b.norm("norm0", x, width), **how)
        if four_norms:
            delta = b.norm("norm1", delta, width)
        x = b.vector("add", "attn_add", (x, delta), width)
        delta = inner(b, b.norm("norm2" if four_norms else "norm1", x, width))
        if four_norms:
            delta = b.norm("norm3", delta, width)
        x = b.vector("add", "mlp_add", (x, delta), width)
    b.layer = -1
    h = b.norm("final_norm", x, width, rows="logits")
    b.head(h, width, c.vocab_size, tied=c.tie_word_embeddings, softcap=getattr(c, "final_logit_softcapping", None) is not None)
    return b.finish(c.num_hidden_layers, max_positions=c.max_position_embeddings)


def _plain_mlp(c: Llama, bias: bool = False):
    return lambda b, h: mlp(b, h, c.hidden_size, c.intermediate_size, c.hidden_act, bias=bias)


def llama(name: str, architecture: str, c: Llama) -> OperatorGraph:
    return _decoder(name, architecture, c, _plain_mlp(c, c.mlp_bias), qkv_bias=c.attention_bias, o_bias=c.attention_bias)


def mistral(name: str, architecture: str, c: Mistral) -> OperatorGraph:
    return _decoder(name, architecture, c, _plain_mlp(c))


def qwen2(name: str, architecture: str, c: Qwen2) -> OperatorGraph:
    return _decoder(name, architecture, c, _plain_mlp(c), qkv_bias=True)


def qwen3(name: str, architecture: str, c: Qwen3) -> OperatorGraph:
    return _decoder(name, architecture, c, _plain_mlp(c), qkv_bias=c.attention_bias, o_bias=c.attention_bias, head_norms=True)


def qwen3_moe(name: str, architecture: str, c: Qwen3Moe) -> OperatorGraph:
    dense_only = set(c.mlp_only_layers or ())

    def inner(b: Builder, h: str) -> str:
        if b.layer in dense_only or (b.layer + 1) % c.decoder_sparse_step:
            return _plain_mlp(c)(b, h)
        return b.experts(h, c.hidden_size, c.moe_intermediate_size, c.num_experts, c.num_experts_per_tok, _expert_act(c))

    return _decoder(name, architecture, c, inner, qkv_bias=c.attention_bias, o_bias=c.attention_bias, head_norms=True)


def mixtral(name: str, architecture: str, c: Mixtral) -> OperatorGraph:
    def inner(b: Builder, h: str) -> str:
        return b.experts(h, c.hidden_size, c.intermediate_size, c.num_local_experts, c.num_experts_per_tok, _expert_act(c))

    return _decoder(name, architecture, c, inner)


def _expert_act(c: Llama) -> str:
    function = FUNCTION_OF[c.hidden_act]
    if function not in ("silu", "gelu"):
        raise DoesNotFit("hidden_act", c.hidden_act, "of experts silu or a gelu by tanh")
    return function


def gemma2(name: str, architecture: str, c: Gemma2) -> OperatorGraph:
    """Embedding scaled by sqrt(width); scores and logits capped by a tanh (Gemma 2 report, section 2)."""
    softcap = c.attn_logit_softcapping is not None
    return _decoder(
        name, architecture, c, _plain_mlp(c), four_norms=True, scaled=True, qkv_bias=c.attention_bias, o_bias=c.attention_bias, softcap=softcap,
    )  # fmt: skip


def gemma3(name: str, architecture: str, c: Gemma3) -> OperatorGraph:
    return _decoder(
        name, architecture, c, _plain_mlp(c), four_norms=True, scaled=True, qkv_bias=c.attention_bias, o_bias=c.attention_bias,
        softcap=c.attn_logit_softcapping is not None, head_norms=True,
    )  # fmt: skip


def phi3(name: str, architecture: str, c: Phi3) -> OperatorGraph:
    def inner(b: Builder, h: str) -> str:
        both = b.linear("gate_up", h, 2 * c.intermediate_size, c.hidden_size)
        return b.linear("down", b.gated(FUNCTION_OF[c.hidden_act], both, both, c.intermediate_size), c.hidden_size, c.intermediate_size)

    return _decoder(name, architecture, c, inner, fused=True)


GRAPHS = {
    "LlamaForCausalLM": (Llama, llama),
    "MistralForCausalLM": (Mistral, mistral),
    "Qwen2ForCausalLM": (Qwen2, qwen2),
    "Qwen3ForCausalLM": (Qwen3, qwen3),
    "Qwen3MoeForCausalLM": (Qwen3Moe, qwen3_moe),
    "MixtralForCausalLM": (Mixtral, mixtral),
    "Gemma2ForCausalLM": (Gemma2, gemma2),
    "Gemma3ForCausalLM": (Gemma3, gemma3),
    "Phi3ForCausalLM": (Phi3, phi3),
}
