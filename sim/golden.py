"""The golden executor: a quantised model in numpy, on integers and float32, exactly by docs/contract.md.

It alone defines the answer that interpreter, RTL and kernels are compared with. It reads the model and the scheme, never
an image or a program, and every result is the same for every way of cutting the tokens into passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.kernels.contract import decoders, kv4
from headrace.kernels.contract import functions as fn
from headrace.kernels.contract.constants import MAX_DOT_LENGTH
from headrace.kernels.contract.f32 import add, from_int32, mul
from headrace.kernels.contract.integers import as_operand, check_int8, decode_codes, decode_sparse, dot_operands
from headrace.models.errors import UserError
from headrace.models.masks import visible_keys
from headrace.models.quantise import QuantisedLinear, QuantisedModel

Trace = Callable[[int, str, np.ndarray], None]
"""Called with (layer, name, array) after an operator; layer is -1 outside the layers. See `GoldenExecutor`."""

FLOAT32_ELEMENTS = 1 << 22
"""Models of up to this many weights keep them as the float32 operands of BLAS. Larger ones keep int8: a step is bound by
reading the weights, and a pass of many positions converts them as it goes. Neither has an effect on any bit."""

GEMV_POSITIONS = 4
"""Passes of up to this many positions read int8 weights directly."""

POSITIONS_PER_PASS = 64
"""Positions that `prefill` computes at once: bounds the memory of scores and logits, has no effect on any bit."""


def weight_grid(linear: QuantisedLinear, name: str) -> np.ndarray:
    """The int8 grid [N, K] of stored codes, by the contract's own map."""
    if linear.kept is not None:
        return decode_sparse(linear.codes, linear.mult, linear.off, linear.bits, linear.kept, linear.group)
    if linear.bits == 8:
        return check_int8(linear.codes, name)
    return decode_codes(linear.codes, linear.mult, linear.off, linear.bits, linear.group)


class _Linear:
    """One weight matrix [N, K]: ``y = f32(acc) (*) (s_a (*) s_w)``, and ``(+) bias`` where it has one."""

    def __init__(self, linear: QuantisedLinear, name: str, as_float32: bool, bias: np.ndarray | None = None):
        grid = weight_grid(linear, name)
        if grid.shape[1] > MAX_DOT_LENGTH:
            raise UserError(f"tensor {name}: has {grid.shape[1]} inputs; allowed are up to {MAX_DOT_LENGTH}, which int32 sums hold exactly")
        self._grid = as_operand(grid, name) if as_float32 else np.ascontiguousarray(grid)
        self._row_scale = linear.row_scale
        self._bias = bias

    def __call__(self, q8: np.ndarray, s_a: np.ndarray) -> np.ndarray:
        """q8 int8 [n, K], s_a float32 [n] -> float32 [n, N]."""
        y = fn.scale(self._dot(q8), s_a[:, None], self._row_scale)
        return y if self._bias is None else add(y, self._bias)

    def _dot(self, q8: np.ndarray) -> np.ndarray:
        if self._grid.dtype == np.int8 and len(q8) <= GEMV_POSITIONS:
            from headrace.sim.int8_gemv import int8_gemv  # numba takes a second to import: only where it pays

            acc = np.empty((len(q8), len(self._grid)), np.int32)
            for vector, row in zip(q8.astype(np.int16), acc, strict=True):
                int8_gemv(vector, self._grid, row)
            return acc
        # BLAS on float32 that holds integers: dot_operands cuts K so that no partial sum passes 2**24 (see its comment).
        return dot_operands(q8.astype(np.float32), self._grid.astype(np.float32, copy=False))


class KvCache:
    """INT8 keys and values with one scale per token and KV head, for one layer; grows by doubling.

    k8, v8: int8 [kv_heads, capacity, head_dim]; s_k, s_v: float32 [kv_heads, capacity]. Rows past the length are junk
    on purpose: they are masked, never read as data. A cache of 4 `bits` holds what its codes decode to (contract section 6).
    """

    def __init__(self, kv_heads: int, head_dim: int, limit: int, bits: int = 8):
        self.limit, self.bits = limit, bits
        self._allocate(kv_heads, head_dim, min(limit, 128))

    def _allocate(self, kv_heads: int, head_dim: int, capacity: int) -> None:
        self.k8 = np.full((kv_heads, capacity, head_dim), -127, np.int8)
        self.v8 = np.full((kv_heads, capacity, head_dim), 127, np.int8)
        self.s_k = np.full((kv_heads, capacity), np.nan, np.float32)
        self.s_v = np.full((kv_heads, capacity), np.nan, np.float32)

    def write(self, start: int, k8: np.ndarray, s_k: np.ndarray, v8: np.ndarray, s_v: np.ndarray) -> None:
        """Rows start .. start + n - 1. k8, v8 int8 [n, kv_heads, head_dim]; s_k, s_v float32 [n, kv_heads]."""
        end = start + len(k8)
        if self.bits == 4:
            k8, v8 = kv4.decode(*kv4.encode(k8)), kv4.decode(*kv4.encode(v8))
        heads, capacity, head_dim = self.k8.shape
        if end > capacity:
            old = self.k8, self.v8, self.s_k, self.s_v
            self._allocate(heads, head_dim, min(self.limit, max(end, 2 * capacity)))
            for new, previous in zip((self.k8, self.v8, self.s_k, self.s_v), old, strict=True):
                new[:, :start] = previous[:, :start]
        self.k8[:, start:end], self.s_k[:, start:end] = k8.swapaxes(0, 1), s_k.swapaxes(0, 1)
        self.v8[:, start:end], self.s_v[:, start:end] = v8.swapaxes(0, 1), s_v.swapaxes(0, 1)


class GoldenExecutor:
    """Runs a `QuantisedModel` token by token or many positions at once, with identical bits.

    `trace(layer, name, array)` sees every intermediate under the name of its operator in `models.graph`: "embedding",
    "attn_norm", "q", "k", "v", "rope_q", "rope_k", "attention_qk", "softmax", "attention_pv", "o", "attn_add", "mlp_norm",
    "gate", "up", "silu_mul", "down", "mlp_add", "final_norm", "lm_head". The first axis is the position within the pass
    ([n, heads, ...] in attention, [n, heads, T] for scores). A quantised vector appears under its source's name with ".q8"
    and ".scale": attn_norm, rope_q, rope_k, v, attention_pv, mlp_norm, silu_mul, final_norm. "softmax" is the INT8 p, with
    ".scale" the scale of the output. Decoders other than Llama have the operators that `build_graph` gives them; without RoPE
    q and k are quantised under their own names.
    """

    def __init__(self, qmodel: QuantisedModel, *, trace: Trace | None = None):
        self.qmodel = qmodel
        self.config = config = qmodel.config
        self.trace = trace
        self._mask = qmodel.scheme.mask
        as_float32 = config.parameters <= FLOAT32_ELEMENTS
        self._layers = [
            {
                name: _Linear(layer[name], f"layers.{index}.{name}", as_float32, layer.get(name + ".bias"))
                for name in qmodel.config.linear_names
            }
            for index, layer in enumerate(qmodel.layers)
        ]
        self._lm_head = _Linear(qmodel.lm_head, "lm_head", as_float32)
        self._embedding = weight_grid(qmodel.embedding, "embedding")
        self._embedding_scale = qmodel.embedding.row_scale
        if qmodel.config.embedding_scale != 1.0:
            self._embedding_scale = decoders.embedding_scale(self._embedding_scale, qmodel.config.embedding_scale)
        self._positions = None if qmodel.positions is None else weight_grid(qmodel.positions, "positions")
        self.reset()

    def reset(self) -> None:
        """Forget every token."""
        config = self.config
        self.position = 0
        self.cache = [KvCache(config.kv_heads, config.head_dim, config.max_positions, self.qmodel.scheme.kv_bits) for _ in range(config.layers)]

    def step(self, token: int) -> np.ndarray:
        """Logits float32 [vocab] after one more token."""
        return self._forward([token], "last")[0]

    def prefill(self, tokens: Sequence[int], *, all_positions: bool = False) -> np.ndarray:
        """Take all `tokens`; logits float32 [vocab] of the last, or [len(tokens), vocab] of all positions."""
        if not len(tokens):
            raise UserError("tokens: none were given, at least one is needed")
        self._check(tokens)
        parts = []
        for start in range(0, len(tokens), POSITIONS_PER_PASS):
            chunk = tokens[start : start + POSITIONS_PER_PASS]
            last = start + len(chunk) == len(tokens)
            parts.append(self._forward(chunk, "all" if all_positions else "last" if last else "none"))
        return np.concatenate(parts) if all_positions else parts[-1][0]

    def _check(self, tokens: Sequence[int]) -> None:
        config = self.config
        if self.position + len(tokens) > config.max_positions:
            raise UserError(
                f"model {config.name}: {self.position + len(tokens)} positions are needed; allowed are max_positions = "
                f"{config.max_positions}"
            )
        for token in tokens:
            if not 0 <= token < config.vocab:
                raise UserError(f"model {config.name}: token {token} is unknown; allowed are 0 to {config.vocab - 1}")

    def _note(self, layer: int, name: str, array: np.ndarray) -> np.ndarray:
        if self.trace is not None:
            self.trace(layer, name, array)
        return array

    def _quantise(self, layer: int, name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q8, s = fn.quantise(x)
        self._note(layer, name + ".q8", q8)
        self._note(layer, name + ".scale", s)
        return q8, s

    def _forward(self, tokens: Sequence[int], logits: str) -> np.ndarray:
        """One pass over consecutive tokens. logits: "all", "last" or "none" -> float32 [n, vocab], [1, vocab], [0, vocab]."""
        self._check(tokens)
        model, start, n = self.qmodel, self.position, len(tokens)
        rows = np.asarray(tokens, np.int64)
        x = self._note(-1, "embedding", fn.embed(self._embedding[rows], self._embedding_scale[rows]))
        if self._positions is not None:
            at = slice(start + self.config.position_offset, start + self.config.position_offset + n)
            learned = self._note(-1, "positions", fn.embed(self._positions[at], model.positions.row_scale[at]))
            x = self._note(-1, "position_add", add(x, learned))
        for index in range(self.config.layers):
            x = self._attention(index, x, start)
            x = self._mlp(index, x)
        self.position = start + n
        kept = {"all": n, "last": 1, "none": 0}[logits]
        if not kept:
            return np.empty((0, self.config.vocab), np.float32)
        h = self._norm(-1, "final_norm", x[n - kept :], model.final_norm, model.final_norm_bias)
        out = self._note(-1, "lm_head", self._lm_head(*self._quantise(-1, "final_norm", h)))
        cap = self.config.logit_cap
        return out if cap is None else self._note(-1, "logit_cap", decoders.softcap(out, cap))

    def _norm(self, layer: int, name: str, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        epsilon = self.config.rms_eps
        y = fn.rmsnorm(x, weight, epsilon) if self.config.norm == "rmsnorm" else decoders.layernorm(x, weight, bias, epsilon)
        return self._note(layer, name, y)

    def _layer_norm(self, index: int, name: str, x: np.ndarray) -> np.ndarray:
        layer = self.qmodel.layers[index]
        return self._norm(index, name, x, layer[name], layer.get(name + ".bias"))

    def _attention(self, index: int, x: np.ndarray, start: int) -> np.ndarray:
        config, linears, cache = self.config, self._layers[index], self.cache[index]
        n, kv_heads, head_dim = len(x), config.kv_heads, config.head_dim
        shared = config.heads // kv_heads  # query heads of one KV head
        end, window = start + n, config.window_of(index)

        h = self._layer_norm(index, "attn_norm", x)
        hq, s_h = self._quantise(index, "attn_norm", h)
        q, k, v = (
            self._note(index, name, linears[name](hq, s_h).reshape(n, -1, head_dim)) for name in ("q", "k", "v")
        )
        if config.qk_norm:
            q, k = self._layer_norm(index, "q_norm", q), self._layer_norm(index, "k_norm", k)
        turned = config.positions == "rope"
        if turned:
            tables = self.qmodel.window_rope if window is not None else None
            cos, sin = (table[start:end, None] for table in tables or (self.qmodel.rope_cos, self.qmodel.rope_sin))
            q = self._note(index, "rope_q", fn.rope(q, cos, sin))
            k = self._note(index, "rope_k", fn.rope(k, cos, sin))
        q8, s_q = self._quantise(index, "rope_q" if turned else "q", q)
        k8, s_k = self._quantise(index, "rope_k" if turned else "k", k)
        v8, s_v = self._quantise(index, "v", v)
        cache.write(start, k8, s_k, v8, s_v)

        # Per KV head: its `shared` query heads times n positions are the rows, cached positions the columns.
        rows = q8.reshape(n, kv_heads, shared, head_dim).transpose(1, 2, 0, 3).reshape(kv_heads, shared * n, head_dim)
        row_scale = fn.score_scale(s_q, config.score_multiplier).reshape(n, kv_heads, shared).transpose(1, 2, 0)
        acc = dot_operands(rows.astype(np.float32), cache.k8[:, :end].astype(np.float32))
        acc = acc.reshape(kv_heads, shared, n, end)
        scores = fn.scale(acc, row_scale[..., None], cache.s_k[:, None, None, :end])
        if config.score_cap is not None:
            raw, scores = scores, decoders.softcap(scores, config.score_cap)
        visible = visible_keys(start, end, window, self._mask)
        valid = None if visible.all() else visible
        p8, s_out = fn.softmax_quantised(scores, cache.s_v[:, None, None, :end], valid)
        if self.trace is not None:
            by_position = (2, 0, 1, 3)
            if config.score_cap is not None:
                self._note(index, "attention_qk", raw.transpose(by_position).reshape(n, config.heads, end))
            name = "attention_qk" if config.score_cap is None else "score_cap"
            self._note(index, name, scores.transpose(by_position).reshape(n, config.heads, end))
            self._note(index, "softmax.q8", p8.transpose(by_position).reshape(n, config.heads, end))
            self._note(index, "softmax.scale", s_out.transpose(2, 0, 1).reshape(n, config.heads))
        weights = p8.reshape(kv_heads, shared * n, end).astype(np.float32)
        acc = dot_operands(weights, cache.v8[:, :end].astype(np.float32).swapaxes(1, 2))
        out = mul(from_int32(acc.reshape(kv_heads, shared, n, head_dim)), s_out[..., None])
        out = self._note(index, "attention_pv", out.transpose(2, 0, 1, 3).reshape(n, config.heads, head_dim))

        delta = self._note(index, "o", linears["o"](*self._quantise(index, "attention_pv", out.reshape(n, -1))))
        if config.post_norms:
            delta = self._layer_norm(index, "post_attn_norm", delta)
        return self._note(index, "attn_add", add(x, delta))

    def _mlp(self, index: int, x: np.ndarray) -> np.ndarray:
        linears, config, name = self._layers[index], self.config, self.config.mlp_operator
        hq, s_h = self._quantise(index, "mlp_norm", self._layer_norm(index, "mlp_norm", x))
        activation = decoders.ACTIVATIONS[config.activation]
        if config.gated:
            gate = activation(self._note(index, "gate", linears["gate"](hq, s_h)))
            inner = self._note(index, name, mul(gate, self._note(index, "up", linears["up"](hq, s_h))))
        else:
            inner = self._note(index, name, activation(self._note(index, "up", linears["up"](hq, s_h))))
        delta = self._note(index, "down", linears["down"](*self._quantise(index, name, inner)))
        if config.post_norms:
            delta = self._layer_norm(index, "post_mlp_norm", delta)
        return self._note(index, "mlp_add", add(x, delta))
