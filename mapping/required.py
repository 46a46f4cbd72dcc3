"""What a scheme requires to be read, and how many useful multiply-accumulates there are, operator by operator.

Required bytes: codes, group metadata, row scales, the embedding row, KV codes and scales once per KV head. Not: padding, norms, tables,
logits. They do not depend on the machine. Names of operators are those of `analytic`. Contexts may be arrays.
"""

from dataclasses import dataclass

import numpy as np

from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.models.operators import HALF_BYTES
from headrace.models.scheme import ROW_SCALE_BYTES, Scheme, matrix_bytes, refuse_sparse, weight_bytes


@dataclass(frozen=True)
class Held:
    """Bytes that must lie in memory, without any padding: weights, and every sequence's cache (and recurrent state)."""

    weights: float
    cache: float

    @property
    def total(self) -> float:
        return self.weights + self.cache


def held_bytes(config: DecoderConfig, scheme: Scheme | None, context: int, *, batch: int = 1) -> Held:
    """Of `batch` sequences at `context`. scheme None: in 16 bits."""
    weights = HALF_BYTES * config.parameters if scheme is None else weight_bytes(config, scheme)
    bits = 8 * HALF_BYTES if scheme is None else scheme.kv_bits
    return Held(weights, batch * context * config.kv_bytes_per_token(bits))


def weight_bytes_by_op(config: DecoderConfig, scheme: Scheme, *, lm_head: bool = True) -> dict[str, int]:
    """Bytes of weights of one pass, all layers: each linear, the LM head, one embedding row."""
    refuse_sparse(scheme)
    sizes = {name: _bytes_of_linear(config, scheme, name) for name in LINEAR_NAMES}
    sizes["embedding"] = -(-config.width * scheme.embedding_bits // 8) + ROW_SCALE_BYTES
    if lm_head:
        sizes["lm_head"] = matrix_bytes(config.vocab, config.width, scheme.lm_head_bits)
    return sizes


def _bytes_of_linear(config: DecoderConfig, scheme: Scheme, name: str) -> int:
    """Of one of the linears, all layers."""
    shape = config.linear_shape(name)
    if not scheme.tensor_bits:
        return config.layers * matrix_bytes(*shape, scheme.bits_of(name), scheme.group)
    return sum(matrix_bytes(*shape, scheme.bits_of_tensor(f"layers.{layer}.{name}"), scheme.group) for layer in range(config.layers))


def kv_bytes_by_op(config: DecoderConfig, scheme: Scheme, context) -> dict[str, np.ndarray]:
    """Bytes of keys and of values with their scales, all layers, at KV length `context`: half of the cache each."""
    half = np.asarray(context) * config.kv_bytes_per_token(scheme.kv_bits) // 2
    return {"scores": half, "values": half}


def required_bytes_by_op(config: DecoderConfig, scheme: Scheme, context, *, lm_head: bool = True) -> dict[str, np.ndarray | int]:
    """Of one pass at KV length `context`."""
    return weight_bytes_by_op(config, scheme, lm_head=lm_head) | kv_bytes_by_op(config, scheme, context)


def required_bytes(config: DecoderConfig, scheme: Scheme, context, *, lm_head: bool = True, batch: int = 1) -> np.ndarray:
    """Of one step of `batch` sequences at the same length: weights once, embedding row and cache per sequence."""
    weights = weight_bytes_by_op(config, scheme, lm_head=lm_head)
    row = weights.pop("embedding")
    return sum(weights.values()) + batch * (row + sum(kv_bytes_by_op(config, scheme, context).values()))


def required_prefill_bytes(config: DecoderConfig, scheme: Scheme, tokens: int, *, batch: int = 1) -> int:
    """Of a prefill: weights once for all tokens, an embedding row per token, the cache of the prompt once."""
    weights = weight_bytes_by_op(config, scheme)
    row = weights.pop("embedding")
    return int(sum(weights.values()) + batch * (tokens * row + sum(kv_bytes_by_op(config, scheme, tokens).values())))


def macs_by_op(config: DecoderConfig, context, *, lm_head: bool = True) -> dict[str, np.ndarray | int]:
    """Useful multiply-accumulates of one pass at KV length `context`."""
    macs: dict[str, np.ndarray | int] = {}
    for name in LINEAR_NAMES:
        outputs, inputs = config.linear_shape(name)
        macs[name] = config.layers * outputs * inputs
    macs["scores"] = macs["values"] = config.layers * config.q_width * np.asarray(context)
    if lm_head:
        macs["lm_head"] = config.vocab * config.width
    return macs


def useful_macs(config: DecoderConfig, context, *, lm_head: bool = True) -> np.ndarray:
    return sum(macs_by_op(config, context, lm_head=lm_head).values())
