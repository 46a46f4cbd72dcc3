"""A compression scheme: bits per tensor, group size, KV bits, N:M sparsity. Read from configs/schemes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from headrace.models.configfile import StrictModel
from headrace.models.configfile import load_model as load_config
from headrace.models.errors import UserError
from headrace.models.graph import LINEAR_NAMES, LlamaConfig

GROUP_SHIFT = {2: 1, 3: 2, 4: 3, 5: 4, 6: 4}
"""Code bits -> right shift of the affine map (contract section 1)."""

GROUP_META_BITS = 20
"""8 bits of mult and 12 bits of off per group of stored codes."""

ROW_SCALE_BYTES = 4


class Sparsity(StrictModel):
    """N:16 along K: `n` of every `m` weights are kept; `index_share` rows share one index."""

    n: Literal[2, 4, 8, 16]
    m: Literal[16] = 16
    index_share: Literal[1, 2] = 2


class Scheme(StrictModel):
    """Bits of everything. 8-bit weights have one scale per row and no groups; below that `group` codes share mult and off."""

    name: str
    description: str = ""
    weight_bits: Literal[2, 3, 4, 5, 6, 8]
    linear_bits: dict[str, Literal[2, 3, 4, 5, 6, 8]] = Field(default_factory=dict)
    group: Literal[32] = 32
    embedding_bits: Literal[8] = 8
    lm_head_bits: Literal[8] = 8
    activation_bits: Literal[8, 16] = 8
    kv_bits: Literal[4, 8, 16] = 8
    sparsity: Sparsity | None = None

    @field_validator("linear_bits")
    @classmethod
    def _known_linears(cls, value: dict[str, int]) -> dict[str, int]:
        for name in value:
            if name not in LINEAR_NAMES:
                raise ValueError(f"{name!r} is not a linear; allowed: {', '.join(LINEAR_NAMES)}")
        return value

    def bits_of(self, linear: str) -> int:
        """Code bits of one of a layer's linears: its entry in `linear_bits`, else `weight_bits`."""
        return self.linear_bits.get(linear, self.weight_bits)


def load_scheme(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Scheme:
    """Scheme of configs/schemes by name, or from a file; `overrides` are `path=value`."""
    return load_config(Scheme, "schemes", name_or_path, overrides)


def matrix_bytes(rows: int, columns: int, bits: int, group: int = 32) -> int:
    """Required bytes of one dense weight matrix: codes, group metadata (below 8 bits) and row scales; no padding."""
    groups = 0 if bits == 8 else rows * -(-columns // group)
    return -(-(rows * columns * bits + groups * GROUP_META_BITS) // 8) + rows * ROW_SCALE_BYTES


def refuse_sparse(scheme: Scheme) -> None:
    """UserError for a sparse scheme: how its indices are stored is not settled, so its bytes are not known."""
    if scheme.sparsity is not None and scheme.sparsity.n != scheme.sparsity.m:
        raise UserError(f"scheme {scheme.name}: sparsity.n = {scheme.sparsity.n}; bytes of sparse weights are not known, allowed is 16 (dense)")


def weight_bytes(config: LlamaConfig, scheme: Scheme) -> int:
    """Required bytes of all weights: block linears, embedding, LM head (once when tied), norms and biases in float32. A table
    of positions has the embedding's bits.

    Raises UserError for a sparse scheme, whose bytes are not known here: never those of the dense one.
    """
    refuse_sparse(scheme)

    def one(name: str, shape: tuple[int, ...]) -> int:
        if len(shape) == 1:
            return 4 * shape[0]
        if name in ("embedding", "positions"):
            return matrix_bytes(*shape, scheme.embedding_bits)
        bits = scheme.lm_head_bits if name == "lm_head" else scheme.bits_of(name)
        return matrix_bytes(*shape, bits, scheme.group)

    outer = sum(one(name, shape) for name, shape in config.weight_shapes().items() if not name.startswith("layers."))
    return outer + config.layers * sum(one(name, shape) for name, shape in config.layer_shapes().items())
