"""A model with its weights: what the importers give, and what compression takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from headrace.models.decoder import DecoderConfig
from headrace.models.formats.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class GroupCodes:
    """Raw 4-bit codes of a Q4_1 or Q4_0 tensor: value = d * code + m.

    codes: uint8 [N, K], 0..15; d, m: float32 [N, K / 32], a finite step (of either sign) and offset per block of 32 along K.
    """

    codes: np.ndarray
    d: np.ndarray
    m: np.ndarray

    def values(self) -> np.ndarray:
        """Dequantised float32 [N, K]; product and sum are each rounded."""
        n, k = self.codes.shape
        blocks = self.codes.reshape(n, k // 32, 32).astype(np.float32)
        return (blocks * self.d[:, :, None] + self.m[:, :, None]).reshape(n, k)


Item = TypeVar("Item")


class LazyMapping(Mapping[str, Item]):
    """Name -> item, read anew each time that it is asked for, so that a model need not fit memory in float32."""

    def __init__(self, readers: Mapping[str, Callable[[], Item]]):
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> Item:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:  # the default would read the item
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes, weights and tokenizer.

    `weights` maps the names of `DecoderConfig.weight_shapes()` to float32 arrays, dequantised when they are asked for; RoPE is
    half-split in all of them. `codes` holds the raw codes of those tensors that a file stores in Q4_1 or Q4_0.
    """

    config: DecoderConfig
    weights: Mapping[str, np.ndarray]
    codes: Mapping[str, GroupCodes] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
