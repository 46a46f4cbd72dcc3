"""Rounding whose error later columns make good: the columns are rounded one after another, and each one's error is spread over those
that are not rounded yet, in the way that changes the layer's outputs on the calibration text least.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (ICLR 2023), section 3; order
of descending activation size and groups fixed beforehand as its authors' later releases have it ("act-order", "static groups"). The
pruned columns of a sparse matrix are rounded to 0, as in Frantar and Alistarh, "SparseGPT" (ICML 2023), section 3.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.models.compress.group_grid import fit_grid
from headrace.models.compress.statistics import InputStatistics
from headrace.models.quantise import MAX_W8, QuantisedLinear

COLUMNS_PER_BLOCK = 64
"""Columns whose errors are gathered before the rest of the matrix is updated, by one product. Changes speed, and results only by the order of float32 sums."""


def compensate(
    weight: np.ndarray, inputs: InputStatistics, bits: int, group: int, *, kept: np.ndarray | None = None, pruned: np.ndarray | None = None,
    index_share: int = 1,
) -> QuantisedLinear:
    """Round float32 weight [N, K] to `bits` bits with error compensation.

    kept: bool [N, K], weights that are stored (all when None), whose columns `index_share` rows share. pruned: the weights after pruning
    alone, float32 [N, K], from which the groups' ranges are then taken.
    """
    grid = fit_grid(weight if pruned is None else pruned, bits, group, importance=inputs.importance, kept=kept)
    order, factor = inputs.order, inputs.ordered_factor
    rest = np.ascontiguousarray(weight[:, order], np.float32)
    kept_in_order, group_of = np.ascontiguousarray(grid.kept[:, order]), np.ascontiguousarray(grid.group_of[:, order])
    codes = np.empty(weight.shape, np.uint8)
    for start in range(0, weight.shape[1], COLUMNS_PER_BLOCK):
        here, behind = slice(start, start + COLUMNS_PER_BLOCK), slice(start + COLUMNS_PER_BLOCK, None)
        block = np.ascontiguousarray(rest[:, here])
        found, errors = np.empty(block.shape, np.uint8), np.empty(block.shape, np.float32)
        _round_block(
            block, np.ascontiguousarray(factor[here, here]), np.ascontiguousarray(kept_in_order[:, here]),
            np.ascontiguousarray(group_of[:, here]), grid.row_scale, grid.mult, grid.off, grid.shift, grid.top, found, errors,
        )
        codes[:, order[here]] = found
        rest[:, behind] -= errors @ factor[here, behind]
    return grid.linear(codes, index_share)


@numba.njit(cache=True)
def _round_block(weight, factor, kept, group_of, row_scale, mult, off, shift, top, codes, errors):
    """The columns of one block in turn. errors: what each column's rounding left, over the factor's diagonal."""
    rows, columns = weight.shape
    half = (1 << shift) >> 1
    for row in range(rows):
        scale = row_scale[row]
        unit = scale / np.float32(1 << shift)
        for column in range(columns):
            value = weight[row, column]
            code, grid = 0, np.float32(0.0)
            if kept[row, column] and scale > 0:
                group = group_of[row, column]
                step, base = mult[row, group], off[row, group]
                code = int(min(max(np.rint((value / unit - base) / step), 0.0), float(top)))
                point = (code * int(step) + int(base) + half) >> shift
                grid = np.float32(min(max(point, -MAX_W8), MAX_W8)) * scale
            codes[row, column] = code
            error = (value - grid) / factor[column, column]
            errors[row, column] = error
            for other in range(column + 1, columns):
                weight[row, other] -= error * factor[column, other]
