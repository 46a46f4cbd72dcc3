"""Which weights an N:16 sparse matrix keeps, and how the kept ones make good for the others.

Every row of a block of 16 rows and 16 columns keeps the same number of weights; rows that share an index (`index_share`) keep the same
columns. Scores of a weight: its magnitude; magnitude times the size of its input (Sun et al., "Wanda", ICLR 2024, section 3); or what its
removal costs after the others have made up for it (Frantar and Alistarh, "SparseGPT", ICML 2023, equation 5).
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.models.compress.statistics import InputStatistics
from headrace.models.errors import UserError
from headrace.models.scheme import BLOCK, KEPT_COUNTS

COLUMNS_PER_UPDATE = 128
"""Columns whose errors are gathered before the rest of the matrix is updated, by one product. Changes speed, not results."""


def check_shape(name: str, shape: tuple[int, int], index_share: int) -> None:
    """UserError unless blocks fill the matrix [N, K]."""
    if shape[1] % BLOCK or shape[0] % index_share:
        raise UserError(f"tensor {name}: has shape {shape}; N:16 sparse ones have a multiple of {BLOCK} inputs and of {index_share} outputs")


def scores(weight: np.ndarray, inputs: InputStatistics | None, method: str) -> np.ndarray:
    """What losing each weight of [N, K] costs, by `method`; float64 [N, K]. `inputs` are not needed for magnitude."""
    square = np.square(weight, dtype=np.float64)
    if method == "magnitude":
        return square
    return square * inputs.importance if method == "wanda" else square / inputs.inverse_diagonal


def uniform_counts(shape: tuple[int, int], n: int) -> np.ndarray:
    """Every block keeps n columns. int64 [ceil(N / 16), K / 16]."""
    return np.full((-(-shape[0] // BLOCK), shape[1] // BLOCK), n)


def mixed_counts(score: np.ndarray, mean: float, index_share: int) -> np.ndarray:
    """Counts of blocks, from `KEPT_COUNTS`, at which least score is lost while at most `mean` columns are kept on average.

    Each block takes the count with the least loss plus price times count; the price is found by bisection (the Lagrangian of the budget).
    Blocks that are of two minds at that price take the larger count while there is room. Never worse than the same count everywhere.
    """
    ascending = np.sort(_by_block(score, index_share), axis=3).cumsum(axis=3).sum(axis=2)
    lost = np.stack([ascending[..., BLOCK - n - 1] if n < BLOCK else np.zeros(ascending.shape[:2]) for n in KEPT_COUNTS], axis=-1)
    counts = np.array(KEPT_COUNTS)

    def chosen(price: float) -> np.ndarray:
        return counts[(lost + price * counts).argmin(axis=-1)]

    low, high = 0.0, float(lost.max()) + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if chosen(middle).mean() > mean else (low, middle)
    found, more = chosen(high).reshape(-1), chosen(low).reshape(-1)
    undecided = np.flatnonzero(more > found)
    fits = np.cumsum(more[undecided] - found[undecided]) <= mean * found.size - found.sum()
    found[undecided[fits]] = more[undecided[fits]]

    def total(counts_of: np.ndarray) -> float:
        return float(np.take_along_axis(lost.reshape(-1, len(KEPT_COUNTS)), np.searchsorted(counts, counts_of)[:, None], axis=1).sum())

    same = np.full_like(found, max(n for n in KEPT_COUNTS if n <= mean))
    return (same if total(same) < total(found) else found).reshape(lost.shape[:2])


def keep_best(score: np.ndarray, counts: np.ndarray, index_share: int) -> np.ndarray:
    """bool [N, K]: of each block the `counts` columns with the highest scores, the lower column where two are equal."""
    rank = np.argsort(np.argsort(-_by_block(score, index_share), axis=3, kind="stable"), axis=3, kind="stable")
    kept = np.repeat(rank < counts[:, :, None, None], index_share, axis=2)
    return kept.swapaxes(1, 2).reshape(-1, score.shape[1])[: len(score)]


def prune(
    weight: np.ndarray, inputs: InputStatistics | None, counts: np.ndarray, index_share: int, method: str
) -> tuple[np.ndarray, np.ndarray]:
    """(kept bool [N, K], pruned float32 [N, K]): pruned weights are 0; with `sparsegpt` the kept ones have made up for them.

    weight: float32 [N, K] with K a multiple of 16; counts: columns that a row keeps in each block (`uniform_counts`, `mixed_counts`).
    """
    if method != "sparsegpt":
        kept = keep_best(scores(weight, inputs, method), counts, index_share)
        return kept, np.where(kept, weight, np.float32(0))
    factor = inputs.factor
    rest, kept = np.array(weight, np.float32), np.empty(weight.shape, bool)
    for start in range(0, weight.shape[1], COLUMNS_PER_UPDATE):
        stop = min(start + COLUMNS_PER_UPDATE, weight.shape[1])
        part, errors = np.ascontiguousarray(rest[:, start:stop]), np.empty((len(weight), stop - start), np.float32)
        for first in range(start, stop, BLOCK):
            here, inside = slice(first, first + BLOCK), slice(first - start, first - start + BLOCK)
            block, own = np.ascontiguousarray(part[:, inside]), np.ascontiguousarray(factor[here, here])
            kept[:, here] = keep_best(np.square(block / own.diagonal(), dtype=np.float64), counts[:, first // BLOCK, None], index_share)
            found = np.empty_like(block)
            _prune_block(block, own, np.ascontiguousarray(kept[:, here]), found)
            part[:, inside], errors[:, inside] = block, found
            part[:, inside.stop :] -= found @ factor[here, here.stop : stop]
        rest[:, start:stop] = part
        rest[:, stop:] -= errors @ factor[start:stop, stop:]
    return kept, rest


def _by_block(score: np.ndarray, index_share: int) -> np.ndarray:
    """Scores of indices, float64 [ceil(N / 16), K / 16, 16 / index_share, 16]; rows that share an index are added."""
    padded = np.pad(score, ((0, -len(score) % BLOCK), (0, 0)))
    return padded.reshape(len(padded) // BLOCK, BLOCK // index_share, index_share, -1, BLOCK).sum(axis=2).swapaxes(1, 2)


@numba.njit(cache=True)
def _prune_block(weight, factor, kept, errors):
    """Zero what is not kept, column by column; the columns behind make up for it."""
    rows, columns = weight.shape
    for row in range(rows):
        for column in range(columns):
            error = np.float32(0.0)
            if not kept[row, column]:
                error = weight[row, column] / factor[column, column]
                for other in range(column + 1, columns):
                    weight[row, other] -= error * factor[column, other]
                weight[row, column] = 0.0
            errors[row, column] = error
