"""The float reference: the same Llama-family decoder in plain float32, from dequantised weights.

It tells what compression costs; it is no part of the contract and its last bits depend on the BLAS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.models.errors import UserError
from headrace.models.graph import LINEAR_NAMES, NORM_NAMES, LlamaConfig
from headrace.models.model import Model
from headrace.models.quantise import QuantisedModel, finite_weight, rope_tables

POSITIONS_PER_PASS = 64


def dequantised_weights(qmodel: QuantisedModel) -> dict[str, np.ndarray]:
    """float32 weights on the grid of a compressed model, under the names of `LlamaConfig.weight_shapes`."""
    weights = {"embedding": qmodel.embedding.dequantised(), "final_norm": qmodel.final_norm}
    for index, layer in enumerate(qmodel.layers):
        for name in LINEAR_NAMES:
            weights[f"layers.{index}.{name}"] = layer[name].dequantised()
        for name in NORM_NAMES:
            weights[f"layers.{index}.{name}"] = layer[name]
    if not qmodel.config.tie_embeddings:
        weights["lm_head"] = qmodel.lm_head.dequantised()
    return weights


class FloatExecutor:
    """`step` and `prefill` like `GoldenExecutor`, in float32 with float64 norms and softmax. All weights stay in memory."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, np.ndarray]):
        self.config = config
        self._weights = {name: np.asarray(weights[name], np.float32) for name in config.weight_shapes()}
        self._lm_head = self._weights["embedding" if config.tie_embeddings else "lm_head"]
        self._cos, self._sin = rope_tables(config)
        self.reset()

    @classmethod
    def from_model(cls, model: Model) -> FloatExecutor:
        """From a model file's own weights. Raises UserError for one that is not finite."""
        return cls(model.config, {name: finite_weight(model, name) for name in model.config.weight_shapes()})

    @classmethod
    def from_quantised(cls, qmodel: QuantisedModel) -> FloatExecutor:
        """From the grid of a compressed model: only activations, KV and scores are then finer than golden's."""
        return cls(qmodel.config, dequantised_weights(qmodel))

    def reset(self) -> None:
        """Forget every token."""
        self.position = 0
        shape = (self.config.kv_heads, 0, self.config.head_dim)
        self._keys = [np.empty(shape, np.float32) for _ in range(self.config.layers)]
        self._values = [np.empty(shape, np.float32) for _ in range(self.config.layers)]

    def step(self, token: int) -> np.ndarray:
        """Logits float32 [vocab] after one more token."""
        return self.prefill([token])

    def prefill(self, tokens: Sequence[int], *, all_positions: bool = False) -> np.ndarray:
        """Take all `tokens`; logits float32 [vocab] of the last, or [len(tokens), vocab] of all positions."""
        config = self.config
        if not len(tokens):
            raise UserError("tokens: none were given, at least one is needed")
        if self.position + len(tokens) > config.max_positions:
            raise UserError(
                f"model {config.name}: {self.position + len(tokens)} positions are needed; allowed are max_positions = "
                f"{config.max_positions}"
            )
        for token in tokens:
            if not 0 <= token < config.vocab:
                raise UserError(f"model {config.name}: token {token} is unknown; allowed are 0 to {config.vocab - 1}")
        parts = []
        for start in range(0, len(tokens), POSITIONS_PER_PASS):
            hidden = self._forward(tokens[start : start + POSITIONS_PER_PASS])
            parts.append(self._norm(hidden, "final_norm") @ self._lm_head.T if all_positions else hidden)
        return np.concatenate(parts) if all_positions else self._norm(parts[-1][-1:], "final_norm")[0] @ self._lm_head.T

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)
        return (x / np.sqrt(mean_square + self.config.rms_eps)).astype(np.float32) * self._weights[name]

    def _forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Residual stream float32 [n, width] after the last layer."""
        config, weights, start, n = self.config, self._weights, self.position, len(tokens)
        end, shared = start + n, config.heads // config.kv_heads
        cos, sin = self._cos[start:end, None], self._sin[start:end, None]
        hidden_keys = np.arange(end)[None, :] > np.arange(start, end)[:, None]
        x = weights["embedding"][np.asarray(tokens)]
        for i in range(config.layers):
            w = f"layers.{i}."
            h = self._norm(x, w + "attn_norm")
            q, k, v = ((h @ weights[w + name].T).reshape(n, -1, config.head_dim) for name in ("q", "k", "v"))
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            self._keys[i] = np.concatenate([self._keys[i], k.swapaxes(0, 1)], axis=1)
            self._values[i] = np.concatenate([self._values[i], v.swapaxes(0, 1)], axis=1)
            grouped = q.reshape(n, config.kv_heads, shared, -1).transpose(1, 2, 0, 3)
            scores = grouped @ self._keys[i][:, None].swapaxes(-1, -2) / np.sqrt(config.head_dim)
            scores = np.where(hidden_keys, -np.inf, scores.astype(np.float64))
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p = (p / p.sum(axis=-1, keepdims=True)).astype(np.float32)
            out = (p @ self._values[i][:, None]).transpose(2, 0, 1, 3).reshape(n, -1)
            x = x + out @ weights[w + "o"].T
            h = self._norm(x, w + "mlp_norm")
            gate, up = h @ weights[w + "gate"].T, h @ weights[w + "up"].T
            with np.errstate(over="ignore"):
                x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[w + "down"].T
        self.position = end
        return x


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], axis=-1)
