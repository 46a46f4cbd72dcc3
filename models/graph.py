"""The graph of a decoder: its operators with symbolic lengths.

A length is an integer or one of two symbols: `TOKENS` (positions that a pass computes) and `CONTEXT` (KV length at the
end of the pass, the pass's own tokens included). A decode step has TOKENS = 1; a prefill of P tokens has
TOKENS = CONTEXT = P. Logits are computed for `LOGITS` positions: 1 in decode and prefill, TOKENS for perplexity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headrace.models.decoder import DecoderConfig

TOKENS, CONTEXT, LOGITS = "tokens", "context", "logits"
Length = int | str
Shape = tuple[Length, ...]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of the graph.

    `kind` is one of `KINDS`; `layer` is -1 outside the layers; `inputs` and `output` are names of activations, and `shapes`
    gives their shapes (TOKENS, CONTEXT and LOGITS stay symbols); `weights` names the weight tensors read, with their shapes.
    `window` is the sliding window of attention, in positions; None where a query sees all before it.
    """

    kind: str
    name: str
    layer: int
    inputs: tuple[str, ...]
    output: str
    shapes: dict[str, Shape]
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    window: int | None = None

    def macs(self, *, tokens: int, context: int, logits: int = 1) -> int:
        """Useful multiply-accumulates of one pass. Attention counts only the positions that the causal mask lets through;
        element-wise operators count none."""
        _check_lengths(tokens, context, logits)
        if self.kind in ("linear", "lm_head"):
            rows = tokens if self.kind == "linear" else logits
            return rows * sum(math.prod(shape) for shape in self.weights.values() if len(shape) == 2)  # biases are added
        if self.kind in ("attention_qk", "attention_pv"):
            heads, _, head_dim = self.shapes["q" if self.kind == "attention_qk" else self.output]
            return heads * head_dim * visible_pairs(tokens, context, self.window)
        return 0

    def weight_elements(self, *, tokens: int = 1) -> int:
        """Weight elements that one pass reads once; the embedding reads a row per token."""
        if self.kind == "embedding":
            return tokens * next(iter(self.weights.values()))[1]
        return sum(math.prod(shape) for shape in self.weights.values())

    def kv_elements(self, *, tokens: int, context: int) -> int:
        """KV elements moved to or from the cache: read once per KV head by qk and pv, written once by kv_append. Of a window
        layer, those rows that some query of the pass sees."""
        if self.kind in ("attention_qk", "attention_pv"):
            kv_heads, _, head_dim = self.shapes["k_cache" if self.kind == "attention_qk" else "v_cache"]
            return kv_heads * head_dim * (context if self.window is None else min(context, self.window + tokens - 1))
        if self.kind == "kv_append":
            kv_heads, _, head_dim = self.shapes["k_cache"]
            return 2 * kv_heads * head_dim * tokens
        return 0

    def output_elements(self, *, tokens: int, context: int, logits: int = 1) -> int:
        count = 1
        for length in self.shapes[self.output]:
            count *= resolve(length, tokens=tokens, context=context, logits=logits)
        return count


KINDS = (
    "embedding", "rmsnorm", "linear", "rope", "kv_append", "attention_qk", "softmax", "attention_pv", "silu_mul", "add",
    "lm_head", "argmax", "layernorm", "gelu_tanh", "relu", "gelu_tanh_mul", "relu_mul", "silu", "softcap",
)
"""The first twelve are Llama's; docs/contract.md section 5 defines the others."""


def resolve(length: Length, *, tokens: int, context: int, logits: int = 1) -> int:
    """The number that a length stands for."""
    return {TOKENS: tokens, CONTEXT: context, LOGITS: logits}[length] if isinstance(length, str) else length


def visible_pairs(tokens: int, context: int, window: int | None = None) -> int:
    """Query-key pairs under the causal mask: query i of the pass (0-based) sees context - tokens + 1 + i keys, at most `window`."""
    pairs = tokens * context - tokens * (tokens - 1) // 2
    if window is None or context <= window:
        return pairs
    beyond = min(tokens, context - window)  # queries that would see more than the window: the last ones
    return pairs - beyond * (context - window) + beyond * (beyond - 1) // 2


def _check_lengths(tokens: int, context: int, logits: int) -> None:
    if not 1 <= tokens <= context or not 0 <= logits <= tokens:
        raise ValueError(f"lengths tokens={tokens}, context={context}, logits={logits}: need 0 <= logits <= tokens <= context")


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The operators of one pass, in an order that respects their data."""

    config: DecoderConfig
    operators: tuple[Operator, ...]

    def macs(self, *, tokens: int, context: int, logits: int = 1) -> int:
        return sum(op.macs(tokens=tokens, context=context, logits=logits) for op in self.operators)


def build_graph(config: DecoderConfig) -> Graph:
    """The operator graph of `config`: for a plain Llama 18 operators a layer, plus embedding, final norm, LM head and argmax."""
    c = config
    ops: list[Operator] = []
    hidden: Shape = (TOKENS, c.width)

    def op(kind: str, name: str, layer: int, inputs: dict[str, Shape], output: tuple[str, Shape], weights=(), window=None) -> None:
        ops.append(Operator(
            kind=kind, name=name, layer=layer, inputs=tuple(inputs), output=output[0], shapes={**inputs, output[0]: output[1]},
            weights={weight: all_shapes[weight] for base in weights for weight in (base, base + ".bias") if weight in all_shapes},
            window=window,
        ))

    all_shapes = c.weight_shapes()
    op("embedding", "embedding", -1, {"tokens": (TOKENS,)}, ("x", hidden), ["embedding"])
    if c.positions == "learned":
        op("embedding", "positions", -1, {"tokens": (TOKENS,)}, ("delta", hidden), ["positions"])
        op("add", "position_add", -1, {"x": hidden, "delta": hidden}, ("x", hidden))
    q, kv = (c.heads, TOKENS, c.head_dim), (c.kv_heads, TOKENS, c.head_dim)
    cache, scores = (c.kv_heads, CONTEXT, c.head_dim), (c.heads, TOKENS, CONTEXT)
    attended, inner = (c.heads, TOKENS, c.head_dim), (TOKENS, c.ffn)
    for i in range(c.layers):
        w, window = f"layers.{i}.", c.window_of(i)
        op(c.norm, "attn_norm", i, {"x": hidden}, ("h", hidden), [w + "attn_norm"])
        op("linear", "q", i, {"h": hidden}, ("q", q), [w + "q"])
        op("linear", "k", i, {"h": hidden}, ("k", kv), [w + "k"])
        op("linear", "v", i, {"h": hidden}, ("v", kv), [w + "v"])
        if c.qk_norm:
            op(c.norm, "q_norm", i, {"q": q}, ("q", q), [w + "q_norm"])
            op(c.norm, "k_norm", i, {"k": kv}, ("k", kv), [w + "k_norm"])
        if c.positions == "rope":
            op("rope", "rope_q", i, {"q": q}, ("q", q))
            op("rope", "rope_k", i, {"k": kv}, ("k", kv))
        op("kv_append", "kv_append", i, {"k": kv, "v": kv, "v_cache": cache}, ("k_cache", cache))
        op("attention_qk", "attention_qk", i, {"q": q, "k_cache": cache}, ("scores", scores), window=window)
        if c.score_cap is not None:
            op("softcap", "score_cap", i, {"scores": scores}, ("scores", scores))
        op("softmax", "softmax", i, {"scores": scores}, ("p", scores), window=window)
        op("attention_pv", "attention_pv", i, {"p": scores, "v_cache": cache}, ("attended", attended), window=window)
        op("linear", "o", i, {"attended": attended}, ("delta", hidden), [w + "o"])
        if c.post_norms:
            op(c.norm, "post_attn_norm", i, {"delta": hidden}, ("delta", hidden), [w + "post_attn_norm"])
        op("add", "attn_add", i, {"x": hidden, "delta": hidden}, ("x", hidden))
        op(c.norm, "mlp_norm", i, {"x": hidden}, ("h", hidden), [w + "mlp_norm"])
        if c.gated:
            op("linear", "gate", i, {"h": hidden}, ("gate", inner), [w + "gate"])
        op("linear", "up", i, {"h": hidden}, ("up", inner), [w + "up"])
        factors = {"gate": inner, "up": inner} if c.gated else {"up": inner}
        op(c.mlp_operator, c.mlp_operator, i, factors, ("inner", inner))
        op("linear", "down", i, {"inner": inner}, ("delta", hidden), [w + "down"])
        if c.post_norms:
            op(c.norm, "post_mlp_norm", i, {"delta": hidden}, ("delta", hidden), [w + "post_mlp_norm"])
        op("add", "mlp_add", i, {"x": hidden, "delta": hidden}, ("x", hidden))
    last = (LOGITS, c.width)
    op(c.norm, "final_norm", -1, {"x": last}, ("h", last), ["final_norm"])
    head = "embedding" if c.tie_embeddings else "lm_head"
    op("lm_head", "lm_head", -1, {"h": last}, ("logits_out", (LOGITS, c.vocab)), [head])
    if c.logit_cap is not None:
        op("softcap", "logit_cap", -1, {"logits_out": (LOGITS, c.vocab)}, ("logits_out", (LOGITS, c.vocab)))
    op("argmax", "argmax", -1, {"logits_out": (LOGITS, c.vocab)}, ("next_token", (LOGITS,)))
    return Graph(config=c, operators=tuple(ops))
