"""A compression scheme: bits per tensor, group size, KV bits, N:M sparsity, attention mask. Read from configs/schemes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from headrace.models.configfile import StrictModel
from headrace.models.configfile import load_model as load_config
from headrace.models.errors import UserError
from headrace.models.decoder import LINEAR_NAMES, DecoderConfig
from headrace.models.masks import Mask

GROUP_SHIFT = {2: 1, 3: 2, 4: 3, 5: 4, 6: 4}
"""Code bits -> right shift of the affine map (contract section 1)."""

GROUP_META_BITS = 20
"""8 bits of mult and 12 bits of off per group of stored codes."""

ROW_SCALE_BYTES = 4


BLOCK = 16
"""N:16 sparsity keeps the same number of weights in every row of a block of 16 rows and 16 columns."""

KEPT_COUNTS = (2, 4, 8, 12, 16)
"""How many of its 16 columns a row of a block may keep."""

BLOCK_COUNT_BITS = 3
"""Which of `KEPT_COUNTS` a block keeps."""


class Sparsity(StrictModel):
    """N:16 along K: `n` of every `m` weights are kept; `index_share` rows share one index."""

    n: Literal[2, 4, 8, 12, 16]
    m: Literal[16] = 16
    index_share: Literal[1, 2] = 2


Positions = Annotated[int, Field(ge=1, le=1 << 20)]


class StaticMask(StrictModel):
    """Which earlier keys a query sees: a window, with `sinks` first tokens and every stride-th key before it, or blocks (contract section 7)."""

    window: Positions | None = None
    sinks: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    stride: Positions | None = None
    block: Positions | None = None
    blocks: Positions = 1

    @model_validator(mode="after")
    def _check(self):
        if (self.window is None) == (self.block is None):
            raise ValueError("one of window and block must be given, and not both.")
        if self.stride is not None and self.window is None:
            raise ValueError("stride goes with window.")
        if self.blocks > 1 and self.block is None:
            raise ValueError("blocks goes with block.")
        return self

    @property
    def mask(self) -> Mask:
        return Mask(**{name: getattr(self, name) for name in StaticMask.model_fields})

    @property
    def rules(self) -> str:
        """In words: "window 64, sinks 4"."""
        return ", ".join(f"{name} {value}" for name, value in self.model_dump(exclude_defaults=True).items())


class Scheme(StrictModel):
    """Bits of everything. 8-bit weights have one scale per row and no groups; below that `group` codes share mult and off.

    linear_bits: by kind ("down"); tensor_bits: of single ones ("layers.3.down"), which go before.
    attention: a static mask of all layers; None where a query sees every earlier key.
    """

    name: str
    description: str = ""
    weight_bits: Literal[2, 3, 4, 5, 6, 8]
    linear_bits: dict[str, Literal[2, 3, 4, 5, 6, 8]] = Field(default_factory=dict)
    tensor_bits: dict[str, Literal[2, 3, 4, 5, 6, 8]] = Field(default_factory=dict)
    group: Literal[32, 64, 128] = 32
    embedding_bits: Literal[8] = 8
    lm_head_bits: Literal[8] = 8
    activation_bits: Literal[8, 16] = 8
    kv_bits: Literal[4, 8, 16] = 8
    sparsity: Sparsity | None = None
    attention: StaticMask | None = None

    @field_validator("linear_bits")
    @classmethod
    def _known_linears(cls, value: dict[str, int]) -> dict[str, int]:
        for name in value:
            if name not in LINEAR_NAMES:
                raise ValueError(f"{name!r} is not a linear; allowed: {', '.join(LINEAR_NAMES)}")
        return value

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value or not value.isprintable() or len(value) > 1000:
            raise ValueError("allowed is a name of 1 to 1000 printable characters")
        return value

    @field_validator("tensor_bits")
    @classmethod
    def _known_tensors(cls, value: dict[str, int]) -> dict[str, int]:
        for name in value:
            prefix, _, linear = name.rpartition(".")
            if linear not in LINEAR_NAMES or not prefix.removeprefix("layers.").isdecimal() or not prefix.startswith("layers."):
                raise ValueError(f"{name!r} is not a linear of a layer; allowed are names such as 'layers.3.q'")
        return value

    @property
    def mask(self) -> Mask | None:
        return None if self.attention is None else self.attention.mask

    def bits_of(self, linear: str) -> int:
        """Code bits of one of a layer's linears, where `tensor_bits` is silent: its entry in `linear_bits`, else `weight_bits`."""
        return self.linear_bits.get(linear, self.weight_bits)

    def bits_of_tensor(self, name: str) -> int:
        """Code bits of a linear of one layer ("layers.3.q")."""
        return self.tensor_bits.get(name, self.bits_of(name.rpartition(".")[2]))


def load_scheme(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Scheme:
    """Scheme of configs/schemes by name, or from a file; `overrides` are `path=value`, and its name says so."""
    overrides = [override.strip() for override in overrides]
    scheme = load_config(Scheme, "schemes", name_or_path, overrides)
    if not overrides or any(override.startswith("name=") for override in overrides):
        return scheme
    return scheme.model_copy(update={"name": f"{scheme.name}+{','.join(overrides)}"})


def matrix_bytes(rows: int, columns: int, bits: int, group: int = 32) -> int:
    """Required bytes of one dense weight matrix: codes, group metadata (below 8 bits) and row scales; no padding."""
    groups = 0 if bits == 8 else rows * -(-columns // group)
    return -(-(rows * columns * bits + groups * GROUP_META_BITS) // 8) + rows * ROW_SCALE_BYTES


def sparse_bytes(counts: np.ndarray, rows: int, bits: int, group: int, index_share: int) -> int:
    """Required bytes of an N:16 sparse matrix: kept codes, metadata of groups of stored codes, indices and row scales; no padding.

    counts: [ceil(rows / 16), ceil(K / 16)], the columns that a row keeps in each block. A block's index is the smaller of a bitmap
    (16 bits) and a list (4 bits a column), one for `index_share` rows; a block that keeps all 16 has none. Each block states its count.
    """
    counts = np.asarray(counts, np.int64)
    rows_of = np.minimum(BLOCK, rows - BLOCK * np.arange(len(counts)))[:, None]
    stored = counts.sum(axis=1, keepdims=True)
    groups = 0 if bits == 8 else int((rows_of * -(-stored // group)).sum())
    index_bits = np.where(counts == BLOCK, 0, np.minimum(BLOCK, 4 * counts)) * -(-rows_of // index_share)
    total = int((counts * rows_of).sum()) * bits + groups * GROUP_META_BITS + int(index_bits.sum()) + counts.size * BLOCK_COUNT_BITS
    return -(-total // 8) + rows * ROW_SCALE_BYTES


def check_tensor_bits(config: DecoderConfig, scheme: Scheme) -> None:
    """UserError where `tensor_bits` names a linear that the model lacks."""
    for name in sorted(scheme.tensor_bits.keys() - config.weight_shapes().keys()):
        raise UserError(f"scheme {scheme.name}: tensor_bits.{name}: model {config.name} has no such linear; its layers are 0 to {config.layers - 1}")


def refuse_sparse(scheme: Scheme) -> None:
    """UserError for a sparse scheme: how its indices are stored is not settled, so its bytes are not known."""
    if scheme.sparsity is not None and scheme.sparsity.n != scheme.sparsity.m:
        raise UserError(f"scheme {scheme.name}: sparsity.n = {scheme.sparsity.n}; bytes of sparse weights are not known, allowed is 16 (dense)")


def weight_bytes(config: DecoderConfig, scheme: Scheme) -> int:
    """Required bytes of all weights: block linears, embedding, LM head (once when tied), norms and biases in float32. A table
    of positions has the embedding's bits.

    Raises UserError for a sparse scheme, whose bytes are not known here: never those of the dense one.
    """
    refuse_sparse(scheme)
    if scheme.tensor_bits:
        check_tensor_bits(config, scheme)

    def one(name: str, shape: tuple[int, ...]) -> int:
        if len(shape) == 1:
            return 4 * shape[0]
        if name in ("embedding", "positions"):
            return matrix_bytes(*shape, scheme.embedding_bits)
        bits = scheme.lm_head_bits if name == "lm_head" else scheme.bits_of_tensor(name)
        return matrix_bytes(*shape, bits, scheme.group)

    outer = sum(one(name, shape) for name, shape in config.weight_shapes().items() if not name.startswith("layers."))
    if not scheme.tensor_bits:
        return outer + config.layers * sum(one(name, shape) for name, shape in config.layer_shapes().items())
    return outer + sum(one(f"layers.{i}.{name}", shape) for i in range(config.layers) for name, shape in config.layer_shapes().items())


def refuse_single_tensors(scheme: Scheme, what: str) -> None:
    """UserError for a scheme with `tensor_bits`. `what` is the thing that has one width for a linear of all layers."""
    for name, bits in scheme.tensor_bits.items():
        raise UserError(f"scheme {scheme.name}: tensor_bits.{name} = {bits}; {what} has one width for a linear of all layers")


def refuse_cache_and_mask(scheme: Scheme, what: str) -> None:
    """UserError for another cache than 8 bits and for a static mask. `what` is the thing that has neither."""
    if scheme.kv_bits != 8:
        raise UserError(f"scheme {scheme.name}: kv_bits = {scheme.kv_bits}; {what} allows 8")
    if scheme.attention is not None:
        raise UserError(f"scheme {scheme.name}: attention = {scheme.attention.rules}; {what} allows null: every earlier key is seen")
