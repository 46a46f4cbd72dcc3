"""Which keys a query attends to, as booleans and counted in closed form: causal, bidirectional, sliding window, global tokens, strided, blocks.

Positions count from 0; query i belongs to context T = i + 1. A causal query i sees

- near keys, a run that ends at itself: all of 0 .. i; or the last `window` of them (Beltagy et al. 2020, Longformer, section 3.1); or those
  of its own block of `block` positions and of the `blocks` - 1 blocks before it (Qiu et al. 2020, BlockBERT, in its causal form);
- of the keys before that run, the first `sinks` (global tokens of Longformer; attention sinks of Xiao et al. 2024, StreamingLLM, section 3);
- of the others before it, those at a distance that is a multiple of `stride` (Child et al. 2019, Sparse Transformers, section 4.2, strided).

Lengths may be integers or arrays; all counts are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Rules of the module's text. `stride` needs `window`; `window` and `block` exclude each other; ValueError otherwise."""

    causal: bool = True
    window: int | None = None
    sinks: int = 0
    stride: int | None = None
    block: int | None = None
    blocks: int = 1

    def __post_init__(self) -> None:
        if self.window is not None and self.block is not None:
            raise ValueError("a mask has a window or blocks, not both")
        if self.stride is not None and self.window is None:
            raise ValueError("a stride is for keys before a window, which is missing")
        if not self.causal and not (self.dense and self.sinks == 0):
            raise ValueError("a bidirectional mask sees every key")
        lengths = [n for n in (self.window, self.stride, self.block, self.blocks) if n is not None]
        if min(lengths) < 1 or self.sinks < 0:
            raise ValueError("lengths of a mask must be positive")

    @property
    def dense(self) -> bool:
        """Every earlier key is seen."""
        return self.window is None and self.block is None

    def near(self, context):
        """Length of the run of keys that ends at the query itself (of a causal mask)."""
        context = np.asarray(context)
        if self.window is not None:
            return np.minimum(context, self.window)
        if self.block is not None:
            place = context - 1
            return place % self.block + 1 + np.minimum(place // self.block, self.blocks - 1) * self.block
        return context

    def runs(self, context) -> list[tuple[np.ndarray, np.ndarray]]:
        """(number of runs, keys of each) of the last query at `context`; lengths of zero stand for no run."""
        context = np.asarray(context)
        near = self.near(context)
        before = context - near
        found = [(np.ones_like(context), near)]
        if self.sinks:
            found.append((np.ones_like(context), np.minimum(before, self.sinks)))
        if self.stride is not None:
            # Distances near .. i - sinks: multiples of the stride among them.
            farthest = np.maximum(context - 1 - self.sinks, near - 1)
            found.append((farthest // self.stride - (near - 1) // self.stride, np.ones_like(context)))
        return found

    def visible(self, queries, keys) -> np.ndarray:
        """Whether queries see keys, boolean [queries, keys]. Both are positions, of one dimension."""
        query, key = np.asarray(queries)[:, None], np.asarray(keys)[None, :]
        if not self.causal:
            return np.ones((query.size, key.size), bool)
        if self.dense:
            return key <= query
        if self.window is not None:
            found = query - key < self.window
        else:
            found = query // self.block - key // self.block < self.blocks
        found |= key < self.sinks
        if self.stride is not None:
            found |= (query - key) % self.stride == 0
        return found & (key <= query)

    def seen(self, context):
        """How many keys the last query at `context` sees."""
        return sum(count * keys for count, keys in self.runs(context))

    def pairs(self, tokens: int, context):
        """Query-key pairs of a pass of the last `tokens` positions at `context`."""
        if not self.causal:
            return tokens * np.asarray(context)
        if tokens == 1:
            return self.seen(context)
        return self._until(np.asarray(context)) - self._until(np.asarray(context) - tokens)

    def keys_read(self, tokens: int, context):
        """Distinct keys that the last `tokens` queries at `context` see: each is read once where a pass can hold them all."""
        context = np.asarray(context)
        if not self.causal or self.dense:
            return context
        if tokens == 1:
            return self.seen(context)
        first = context - tokens + 1
        before = first - self.near(first)
        keys = context - before + np.minimum(before, self.sinks)
        if self.stride is None:
            return keys
        rest = np.maximum(0, before - self.sinks)  # keys sinks .. before - 1, of which every query of the pass sees a residue class
        for query in range(min(tokens, self.stride)):
            residue = (context - 1 - query - self.sinks) % self.stride
            keys = keys + np.maximum(0, rest - residue + self.stride - 1) // self.stride
        return keys

    def _until(self, context):
        """Sum of `seen` over contexts 1 .. context."""
        if self.dense:
            return context * (context + 1) // 2
        if self.block is not None:
            b, full, rest = self.block, context // self.block, context % self.block
            back = self.blocks - 1
            own = full * (b * (b + 1) // 2) + rest * (rest + 1) // 2
            earlier = b * (b * _sum_of_least(full - 1, back) + rest * np.minimum(full, back))
            old = np.maximum(0, full - back)  # blocks before the near ones, of the block that is being filled
            sinks = b * _sum_of_least_multiples(np.maximum(0, old - 1), b, self.sinks) + rest * np.minimum(old * b, self.sinks)
            return own + earlier + sinks
        total = _sum_of_least(context, self.window) + _sum_of_least(np.maximum(0, context - self.window), self.sinks)
        if self.stride is not None:
            first = self.window - 1
            last = np.maximum(context - self.sinks, first)
            total = total + _sum_of_quotients(last, self.stride) - _sum_of_quotients(first, self.stride)
            total = total - (last - first) * (first // self.stride)
        return total


def visible_keys(start: int, end: int, window: int | None, mask: Mask | None) -> np.ndarray:
    """Boolean [end - start, end]: the keys that queries start .. end - 1 see of a layer with a sliding window of its own (None: without)
    under a static mask (None: without): those that both let through."""
    queries, keys = np.arange(start, end), np.arange(end)
    found = Mask(window=window).visible(queries, keys)
    return found if mask is None else found & mask.visible(queries, keys)


def _sum_of_least(n, limit: int):
    """min(1, limit) + ... + min(n, limit)."""
    n = np.maximum(n, 0)
    short = np.minimum(n, limit)
    return short * (short + 1) // 2 + (n - short) * limit


def _sum_of_least_multiples(n, step: int, limit: int):
    """min(step, limit) + min(2 * step, limit) + ... + min(n * step, limit)."""
    below = np.minimum(n, limit // step)
    return step * (below * (below + 1) // 2) + (n - below) * limit


def _sum_of_quotients(n, divisor: int):
    """0 // divisor + 1 // divisor + ... + (n - 1) // divisor."""
    full, rest = n // divisor, n % divisor
    return divisor * (full * (full - 1) // 2) + full * rest
