"""The graph of a decoder: its sizes and what sets it apart from a Llama, and its operators with symbolic lengths.

A length is an integer or one of two symbols: `TOKENS` (positions that a pass computes) and `CONTEXT` (KV length at the
end of the pass, the pass's own tokens included). A decode step has TOKENS = 1; a prefill of P tokens has
TOKENS = CONTEXT = P. Logits are computed for `LOGITS` positions: 1 in decode and prefill, TOKENS for perplexity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from headrace.models.cache_size import cache_bytes
from headrace.models.errors import UserError

TOKENS, CONTEXT, LOGITS = "tokens", "context", "logits"
Length = int | str
Shape = tuple[Length, ...]

LINEAR_NAMES = ("q", "k", "v", "o", "gate", "up", "down")
NORM_NAMES = ("attn_norm", "mlp_norm")
"""Those of a Llama layer, in their order; `LlamaConfig.linear_names` and `norm_names` are those of any decoder's."""
NORMS = ("rmsnorm", "layernorm")
ACTIVATIONS = ("silu", "gelu_tanh", "relu")
POSITIONS = ("rope", "learned")
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
    """A decoder: the sizes of a Llama, and fields by which other families differ from it; their defaults are Llama's.

    dtype: the element type that the uncompressed weights are kept in. rms_eps: epsilon of every norm.
    norm: "layernorm" has an offset too. gated: the MLP multiplies act(gate) by up; without it, it is act(up).
    biases: the linears that have one. positions: "learned" adds row t + position_offset of a table and turns no pairs.
    qk_norm: a norm over each head of query and key, before RoPE. post_norms: norms after the attention's and the MLP's last linear.
    window, window_layers: in these layers a query sees the last `window` positions, its own included; their RoPE has
    `window_rope_theta` where that is given. rope_divisors: what the frequency of each pair is divided by, in the layers of
    `rope_theta`; () is 1 for all. embedding_scale: factor of the embedding's rows (not of a tied LM head).
    score_factor: factor of the scores, None is 1 / sqrt(head_dim). score_cap, logit_cap: x becomes cap * tanh(x / cap).
    """

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
    norm: str = "rmsnorm"
    gated: bool = True
    activation: str = "silu"
    biases: tuple[str, ...] = ()
    positions: str = "rope"
    position_offset: int = 0
    qk_norm: bool = False
    post_norms: bool = False
    window: int | None = None
    window_layers: tuple[int, ...] = ()
    window_rope_theta: float | None = None
    rope_divisors: tuple[float, ...] = ()
    embedding_scale: float = 1.0
    score_factor: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None

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
        for name, (low, high) in _NUMBER_LIMITS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise UserError(f"model {self.name}: {name} = {value!r}; allowed is a number from {low:g} to {high:g}")
        self._check_differences()
        if self.dtype not in DTYPE_BYTES:
            raise UserError(f"model {self.name}: dtype = {self.dtype!r}; allowed are {', '.join(DTYPE_BYTES)}")
        bos = self.bos_token_id
        if bos is not None and (isinstance(bos, bool) or not isinstance(bos, int) or not 0 <= bos < self.vocab):
            raise UserError(f"model {self.name}: bos_token_id = {bos!r}; allowed is null or 0 to {self.vocab - 1}")

    def _check_differences(self) -> None:
        """The fields that are not sizes or numbers."""

        def refuse(name: str, allowed: str) -> UserError:
            return UserError(f"model {self.name}: {name} = {str(getattr(self, name))[:60]}; allowed is {allowed}")

        for name, allowed in (("norm", NORMS), ("activation", ACTIVATIONS), ("positions", POSITIONS)):
            if getattr(self, name) not in allowed:
                raise refuse(name, f"one of {', '.join(allowed)}")
        for name in ("gated", "qk_norm", "post_norms"):
            if type(getattr(self, name)) is not bool:
                raise refuse(name, "true or false")
        if not isinstance(self.biases, tuple) or not set(self.biases) <= set(self.linear_names) or len(set(self.biases)) < len(self.biases):
            raise refuse("biases", f"each at most once, of {', '.join(self.linear_names)}")
        if type(self.position_offset) is not int or not 0 <= self.position_offset <= 16:
            raise refuse("position_offset", "an integer from 0 to 16")
        layers = self.window_layers
        if not isinstance(layers, tuple) or any(type(layer) is not int or not 0 <= layer < self.layers for layer in layers):
            raise refuse("window_layers", f"a list of layers from 0 to {self.layers - 1}")
        if bool(layers) != (self.window is not None):
            raise refuse("window", "a number where window_layers names a layer, else null")
        if self.window is not None and (type(self.window) is not int or not 1 <= self.window <= SIZE_LIMITS["max_positions"]):
            raise refuse("window", f"an integer from 1 to {SIZE_LIMITS['max_positions']}")
        divisors = self.rope_divisors
        if not isinstance(divisors, tuple) or len(divisors) not in (0, self.head_dim // 2):
            raise refuse("rope_divisors", f"none, or {self.head_dim // 2} numbers, one a pair")
        if any(isinstance(d, bool) or not isinstance(d, (int, float)) or not 1e-3 <= d <= 1e6 for d in divisors):
            raise refuse("rope_divisors", "numbers from 0.001 to 1e+06")

    @property
    def differences(self) -> dict[str, object]:
        """The fields in which a machine of version 1 would have to differ: name -> value; {} for a plain Llama. RoPE's divisors
        are not among them, because a program reads its tables from the image."""
        own = ("rope_divisors", *(f.name for f in fields(self) if f.name in _LLAMA_FIELDS))
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own and getattr(self, f.name) != f.default}

    @property
    def plain_llama(self) -> bool:
        """Whether a machine of version 1 can run it, sizes apart."""
        return not self.differences

    @property
    def linear_names(self) -> tuple[str, ...]:
        """A layer's linears, in their order."""
        return LINEAR_NAMES if self.gated else tuple(name for name in LINEAR_NAMES if name != "gate")

    @property
    def norm_names(self) -> tuple[str, ...]:
        """A layer's norms of the residual stream's width, in their order."""
        return ("attn_norm", "post_attn_norm", "mlp_norm", "post_mlp_norm") if self.post_norms else NORM_NAMES

    @property
    def mlp_operator(self) -> str:
        """The operator between the MLP's linears: "silu_mul", "gelu_tanh_mul", or the activation alone."""
        return self.activation + ("_mul" if self.gated else "")

    @property
    def score_multiplier(self) -> float:
        """What a score is multiplied by: `score_factor`, or 1 / sqrt(head_dim)."""
        return 1.0 / math.sqrt(self.head_dim) if self.score_factor is None else self.score_factor

    def window_of(self, layer: int) -> int | None:
        """Positions that a query of this layer sees, its own included; None for all before it."""
        return self.window if layer in self.window_layers else None

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

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of a layer's tensors: norms with their offsets, then linears with their biases."""
        norms = dict.fromkeys(self.norm_names, self.width) | (dict.fromkeys(("q_norm", "k_norm"), self.head_dim) if self.qk_norm else {})
        shapes: dict[str, tuple[int, ...]] = {}
        for name, length in norms.items():
            shapes |= {name: (length,)} | ({f"{name}.bias": (length,)} if self.norm == "layernorm" else {})
        for name in self.linear_names:
            outputs, inputs = self.linear_shape(name)
            shapes |= {name: (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if name in self.biases else {})
        return shapes

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight tensor. A tied LM head is not a tensor of its own."""
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocab, self.width)}
        if self.positions == "learned":
            shapes["positions"] = (self.max_positions + self.position_offset, self.width)
        layer_shapes = self.layer_shapes()
        for layer in range(self.layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in layer_shapes.items()}
        shapes["final_norm"] = (self.width,)
        if self.norm == "layernorm":
            shapes["final_norm.bias"] = (self.width,)
        if not self.tie_embeddings:
            shapes["lm_head"] = (self.vocab, self.width)
        return shapes

    @property
    def parameters(self) -> int:
        """Exact count of the weights, tied ones once."""
        outer = sum(math.prod(shape) for name, shape in self.weight_shapes().items() if not name.startswith("layers."))
        return outer + self.layers * sum(math.prod(shape) for shape in self.layer_shapes().values())

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of one token in the weight matrices: LM head in, embedding look-up and attention out."""
        return self.layers * sum(n * k for n, k in map(self.linear_shape, self.linear_names)) + self.vocab * self.width

    def kv_bytes_per_token(self, kv_bits: int | None = None) -> int:
        """Bytes that one token adds to the KV cache over all layers. With `kv_bits` <= 8: codes plus one float32 scale per
        token, KV head and tensor, at 4 bits mult and off of each group too; without it, or with 16 and above: plain elements
        of `dtype` or of that width."""
        if kv_bits is None:
            return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]
        return cache_bytes(self.layers, self.kv_heads, self.head_dim, kv_bits)

    def to_dict(self) -> dict[str, object]:
        """Its sizes, and those of the other fields that are not a plain Llama's."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in _LLAMA_FIELDS or getattr(self, f.name) != f.default}


_LLAMA_FIELDS = frozenset((*SIZE_LIMITS, "name", "rms_eps", "rope_theta", "tie_embeddings", "bos_token_id", "dtype"))
_OPTIONAL = frozenset(("window_rope_theta", "score_factor", "score_cap", "logit_cap"))
_NUMBER_LIMITS = {
    "rms_eps": (1e-12, 1e-1), "rope_theta": (1.0, 1e9), "window_rope_theta": (1.0, 1e9), "embedding_scale": (1e-3, 1e6),
    "score_factor": (1e-6, 1e3), "score_cap": (1e-3, 1e6), "logit_cap": (1e-3, 1e6),
}


def require_plain_llama(config: LlamaConfig, what: str) -> None:
    """UserError for a decoder that a machine of version 1 cannot run. `what` is the thing that takes plain Llama models alone."""
    for name, value in config.differences.items():
        raise UserError(f"model {config.name}: {name} = {str(value)[:60]}; {what} takes plain Llama models alone")


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

    config: LlamaConfig
    operators: tuple[Operator, ...]

    def macs(self, *, tokens: int, context: int, logits: int = 1) -> int:
        return sum(op.macs(tokens=tokens, context=context, logits=logits) for op in self.operators)


def build_graph(config: LlamaConfig) -> Graph:
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
