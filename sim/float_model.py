"""The float reference: the same decoder in plain float32, from dequantised weights, for one text or many at once.

It tells what compression costs; it is no part of the contract and its last bits depend on the BLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headrace.models.errors import UserError
from headrace.models.graph import LlamaConfig
from headrace.models.masks import Mask, visible_keys
from headrace.models.model import Model
from headrace.models.quantise import QuantisedLinear, QuantisedModel, finite_weight, rope_tables, window_rope_tables

POSITIONS_PER_PASS = 64

Observe = Callable[[str, np.ndarray], None]
"""Called with (weight name, input) just before a linear's product: "layers.3.q", "lm_head" (tied or not); float32 [n, K]."""


def dequantised_weights(qmodel: QuantisedModel) -> dict[str, np.ndarray]:
    """float32 weights on the grid of a compressed model, under the names of `LlamaConfig.weight_shapes`."""
    tensors = {
        "embedding": qmodel.embedding, "final_norm": qmodel.final_norm, "final_norm.bias": qmodel.final_norm_bias,
        "positions": qmodel.positions, "lm_head": qmodel.lm_head,
    }
    for index, layer in enumerate(qmodel.layers):
        tensors |= {f"layers.{index}.{name}": tensor for name, tensor in layer.items()}
    wanted = {name: tensors[name] for name in qmodel.config.weight_shapes()}
    return {name: t.dequantised() if isinstance(t, QuantisedLinear) else t for name, t in wanted.items()}


class FloatExecutor:
    """`step` and `prefill` like `GoldenExecutor`, in float32 with float64 norms and softmax. All weights stay in memory.

    Tokens may also be [batch, n] in `prefill` and [batch] in `step`: as many texts of equal length, with logits
    [batch, (n,) vocab]. The batch is set by the first call after `reset`. `observe` is called as `Observe` says. `mask`: a static one
    for all layers, beside the windows that the model has itself.
    """

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, np.ndarray], *, observe: Observe | None = None, mask: Mask | None = None
    ):
        self.config = config
        self.mask = mask
        self.observe = observe
        self._weights = {name: np.asarray(weights[name], np.float32) for name in config.weight_shapes()}
        if config.tie_embeddings:
            self._weights["lm_head"] = self._weights["embedding"]
        self._rope = rope_tables(config)
        self._window_rope = window_rope_tables(config) or self._rope
        self.reset()

    @classmethod
    def from_model(cls, model: Model, *, observe: Observe | None = None, mask: Mask | None = None) -> FloatExecutor:
        """From a model file's own weights. Raises UserError for one that is not finite."""
        weights = {name: finite_weight(model, name) for name in model.config.weight_shapes()}
        return cls(model.config, weights, observe=observe, mask=mask)

    @classmethod
    def from_quantised(cls, qmodel: QuantisedModel, *, observe: Observe | None = None) -> FloatExecutor:
        """From the grid of a compressed model, under its scheme's mask: only activations, KV and scores are then finer than golden's."""
        return cls(qmodel.config, dequantised_weights(qmodel), observe=observe, mask=qmodel.scheme.mask)

    def reset(self) -> None:
        """Forget every token, and the batch."""
        self.position = 0
        self._cache: list[tuple[np.ndarray, np.ndarray]] = []
        self._states: list[np.ndarray] | None = None  # while `states` gathers them

    def step(self, token: int | np.ndarray) -> np.ndarray:
        """Logits float32 [vocab] after one more token, or [batch, vocab] after one more of each text (tokens int [batch])."""
        return self.prefill(np.asarray(token)[..., None])

    def prefill(self, tokens: Sequence[int] | np.ndarray, *, all_positions: bool = False) -> np.ndarray:
        """Take all `tokens`; logits float32 [vocab] of the last, or [len(tokens), vocab] of all positions. With tokens int
        [batch, n]: [batch, vocab] or [batch, n, vocab]."""
        tokens = self._checked(tokens)
        batch = tokens[None] if tokens.ndim == 1 else tokens
        parts = []
        for start in range(0, batch.shape[1], POSITIONS_PER_PASS):
            hidden = self._forward(batch[:, start : start + POSITIONS_PER_PASS])
            parts.append(self._logits(hidden) if all_positions else hidden)
        logits = np.concatenate(parts, axis=1) if all_positions else self._logits(parts[-1][:, -1])
        return logits[0] if tokens.ndim == 1 else logits

    def _checked(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64 [n] or [batch, n]; UserError where they are none, too many, unknown, or of another batch."""
        config, array = self.config, np.asarray(tokens)
        if not array.size:
            raise UserError("tokens: none were given, at least one is needed")
        if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
            raise UserError(f"tokens: have shape {array.shape} and type {array.dtype}; allowed are whole numbers, [n] or [batch, n]")
        if self.position + array.shape[-1] > config.max_positions:
            raise UserError(
                f"model {config.name}: {self.position + array.shape[-1]} positions are needed; allowed are max_positions = "
                f"{config.max_positions}"
            )
        unknown = array[(array < 0) | (array >= config.vocab)]
        if unknown.size:
            raise UserError(f"model {config.name}: token {unknown[0]} is unknown; allowed are 0 to {config.vocab - 1}")
        batch = array.shape[0] if array.ndim == 2 else 1
        if self._cache and len(self._cache[0][0]) != batch:
            raise UserError(f"tokens: are of {batch} texts; allowed are those of the {len(self._cache[0][0])} begun, until reset")
        return array.astype(np.int64)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        if self.observe is not None:
            self.observe(name, np.ascontiguousarray(x.reshape(-1, x.shape[-1])))
        y = x @ self._weights[name].T
        bias = self._weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _logits(self, hidden: np.ndarray) -> np.ndarray:
        return _capped(self._linear(self._norm(hidden, "final_norm"), "lm_head"), self.config.logit_cap)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        wide, weight = x.astype(np.float64), self._weights[name]
        if self.config.norm == "layernorm":
            wide = wide - wide.mean(axis=-1, keepdims=True)
        mean_square = np.square(wide).mean(axis=-1, keepdims=True)
        y = (wide / np.sqrt(mean_square + self.config.rms_eps)).astype(np.float32) * weight
        return y + self._weights[name + ".bias"] if self.config.norm == "layernorm" else y

    def _forward(self, tokens: np.ndarray) -> np.ndarray:
        """Residual stream float32 [batch, n, width] after the last layer. tokens int [batch, n]."""
        config, weights, start = self.config, self._weights, self.position
        x = weights["embedding"][tokens] * np.float32(config.embedding_scale)
        if config.positions == "learned":
            x = x + weights["positions"][start + config.position_offset :][: tokens.shape[1]]
        if not self._cache:
            empty = np.empty((len(tokens), config.kv_heads, 0, config.head_dim), np.float32)
            self._cache = [(empty, empty)] * config.layers
        for i in range(config.layers):
            if self._states is not None:
                self._states.append(x)
            x = self._layer(i, x)
        self.position += tokens.shape[1]
        return x

    def _layer(self, i: int, x: np.ndarray) -> np.ndarray:
        """Residual stream behind layer i."""
        w, post_norms = f"layers.{i}.", self.config.post_norms
        delta = self._linear(self._attention(i, self._norm(x, w + "attn_norm")), w + "o")
        x = x + (self._norm(delta, w + "post_attn_norm") if post_norms else delta)
        delta = self._linear(self._mlp(w, self._norm(x, w + "mlp_norm")), w + "down")
        return x + (self._norm(delta, w + "post_mlp_norm") if post_norms else delta)

    def states(self, tokens: np.ndarray) -> list[np.ndarray]:
        """The residual stream before each layer, float32 [batch, n, width], of texts int64 [batch, n <= POSITIONS_PER_PASS]."""
        self.reset()
        self._states = []
        self.prefill(tokens)
        found, self._states = self._states, None
        return found

    def logits_from(self, layer: int, state: np.ndarray, replaced: Mapping[str, np.ndarray]) -> np.ndarray:
        """Logits of all positions, float32 [batch, n, vocab], from the residual stream before `layer` (of `states`), with some weights
        replaced for this once."""
        kept = {name: self._weights[name] for name in replaced}
        empty = np.empty((len(state), self.config.kv_heads, 0, self.config.head_dim), np.float32)
        self.position, self._cache = 0, [(empty, empty)] * self.config.layers
        self._weights |= replaced
        try:
            for i in range(layer, self.config.layers):
                state = self._layer(i, state)
            return self._logits(state)
        finally:
            self._weights |= kept
            self.reset()

    def _attention(self, i: int, h: np.ndarray) -> np.ndarray:
        """Heads' outputs side by side, float32 [batch, n, q_width]. h: normed input [batch, n, width]."""
        config, w, start = self.config, f"layers.{i}.", self.position
        batch, n = h.shape[:2]
        end, shared, window = start + n, config.heads // config.kv_heads, config.window_of(i)
        q, k, v = (self._linear(h, w + name).reshape(batch, n, -1, config.head_dim) for name in ("q", "k", "v"))
        if config.qk_norm:
            q, k = self._norm(q, w + "q_norm"), self._norm(k, w + "k_norm")
        if config.positions == "rope":
            cos, sin = (table[start:end, None] for table in (self._rope if window is None else self._window_rope))
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        keys, values = (np.concatenate([old, new.swapaxes(1, 2)], axis=2) for old, new in zip(self._cache[i], (k, v), strict=True))
        self._cache[i] = keys, values
        grouped = q.reshape(batch, n, config.kv_heads, shared, -1).transpose(0, 2, 3, 1, 4)
        scores = _capped(grouped @ keys[:, :, None].swapaxes(-1, -2) * np.float32(config.score_multiplier), config.score_cap)
        scores = np.where(visible_keys(start, end, window, self.mask), scores.astype(np.float64), -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p = (p / p.sum(axis=-1, keepdims=True)).astype(np.float32)
        return (p @ values[:, :, None]).transpose(0, 3, 1, 2, 4).reshape(batch, n, -1)

    def _mlp(self, w: str, h: np.ndarray) -> np.ndarray:
        """Input of `down`, float32 [batch, n, ffn]."""
        activation = _ACTIVATIONS[self.config.activation]
        if not self.config.gated:
            return activation(self._linear(h, w + "up"))
        gate = self._linear(h, w + "gate")
        return activation(gate) * self._linear(h, w + "up")


def _silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * np.float32(0.5) * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)))


_ACTIVATIONS = {"silu": _silu, "gelu_tanh": _gelu_tanh, "relu": lambda x: np.maximum(x, np.float32(0))}


def _capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else np.tanh(x / np.float32(cap)) * np.float32(cap)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], axis=-1)
