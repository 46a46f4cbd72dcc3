"""Compression of a model under a scheme, onto the int8 grid of the numeric contract (docs/contract.md section 1).

Every rounding is element-wise (float32 per weight, float64 per group) and every sum is over integers, so the result does not
depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headrace.models.errors import UserError
from headrace.models.decoder import DecoderConfig
from headrace.models.model import GroupCodes, Model
from headrace.models.scheme import BLOCK, GROUP_SHIFT, Scheme, check_tensor_bits, matrix_bytes, sparse_bytes
from headrace.models.formats.tokenizer import Tokenizer

GROUP = 32
MAX_W8 = 127
MAX_MULT = 255
MIN_OFF, MAX_OFF = -2048, 2047
MIN_ROW_SCALE = 2.0**-126
"""A row whose scale would be subnormal is stored as zeros: the contract counts subnormals as zero."""

ROPE_SLICE = 4096


@dataclass(frozen=True, kw_only=True)
class QuantisedLinear:
    """One weight matrix [N, K] = [outputs, inputs]; weight = int8() * row_scale.

    Below 8 bits: codes uint8 [N, K], 0 .. 2**bits - 1; mult uint8 and off int16 [N, ceil(K / 32)], one pair per group of 32
    codes along K (the last group is short when 32 does not divide K); `shift` as the contract fixes it for `bits`.
    8 bits: codes int8 [N, K] in +-127; mult and off are [N, 0], shift is 0.
    row_scale: float32 [N].
    group: stored codes that share mult and off. kept: bool [N, K], False where a pruned weight is 0 and no code is stored
    (its entry in `codes` is 0); None where every weight is stored. Groups count stored codes along the row. index_share: rows that
    share one index of kept columns.
    """

    codes: np.ndarray
    mult: np.ndarray
    off: np.ndarray
    shift: int
    bits: int
    row_scale: np.ndarray
    group: int = GROUP
    kept: np.ndarray | None = None
    index_share: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape

    @property
    def required_bytes(self) -> int:
        """Bytes that a pass must read once: codes, metadata, indices and row scales, no padding."""
        if self.kept is None:
            return matrix_bytes(*self.codes.shape, self.bits, self.group)
        return sparse_bytes(block_counts(self.kept, self.index_share), self.codes.shape[0], self.bits, self.group, self.index_share)

    def int8(self) -> np.ndarray:
        """The w8 grid, int8 [N, K] in +-127: `clip((code * mult + off + half) >> shift, -127, 127)`."""
        if self.bits == 8:
            return self.codes
        # 63 * 255 + 2047 + 8 < 2**15: int16 holds every intermediate.
        mult = self._spread(self.mult.astype(np.int16))
        off = self._spread(self.off + np.int16(1 << (self.shift - 1)))
        grid = np.clip((self.codes.astype(np.int16) * mult + off) >> self.shift, -MAX_W8, MAX_W8).astype(np.int8)
        return grid if self.kept is None else np.where(self.kept, grid, np.int8(0))

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Values of groups to the elements [N, K] that they hold for."""
        if self.kept is not None:
            return np.take_along_axis(values, stored_groups(self.kept, self.group), axis=1)
        return np.repeat(values, self.group, axis=1)[:, : self.codes.shape[1]]

    def in_groups_of_32(self) -> QuantisedLinear:
        """The same values with metadata for every 32 codes, which is what machines and kernels decode. Raises UserError for sparse ones."""
        if self.kept is not None:
            raise UserError("sparse weights: machines of version 1 and kernels decode dense ones")
        if self.group == GROUP or self.bits == 8:
            return self
        groups = -(-self.codes.shape[1] // GROUP)
        mult, off = (np.repeat(values, self.group // GROUP, axis=1)[:, :groups] for values in (self.mult, self.off))
        return replace(self, mult=mult, off=off, group=GROUP)

    def dequantised(self) -> np.ndarray:
        """float32 [N, K]: grid times row scale."""
        return self.int8().astype(np.float32) * self.row_scale[:, None]


@dataclass(frozen=True, kw_only=True)
class QuantisedModel:
    """What the golden executor and the compiler consume.

    embedding, lm_head: 8 bits, one scale per row (the same object when tied). layers[i]: the names of
    `DecoderConfig.layer_shapes`, q, k, v, o, gate, up, down as QuantisedLinear, norms, their offsets and the linears' biases as
    float32. final_norm: float32 [width], final_norm_bias its offset where norms have one. positions: 8 bits like the embedding, of
    models that learn them.
    rope_cos, rope_sin: float32 [max_positions, head_dim / 2], computed in float64; pair i is (x[i], x[i + head_dim / 2]).
    window_rope: the two tables of the layers with a sliding window, where those have a theta of their own.
    """

    config: DecoderConfig
    scheme: Scheme
    tokenizer: Tokenizer | None
    embedding: QuantisedLinear
    layers: tuple[dict[str, QuantisedLinear | np.ndarray], ...]
    final_norm: np.ndarray
    lm_head: QuantisedLinear
    rope_cos: np.ndarray
    rope_sin: np.ndarray
    final_norm_bias: np.ndarray | None = None
    positions: QuantisedLinear | None = None
    window_rope: tuple[np.ndarray, np.ndarray] | None = None

    @cached_property
    def required_bytes(self) -> int:
        """Bytes of all weights, tied ones once; norms and biases as float32."""
        tensors = [tensor for layer in self.layers for tensor in layer.values()]
        tensors += [self.embedding, self.positions, self.final_norm, self.final_norm_bias]
        if self.lm_head is not self.embedding:
            tensors.append(self.lm_head)
        found = [tensor for tensor in tensors if tensor is not None]
        return sum(4 * tensor.size if isinstance(tensor, np.ndarray) else tensor.required_bytes for tensor in found)


def stored_groups(kept: np.ndarray, group: int) -> np.ndarray:
    """int32 [N, K]: the group that an element's code falls into, counting stored codes along its row. kept: bool [N, K]."""
    return (np.maximum(np.cumsum(kept, axis=1, dtype=np.int32) - 1, 0) // group).astype(np.int32)


def block_counts(kept: np.ndarray, index_share: int) -> np.ndarray:
    """Codes that a row keeps in each 16 x 16 block, int64 [ceil(N / 16), ceil(K / 16)]. kept: bool [N, K].

    Raises ValueError where rows of a block keep different numbers, or rows that share an index different columns.
    """
    rows, columns = kept.shape
    padded = np.pad(kept, ((0, -rows % BLOCK), (0, -columns % BLOCK)))
    if rows % index_share or (kept.reshape(rows // index_share, index_share, columns) != kept[::index_share, None]).any():
        raise ValueError(f"rows that share an index in groups of {index_share} keep different columns")
    counts = padded.reshape(len(padded) // BLOCK, BLOCK, -1, BLOCK).sum(axis=3)
    if (counts[:, :1] != np.where(np.arange(len(padded)).reshape(-1, BLOCK, 1) < rows, counts, counts[:, :1])).any():
        raise ValueError("rows of a 16 x 16 block keep different numbers of weights")
    return counts[:, 0]


def rope_tables(config: DecoderConfig) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin), float32 [max_positions, head_dim / 2]: angle = t * (theta**(-2i / head_dim) / divisor), all in float64."""
    return _rope_tables(config, config.rope_theta, config.rope_divisors)


def window_rope_tables(config: DecoderConfig) -> tuple[np.ndarray, np.ndarray] | None:
    """The same for the layers with a window, without divisors; None where they turn like the others."""
    return None if config.window_rope_theta is None else _rope_tables(config, config.window_rope_theta, ())


def _rope_tables(config: DecoderConfig, theta: float, divisors: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    exponent = -2.0 * np.arange(config.head_dim // 2, dtype=np.float64) / config.head_dim
    rate = np.float64(theta) ** exponent / (np.array(divisors, np.float64) if divisors else 1.0)
    cos, sin = (np.empty((config.max_positions, len(rate)), np.float32) for _ in range(2))
    for start in range(0, config.max_positions, ROPE_SLICE):  # the float64 angles of all positions would be four times a table
        rows = slice(start, min(start + ROPE_SLICE, config.max_positions))
        angle = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * rate
        cos[rows], sin[rows] = np.cos(angle), np.sin(angle)
    return cos, sin


def quantise_rows(weight: np.ndarray) -> QuantisedLinear:
    """8 bits, one scale per row: w8 = rint(w / row_scale), row_scale = absmax / 127 in float32. weight: float32 [N, K]."""
    row_scale = row_scale_of(np.abs(weight).max(axis=1))
    divisor = np.where(row_scale == 0, np.float32(np.inf), row_scale)[:, None]
    grid = np.divide(weight, divisor, dtype=np.float32)
    np.clip(np.rint(grid, out=grid), -MAX_W8, MAX_W8, out=grid)
    no_groups = (weight.shape[0], 0)
    return QuantisedLinear(
        codes=grid.astype(np.int8), mult=np.zeros(no_groups, np.uint8), off=np.zeros(no_groups, np.int16), shift=0, bits=8,
        row_scale=row_scale,
    )


def quantise_groups(weight: np.ndarray, bits: int, group: int = GROUP) -> QuantisedLinear:
    """Round to nearest, `bits` bits in groups of `group` along K between each group's minimum and maximum. weight: float32 [N, K].

    mult and off are fixed first, on the integer grid; codes are then the nearest to the weight on that very grid, so that the
    rounding of mult and off costs nothing twice.
    """
    shift, top = GROUP_SHIFT[bits], (1 << bits) - 1
    n, k = weight.shape
    row_scale = row_scale_of(np.abs(weight).max(axis=1))
    groups = -(-k // group)
    padded = np.pad(weight, ((0, 0), (0, groups * group - k)), mode="edge").reshape(n, groups, group)
    unit = _divisor(row_scale) / (1 << shift)
    low, high = padded.min(axis=2) / unit, padded.max(axis=2) / unit
    mult = np.clip(np.rint((high - low) / top), 1, MAX_MULT)
    off = np.clip(np.rint((high + low - mult * top) / 2), MIN_OFF, MAX_OFF)
    codes = np.clip(np.rint((padded / unit[:, :, None] - off[:, :, None]) / mult[:, :, None]), 0, top)
    codes = codes.astype(np.uint8).reshape(n, groups * group)[:, :k]
    return QuantisedLinear(
        codes=np.ascontiguousarray(codes), mult=mult.astype(np.uint8), off=off.astype(np.int16), shift=shift, bits=bits,
        row_scale=row_scale, group=group,
    )


def quantise_codes(source: GroupCodes) -> QuantisedLinear:
    """A file's own 4-bit codes pass through; only step and offset of each block move to the grid.

    A negative step complements the codes (15 - code), so that mult is unsigned. The row scale covers the row's values, and is
    widened where a block's step or offset would leave mult's or off's range. `off` also takes up what rounding `mult` shifts at
    the block's mean code.
    """
    shift = GROUP_SHIFT[4]
    n, k = source.codes.shape
    step, offset = source.d.astype(np.float64), source.m.astype(np.float64)
    blocks = source.codes.reshape(n, k // GROUP, GROUP)
    negative = step < 0
    if negative.any():
        blocks = np.where(negative[:, :, None], 15 - blocks, blocks)
        offset = np.where(negative, offset + 15 * step, offset)
        step = np.abs(step)
    lowest, highest = blocks.min(axis=2) * step + offset, blocks.max(axis=2) * step + offset
    absmax = np.maximum(np.abs(lowest), np.abs(highest)).max(axis=1)
    # A wider row scale where 8 * step / s > 255, or 8 * offset / s (moved by mult's rounding, <= 8) leaves 12 bits.
    reach = np.maximum(step.max(axis=1) * (1 << shift) / MAX_MULT, np.abs(offset).max(axis=1) * (1 << shift) / (MAX_OFF - 8))
    row_scale = row_scale_of(np.maximum(absmax, reach * MAX_W8).astype(np.float32))
    unit = _divisor(row_scale) / (1 << shift)
    ideal = step / unit
    mult = np.clip(np.rint(ideal), 0, MAX_MULT)
    mean_code = blocks.sum(axis=2, dtype=np.int64) / GROUP
    off = np.clip(np.rint(offset / unit + (ideal - mult) * mean_code), MIN_OFF, MAX_OFF)
    return QuantisedLinear(
        codes=blocks.reshape(n, k), mult=mult.astype(np.uint8), off=off.astype(np.int16), shift=shift, bits=4,
        row_scale=row_scale,
    )


def check_contract_bits(scheme: Scheme, source: str) -> None:
    """UserError for activations or a cache of bits that the numeric contract does not have."""
    for field, value, allowed in (("activation_bits", scheme.activation_bits, (8,)), ("kv_bits", scheme.kv_bits, (4, 8))):
        if value not in allowed:
            raise UserError(f"{source}: {field} = {value}; allowed by the numeric contract is {' or '.join(map(str, allowed))}")


def check_compressible(config: DecoderConfig, scheme: Scheme) -> None:
    """UserError for a scheme that the numeric contract does not cover, or that names linears which the model lacks."""
    check_contract_bits(scheme, f"scheme {scheme.name}")
    check_tensor_bits(config, scheme)


Rounding = Callable[[str, np.ndarray], QuantisedLinear]
"""From a linear's name ("layers.3.q") and float32 weights to its codes."""


def quantise_model(model: Model, scheme: Scheme, rounding: Rounding | None = None) -> QuantisedModel:
    """Compress `model`: its linears by `rounding`, or to the nearest codes. Raises UserError for what the numeric contract does not cover."""
    check_compressible(model.config, scheme)
    if rounding is None and scheme.sparsity is not None and scheme.sparsity.n != scheme.sparsity.m:
        raise UserError(f"scheme {scheme.name}: sparsity.n = {scheme.sparsity.n}; pruning needs calibration (`headrace compress`), allowed here is 16")
    config = model.config
    layers = []
    for index in range(config.layers):
        layer: dict[str, QuantisedLinear | np.ndarray] = {}
        for name, shape in config.layer_shapes().items():
            whole = f"layers.{index}.{name}"
            if len(shape) == 1:
                layer[name] = finite_weight(model, whole)
            elif rounding is None:
                layer[name] = _quantise_linear(model, whole, scheme.bits_of_tensor(whole), scheme.group)
            else:
                layer[name] = rounding(whole, finite_weight(model, whole))
        layers.append(layer)
    embedding = quantise_rows(finite_weight(model, "embedding"))
    lm_head = embedding if config.tie_embeddings else quantise_rows(finite_weight(model, "lm_head"))
    cos, sin = rope_tables(config)
    return QuantisedModel(
        config=config, scheme=scheme, tokenizer=model.tokenizer, embedding=embedding, layers=tuple(layers),
        final_norm=finite_weight(model, "final_norm"), lm_head=lm_head, rope_cos=cos, rope_sin=sin,
        final_norm_bias=finite_weight(model, "final_norm.bias") if config.norm == "layernorm" else None,
        positions=quantise_rows(finite_weight(model, "positions")) if config.positions == "learned" else None,
        window_rope=window_rope_tables(config),
    )


def _quantise_linear(model: Model, name: str, bits: int, group: int) -> QuantisedLinear:
    if bits == 4 and group == GROUP and name in model.codes:
        return quantise_codes(model.codes[name])
    weight = finite_weight(model, name)
    return quantise_rows(weight) if bits == 8 else quantise_groups(weight, bits, group)


def finite_weight(model: Model, name: str) -> np.ndarray:
    """One weight tensor, float32; UserError that names it where it holds a NaN or an infinity."""
    weight = model.weights[name]
    if not np.isfinite(weight).all():
        raise UserError(f"model {model.config.name}: tensor {name} holds a NaN or an infinity; allowed are finite weights")
    return weight


def row_scale_of(absmax: np.ndarray) -> np.ndarray:
    """absmax / 127 in float32 [N]; 0 where that would be subnormal."""
    scale = absmax.astype(np.float32) / np.float32(MAX_W8)
    return np.where(scale < MIN_ROW_SCALE, np.float32(0), scale)


def _divisor(row_scale: np.ndarray) -> np.ndarray:
    """row_scale as float64 [N, 1]; infinite where it is 0, so that the quotient is 0."""
    scale = row_scale.astype(np.float64)[:, None]
    return np.where(scale == 0, np.inf, scale)
