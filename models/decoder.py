"""A decoder: its sizes, and what sets it apart from a Llama."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headrace.models.cache_size import cache_bytes
from headrace.models.errors import UserError

LINEAR_NAMES = ("q", "k", "v", "o", "gate", "up", "down")
NORM_NAMES = ("attn_norm", "mlp_norm")
"""Those of a Llama layer, in their order; `DecoderConfig.linear_names` and `norm_names` are those of any decoder's."""
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
class DecoderConfig:
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
        if not isinstance(layers, tuple) or len(layers) > self.layers or any(type(layer) is not int or not 0 <= layer < self.layers for layer in layers):
            raise refuse("window_layers", f"a list of layers from 0 to {self.layers - 1}")
        if len(set(layers)) < len(layers):
            raise refuse("window_layers", "each layer at most once")
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


def require_plain_llama(config: DecoderConfig, what: str) -> None:
    """UserError for a decoder that a machine of version 1 cannot run. `what` is the thing that takes plain Llama models alone."""
    for name, value in config.differences.items():
        raise UserError(f"model {config.name}: {name} = {str(value)[:60]}; {what} takes plain Llama models alone")
