"""The grid that the codes of a weight matrix point into: a scale per row, and a step and an offset per group of stored codes.

Round to nearest takes each group's minimum and maximum. Where the importance of the columns is known (the mean square of what they are
multiplied by), a narrower range often costs less: `fit_grid` tries some and keeps the best of each group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from headrace.models.quantise import MAX_MULT, MAX_OFF, MAX_W8, MIN_OFF, QuantisedLinear, row_scale_of, stored_groups
from headrace.models.scheme import GROUP_SHIFT

RANGES = tuple(1.0 - step / 40 for step in range(21))
"""Shares of a group's range that `fit_grid` tries: a search grid, 1 to 1/2 in steps of 1/40. The best of each group is kept, so it bounds the search and fits nothing."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """int8 value of code c in group g of row r: `clip((c * mult[r, g] + off[r, g] + half) >> shift, -127, 127)`, times row_scale[r].

    bits 8: codes are the int8 values (kept here as 0 .. 254, offset by 127), shift is 0 and there is one group.
    group_of: int32 [N, K], the group that an element's code is stored in; kept: bool [N, K], False where nothing is stored.
    """

    bits: int
    group: int
    shift: int
    row_scale: np.ndarray
    mult: np.ndarray
    off: np.ndarray
    group_of: np.ndarray
    kept: np.ndarray

    @property
    def top(self) -> int:
        """The largest code."""
        return 2 * MAX_W8 if self.bits == 8 else (1 << self.bits) - 1

    def linear(self, codes: np.ndarray, index_share: int = 1) -> QuantisedLinear:
        """The matrix with these codes, uint8 [N, K]; those that are not kept are stored as 0."""
        kept = None if self.kept.all() else self.kept
        codes = np.where(self.kept, codes, MAX_W8 if self.bits == 8 else 0)
        if self.bits == 8:
            none = (len(codes), 0)
            return QuantisedLinear(
                codes=(codes.astype(np.int16) - MAX_W8).astype(np.int8), mult=np.zeros(none, np.uint8), off=np.zeros(none, np.int16), shift=0,
                bits=8, row_scale=self.row_scale, kept=kept,
                index_share=index_share,
            )
        return QuantisedLinear(
            codes=codes.astype(np.uint8), mult=self.mult.astype(np.uint8), off=self.off.astype(np.int16), shift=self.shift, bits=self.bits,
            row_scale=self.row_scale, group=self.group, kept=kept, index_share=index_share,
        )


def fit_grid(
    weight: np.ndarray, bits: int, group: int, *, importance: np.ndarray | None = None, kept: np.ndarray | None = None,
) -> Grid:
    """A grid for float32 weight [N, K]. importance: float64 [K], weights of the squared errors; without it each group spans its
    minimum and maximum, as round to nearest does. kept: bool [N, K], all when None."""
    kept = np.ones(weight.shape, bool) if kept is None else kept
    seen = np.where(kept, weight, np.float32(0))
    row_scale = row_scale_of(np.abs(seen).max(axis=1))
    if bits == 8:
        one = np.ones((len(weight), 1))
        return Grid(
            bits=8, group=group, shift=0, row_scale=row_scale, mult=one, off=-MAX_W8 * one, group_of=np.zeros(weight.shape, np.int32), kept=kept,
        )
    shift = GROUP_SHIFT[bits]
    group_of = stored_groups(kept, group)
    groups = int(group_of.max()) + 1
    mult, off = np.ones((len(weight), groups)), np.zeros((len(weight), groups))
    ranges = np.array(RANGES if importance is not None else RANGES[:1])
    weights = np.ones(weight.shape[1]) if importance is None else np.ascontiguousarray(importance, np.float64)
    _fit(np.ascontiguousarray(seen), _unit(row_scale, shift), kept, group_of, weights, ranges, (1 << bits) - 1, mult, off)
    return Grid(bits=bits, group=group, shift=shift, row_scale=row_scale, mult=mult, off=off, group_of=group_of, kept=kept)


def nearest_codes(weight: np.ndarray, grid: Grid) -> np.ndarray:
    """uint8 [N, K]: of each element the code whose grid point (before it is rounded to int8) is nearest."""
    unit = _unit(grid.row_scale, grid.shift)[:, None]
    mult, off = (np.take_along_axis(values, grid.group_of, axis=1) for values in (grid.mult, grid.off))
    return np.clip(np.rint((weight / unit - off) / mult), 0, grid.top).astype(np.uint8)


def round_to_nearest(
    weight: np.ndarray, bits: int, group: int, *, importance: np.ndarray | None = None, kept: np.ndarray | None = None, index_share: int = 1,
) -> QuantisedLinear:
    """Every weight by itself. See `fit_grid`."""
    grid = fit_grid(weight, bits, group, importance=importance, kept=kept)
    return grid.linear(nearest_codes(weight, grid), index_share)


def _unit(row_scale: np.ndarray, shift: int) -> np.ndarray:
    """What one step of mult's and off's integers is worth, float64 [N]; infinite for a row of zeros."""
    return np.where(row_scale == 0, np.inf, row_scale.astype(np.float64)) / (1 << shift)


@numba.njit(cache=True)
def _fit(weight, unit, kept, group_of, importance, ranges, top, mult, off):
    """Of each row and group: the range, of those tried, with the least weighted squared error."""
    rows, columns = weight.shape
    values, weights, count = np.empty(columns), np.empty(columns), 0
    for row in range(rows):
        start = 0
        while start < columns:
            # The kept elements of one group, which lie side by side.
            group, count, stop = group_of[row, start], 0, start
            low, high = np.inf, -np.inf
            while stop < columns and group_of[row, stop] == group:
                if kept[row, stop]:
                    values[count], weights[count] = weight[row, stop] / unit[row], importance[stop]
                    low, high = min(low, values[count]), max(high, values[count])
                    count += 1
                stop += 1
            start = stop
            if count == 0:
                continue
            least = np.inf
            for share in ranges:
                span = (high - low) * share
                step = min(max(np.rint(span / top), 1.0), float(MAX_MULT))
                base = min(max(np.rint(((high + low) * share - step * top) / 2), float(MIN_OFF)), float(MAX_OFF))
                error = 0.0
                for place in range(count):
                    code = min(max(np.rint((values[place] - base) / step), 0.0), float(top))
                    miss = code * step + base - values[place]
                    error += weights[place] * miss * miss
                if error < least:
                    least, mult[row, group], off[row, group] = error, step, base
