"""The graph of a Llama-family model: its sizes, and its operators with symbolic lengths.

A length is an integer or one of two symbols: `TOKENS` (positions that a pass computes) and `CONTEXT` (KV length at the
end of the pass, the pass's own tokens included). A decode step has TOKENS = 1; a prefill of P tokens has
TOKENS = CONTEXT = P. Logits are computed for `LOGITS` positions: 1 in decode and prefill, TOKENS for perplexity.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from headrace.models.errors import UserError

TOKENS, CONTEXT, LOGITS = "tokens", "context", "logits"
Length = int | str
Shape = tuple[Length, ...]

LINEAR_NAMES = ("q", "k", "v", "o", "gate", "up", "down")
NORM_NAMES = ("attn_norm", "mlp_norm")
SIZE_LIMITS = {
    "vocab": 1 << 22, "width": 1 << 17, "layers": 1024, "heads": 4096, "kv_heads": 4096, "head_dim": 4096, "ffn": 1 << 17,
    "max_positions": 1 << 20,
}
"""Largest sizes taken. 2**17 is the last power of two below the 133,144 terms that an int32 dot product holds exactly."""

MAX_ROPE_ELEMENTS = 1 << 27
"""Largest max_positions * head_dim, the elements of a model's RoPE tables: 2**20 positions of heads of 128."""

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama-family decoder. `dtype` is the element type that the uncompressed weights are kept in."""

    name: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_positions: int = 2048
    tie_embeddings: bool = False
    bos_token_id: int | None = None
    dtype: str = "float16"

    def __post_init__(self) -> None:
        for name, limit in SIZE_LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise UserError(f"model {self.name}: {name} = {value!r}; allowed is an integer from 1 to {limit}")
        if self.q_width > SIZE_LIMITS["width"]:
            raise UserError(f"model {self.name}: heads * head_dim = {self.q_width}; allowed is up to {SIZE_LIMITS['width']}")
        if self.heads % self.kv_heads:
            raise UserError(f"model {self.name}: kv_heads = {self.kv_heads}; allowed is a divisor of heads = {self.heads}")
        if self.head_dim % 2:
            raise UserError(f"model {self.name}: head_dim = {self.head_dim}; allowed is an even number (RoPE turns pairs)")
        if self.max_positions * self.head_dim > MAX_ROPE_ELEMENTS:
            raise UserError(
                f"model {self.name}: max_positions * head_dim = {self.max_positions * self.head_dim}; allowed is up to {MAX_ROPE_ELEMENTS}"
            )
        for name, low, high in (("rms_eps", 1e-12, 1e-1), ("rope_theta", 1.0, 1e9)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise UserError(f"model {self.name}: {name} = {value!r}; allowed is a number from {low:g} to {high:g}")
        if self.dtype not in DTYPE_BYTES:
            raise UserError(f"model {self.name}: dtype = {self.dtype!r}; allowed are {', '.join(DTYPE_BYTES)}")
        bos = self.bos_token_id
        if bos is not None and (isinstance(bos, bool) or not isinstance(bos, int) or not 0 <= bos < self.vocab):
            raise UserError(f"model {self.name}: bos_token_id = {bos!r}; allowed is null or 0 to {self.vocab - 1}")

    @property
    def q_width(self) -> int:
        """Outputs of the query projection: all heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Outputs of the key projection, and of the value projection: all KV heads."""
        return self.kv_heads * self.head_dim

    def linear_shape(self, name: str) -> tuple[int, int]:
        """[outputs, inputs] of one of a layer's linears."""
        return {
            "q": (self.q_width, self.width), "k": (self.kv_width, self.width), "v": (self.kv_width, self.width),
            "o": (self.width, self.q_width), "gate": (self.ffn, self.width), "up": (self.ffn, self.width),
            "down": (self.width, self.ffn),
        }[name]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight tensor. A tied LM head is not a tensor of its own."""
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocab, self.width)}
        for layer in range(self.layers):
            shapes |= {f"layers.{layer}.{name}": (self.width,) for name in NORM_NAMES}
            shapes |= {f"layers.{layer}.{name}": self.linear_shape(name) for name in LINEAR_NAMES}
        shapes["final_norm"] = (self.width,)
        if not self.tie_embeddings:
            shapes["lm_head"] = (self.vocab, self.width)
        return shapes

    @property
    def parameters(self) -> int:
        """Exact count of the weights, tied ones once."""
        layer = sum(n * k for n, k in map(self.linear_shape, LINEAR_NAMES)) + 2 * self.width
        return self.layers * layer + self.width + self.vocab * self.width * (1 if self.tie_embeddings else 2)

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of one token in the weight matrices: LM head in, embedding look-up and attention out."""
        return self.layers * sum(n * k for n, k in map(self.linear_shape, LINEAR_NAMES)) + self.vocab * self.width

    def kv_bytes_per_token(self, kv_bits: int | None = None) -> int:
        """Bytes that one token adds to the KV cache over all layers. With `kv_bits` <= 8: codes plus one float32 scale per
        token, KV head and tensor; without it, or with 16 and above: plain elements of `dtype` or of that width."""
        elements = 2 * self.layers * self.kv_heads * self.head_dim
        if kv_bits is None:
            return elements * DTYPE_BYTES[self.dtype]
        scales = 2 * self.layers * self.kv_heads * 4 if kv_bits <= 8 else 0
        return elements * kv_bits // 8 + scales

    def to_dict(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of the graph.

    `kind` is one of `KINDS`; `layer` is -1 outside the layers; `inputs` and `output` are names of activations, and `shapes`
    gives their shapes (TOKENS, CONTEXT and LOGITS stay symbols); `weights` names the weight tensors read, with their shapes.
    """

    kind: str
    name: str
    layer: int
    inputs: tuple[str, ...]
    output: str
    shapes: dict[str, Shape]
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def macs(self, *, tokens: int, context: int, logits: int = 1) -> int:
        """Useful multiply-accumulates of one pass. Attention counts only the positions that the causal mask lets through;
        element-wise operators count none."""
        _check_lengths(tokens, context, logits)
        if self.kind in ("linear", "lm_head"):
            rows = tokens if self.kind == "linear" else logits
            return rows * sum(n * k for n, k in self.weights.values())
        if self.kind in ("attention_qk", "attention_pv"):
            heads, _, head_dim = self.shapes["q" if self.kind == "attention_qk" else self.output]
            return heads * head_dim * visible_pairs(tokens, context)
        return 0

    def weight_elements(self, *, tokens: int = 1) -> int:
        """Weight elements that one pass reads once; the embedding reads a row per token."""
        if self.kind == "embedding":
            return tokens * next(iter(self.weights.values()))[1]
        total = 0
        for shape in self.weights.values():
            count = 1
            for length in shape:
                count *= length
            total += count
        return total

    def kv_elements(self, *, tokens: int, context: int) -> int:
        """KV elements moved to or from the cache: read once per KV head by qk and pv, written once by kv_append."""
        if self.kind in ("attention_qk", "attention_pv"):
            kv_heads, _, head_dim = self.shapes["k_cache" if self.kind == "attention_qk" else "v_cache"]
            return kv_heads * head_dim * context
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
    "lm_head", "argmax",
)


def resolve(length: Length, *, tokens: int, context: int, logits: int = 1) -> int:
    """The number that a length stands for."""
    return {TOKENS: tokens, CONTEXT: context, LOGITS: logits}[length] if isinstance(length, str) else length


def visible_pairs(tokens: int, context: int) -> int:
    """Query-key pairs under the causal mask: query i of the pass (0-based) sees context - tokens + 1 + i keys."""
    return tokens * context - tokens * (tokens - 1) // 2


def _check_lengths(tokens: int, context: int, logits: int) -> None:
    if not 1 <= tokens <= context or not 0 <= logits <= tokens:
        raise ValueError(f"lengths tokens={tokens}, context={context}, logits={logits}: need 0 <= logits <= tokens <= context")


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The operators of one pass, in an order that respects their data."""

    config: LlamaConfig
    operators: tuple[Operator, ...]

    def macs(self, *, tokens: int, context: int, logits: int = 1) -> int:
        return sum(op.macs(tokens=tokens, context=context, logits=logits) for op in self.operators)


def build_graph(config: LlamaConfig) -> Graph:
    """The operator graph of `config`: per layer 18 operators, plus embedding, final norm, LM head and argmax."""
    c = config
    ops: list[Operator] = []
    hidden: Shape = (TOKENS, c.width)

    def op(kind: str, name: str, layer: int, inputs: dict[str, Shape], output: tuple[str, Shape], weights=()) -> None:
        ops.append(Operator(
            kind=kind, name=name, layer=layer, inputs=tuple(inputs), output=output[0], shapes={**inputs, output[0]: output[1]},
            weights={weight: all_shapes[weight] for weight in weights},
        ))

    all_shapes = c.weight_shapes()
    op("embedding", "embedding", -1, {"tokens": (TOKENS,)}, ("x", hidden), ["embedding"])
    q, kv = (c.heads, TOKENS, c.head_dim), (c.kv_heads, TOKENS, c.head_dim)
    cache, scores = (c.kv_heads, CONTEXT, c.head_dim), (c.heads, TOKENS, CONTEXT)
    attended, inner = (c.heads, TOKENS, c.head_dim), (TOKENS, c.ffn)
    for i in range(c.layers):
        w = f"layers.{i}."
        op("rmsnorm", "attn_norm", i, {"x": hidden}, ("h", hidden), [w + "attn_norm"])
        op("linear", "q", i, {"h": hidden}, ("q", q), [w + "q"])
        op("linear", "k", i, {"h": hidden}, ("k", kv), [w + "k"])
        op("linear", "v", i, {"h": hidden}, ("v", kv), [w + "v"])
        op("rope", "rope_q", i, {"q": q}, ("q", q))
        op("rope", "rope_k", i, {"k": kv}, ("k", kv))
        op("kv_append", "kv_append", i, {"k": kv, "v": kv, "v_cache": cache}, ("k_cache", cache))
        op("attention_qk", "attention_qk", i, {"q": q, "k_cache": cache}, ("scores", scores))
        op("softmax", "softmax", i, {"scores": scores}, ("p", scores))
        op("attention_pv", "attention_pv", i, {"p": scores, "v_cache": cache}, ("attended", attended))
        op("linear", "o", i, {"attended": attended}, ("delta", hidden), [w + "o"])
        op("add", "attn_add", i, {"x": hidden, "delta": hidden}, ("x", hidden))
        op("rmsnorm", "mlp_norm", i, {"x": hidden}, ("h", hidden), [w + "mlp_norm"])
        op("linear", "gate", i, {"h": hidden}, ("gate", inner), [w + "gate"])
        op("linear", "up", i, {"h": hidden}, ("up", inner), [w + "up"])
        op("silu_mul", "silu_mul", i, {"gate": inner, "up": inner}, ("inner", inner))
        op("linear", "down", i, {"inner": inner}, ("delta", hidden), [w + "down"])
        op("add", "mlp_add", i, {"x": hidden, "delta": hidden}, ("x", hidden))
    last = (LOGITS, c.width)
    op("rmsnorm", "final_norm", -1, {"x": last}, ("h", last), ["final_norm"])
    head = "embedding" if c.tie_embeddings else "lm_head"
    op("lm_head", "lm_head", -1, {"h": last}, ("logits_out", (LOGITS, c.vocab)), [head])
    op("argmax", "argmax", -1, {"logits_out": (LOGITS, c.vocab)}, ("next_token", (LOGITS,)))
    return Graph(config=c, operators=tuple(ops))
