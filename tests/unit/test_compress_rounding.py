"""Grids, error compensation and pruning, against the definitions and against plain references written from the papers' equations."""

import numpy as np
import pytest

from headrace.models.compress.error_compensation import compensate
from headrace.models.compress.group_grid import fit_grid, nearest_codes, round_to_nearest
from headrace.models.compress.prune import check_shape, keep_best, mixed_counts, prune, scores, uniform_counts
from headrace.models.compress.statistics import DAMP, InputStatistics
from headrace.models.errors import UserError
from headrace.models.quantise import block_counts, quantise_groups, quantise_rows
from headrace.models.scheme import KEPT_COUNTS, matrix_bytes, sparse_bytes
from headrace.sim.golden import weight_grid

SEED = 20261130
BITS = (2, 3, 4, 5, 6, 8)


def matrix(rng, rows, columns):
    return rng.standard_normal((rows, columns)).astype(np.float32)


def correlated(rng, columns, tokens=200):
    """Statistics of inputs that a random mixing correlates, of which some are much larger than others."""
    x = rng.standard_normal((tokens, columns)) @ rng.standard_normal((columns, columns)) * np.exp(rng.standard_normal(columns))
    return InputStatistics.of(x.astype(np.float32))


def random_kept(rng, rows, columns, share, counts=None):
    """A mask of the pattern: in every block the rows keep the same number, rows that share an index the same columns."""
    counts = rng.choice(KEPT_COUNTS, (-(-rows // 16), columns // 16)) if counts is None else counts
    kept = np.zeros((rows, columns), bool)
    for row in range(0, rows, share):
        for block in range(columns // 16):
            chosen = 16 * block + rng.permutation(16)[: counts[row // 16, block]]
            for twin in range(row, row + share):
                kept[twin, chosen] = True
    return kept, counts


# Codes to values.


def decoded_by_hand(linear):
    """int8 [N, K] one code at a time, in Python's integers."""
    rows, columns = linear.codes.shape
    grid = np.zeros((rows, columns), np.int64)
    for row in range(rows):
        stored = 0
        for column in range(columns):
            if linear.kept is not None and not linear.kept[row, column]:
                continue
            code, group = int(linear.codes[row, column]), stored // linear.group
            if linear.bits < 8:
                shift = {2: 1, 3: 2, 4: 3, 5: 4, 6: 4}[linear.bits]
                code = (code * int(linear.mult[row, group]) + int(linear.off[row, group]) + (1 << (shift - 1))) >> shift
            grid[row, column] = max(-127, min(127, code))
            stored += 1
    return grid


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_way_of_storing_decodes_to_the_same_grid(bits, group):
    rng = np.random.default_rng([SEED, bits, group])
    for columns in (16, 80, 208):
        weight = matrix(rng, 20, columns)
        for share in (None, 1, 2):
            for uniform in (True, False) if share else (True,):
                counts = uniform_counts(weight.shape, 4) if uniform and share else None
                kept = random_kept(rng, 20, columns, share, counts)[0] if share else None
                linear = round_to_nearest(weight, bits, group, importance=np.ones(columns), kept=kept, index_share=share or 1)
                grid = linear.int8()
                assert np.array_equal(grid, weight_grid(linear, "w")) and np.array_equal(grid, decoded_by_hand(linear)), (SEED, columns, share)
                if linear.kept is None:
                    assert np.array_equal(linear.in_groups_of_32().int8(), grid)
                else:
                    assert not grid[~kept].any() and not linear.codes[~kept].any()
                    with pytest.raises(UserError, match="sparse weights"):
                        linear.in_groups_of_32()


@pytest.mark.parametrize("bits", BITS)
def test_without_importance_the_grid_is_round_to_nearest(bits):
    weight = matrix(np.random.default_rng(SEED), 24, 70)
    found, expected = round_to_nearest(weight, bits, 32), quantise_rows(weight) if bits == 8 else quantise_groups(weight, bits, 32)
    assert np.array_equal(found.mult, expected.mult) and np.array_equal(found.off, expected.off) and np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.row_scale, expected.row_scale)


def test_a_fitted_range_costs_no_more_than_the_whole_range():
    rng = np.random.default_rng(SEED)
    weight, inputs = matrix(rng, 16, 96) ** 3, correlated(rng, 96)
    for bits in (2, 3, 4):
        errors = []
        for importance in (None, inputs.importance):
            grid = fit_grid(weight, bits, 32, importance=importance)
            unit = grid.row_scale.astype(np.float64)[:, None] / (1 << grid.shift)
            mult, off = (np.repeat(values, 32, axis=1) for values in (grid.mult, grid.off))
            miss = (nearest_codes(weight, grid) * mult + off) * unit - weight
            errors.append((miss**2 * inputs.importance).reshape(16, 3, 32).sum(axis=2))
        assert (errors[1] <= errors[0] * (1 + 1e-9)).all() and errors[1].sum() < 0.95 * errors[0].sum(), f"seed {SEED}"


def test_rows_of_zeros_constants_and_tiny_weights():
    rng = np.random.default_rng(SEED)
    weight = matrix(rng, 8, 64)
    weight[0], weight[1], weight[2], weight[3, :32], weight[4] = 0, 0.25, -3.0, 0.5, 1e-40
    weight[:, 5] = 0
    inputs = correlated(rng, 64)
    for bits in BITS:
        for linear in (round_to_nearest(weight, bits, 32, importance=inputs.importance), compensate(weight, inputs, bits, 32)):
            values = linear.dequantised()
            assert np.isfinite(values).all() and not values[0].any() and not values[4].any()
        nearest = round_to_nearest(weight, bits, 32)
        assert (np.abs(nearest.dequantised() - weight)[1:3] <= 1.5 * nearest.row_scale[1:3, None]).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(1, 96), (3, 7), (1, 1), (5, 33)])
def test_small_matrices(bits, shape):
    rng = np.random.default_rng([SEED, bits, *shape])
    weight, inputs = matrix(rng, *shape), correlated(rng, shape[1])
    linear = compensate(weight, inputs, bits, 32)
    assert linear.shape == shape and np.array_equal(linear.int8(), decoded_by_hand(linear)) and np.array_equal(linear.int8(), weight_grid(linear, "w"))
    assert np.abs(linear.dequantised() - weight).max() < 2.5 * np.abs(weight).max()
    if shape == (1, 96):
        kept, pruned = prune(weight, inputs, uniform_counts(shape, 4), 1, "sparsegpt")
        assert kept.sum() == 24 and compensate(weight, inputs, bits, 32, kept=kept, pruned=pruned).kept.sum() == 24


# Bytes.


@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("bits", BITS)
def test_bytes_of_a_sparse_matrix_by_counting(share, bits):
    rng = np.random.default_rng([SEED, share, bits])
    rows, columns, group = 44, 160, 64
    kept, counts = random_kept(rng, rows, columns, share)
    assert np.array_equal(block_counts(kept, share), counts)
    total = 0
    for row in range(rows):
        stored = sum(int(one) for one in kept[row])
        total += stored * bits + (0 if bits == 8 else 20 * len(range(0, stored, group)))
        if row % share == 0:
            total += sum({2: 8, 4: 16, 8: 16, 12: 16, 16: 0}[sum(map(int, kept[row, at : at + 16]))] for at in range(0, columns, 16))
    total += 3 * 3 * (columns // 16)  # three rows of blocks, each block with 3 bits of count
    assert sparse_bytes(counts, rows, bits, group, share) == -(-total // 8) + 4 * rows
    linear = round_to_nearest(matrix(rng, rows, columns), bits, group, kept=kept, index_share=share)
    assert linear.required_bytes == sparse_bytes(counts, rows, bits, group, share)
    full = sparse_bytes(np.full((3, 10), 16), rows, bits, group, share)
    assert full - matrix_bytes(rows, columns, bits, group) in (11, 12)  # 90 bits of counts


def test_patterns_that_are_none_are_refused():
    kept, _ = random_kept(np.random.default_rng(SEED), 32, 32, 2, np.full((2, 2), 8))
    assert (block_counts(kept, 2) == 8).all()
    broken = kept.copy()
    broken[5] = np.roll(kept[5], 1)
    with pytest.raises(ValueError, match="share an index"):
        block_counts(broken, 2)
    broken = kept.copy()
    broken[4:6, np.flatnonzero(kept[4])[0]] = False
    with pytest.raises(ValueError, match="different numbers"):
        block_counts(broken, 2)
    with pytest.raises(ValueError, match="share an index"):
        block_counts(kept[:31], 2)


# Error compensation.


def gptq_by_the_paper(weight, inputs, bits, group, kept=None, pruned=None):
    """Codes by equations 2 and 3 of GPTQ: one column at a time, with the inverse of what remains of the Hessian made anew for each."""
    grid = fit_grid(weight if pruned is None else pruned, bits, group, importance=inputs.importance, kept=kept)
    hessian = np.array(inputs.gram, np.float64)
    hessian[np.diag_indices(len(hessian))] += DAMP * hessian.diagonal().mean()
    order = np.argsort(-hessian.diagonal(), kind="stable")
    rest, codes = weight.astype(np.float64), np.zeros(weight.shape, int)
    for place, column in enumerate(order):
        remaining = order[place:]
        inverse = np.linalg.inv(hessian[np.ix_(remaining, remaining)])
        for row in range(len(weight)):
            value = 0.0
            if grid.kept[row, column]:
                where, unit = grid.group_of[row, column], float(grid.row_scale[row]) / (1 << grid.shift)
                step, base = int(grid.mult[row, where]), int(grid.off[row, where])
                code = int(np.clip(np.rint((rest[row, column] / unit - base) / step), 0, grid.top))
                codes[row, column] = code
                point = (code * step + base + ((1 << grid.shift) >> 1)) >> grid.shift
                value = max(-127, min(127, point)) * float(grid.row_scale[row])
            rest[row, remaining] -= (rest[row, column] - value) / inverse[0, 0] * inverse[0]
    return codes


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("columns", [24, 80])
def test_compensation_gives_the_codes_of_the_paper(bits, columns):
    """80 columns are more than one block of columns. Float32 against float64 may tip a code that lies half-way: one in a thousand at most."""
    rng = np.random.default_rng([SEED, bits, columns])
    weight, inputs = matrix(rng, 12, columns), correlated(rng, columns)
    codes = compensate(weight, inputs, bits, 32).codes.astype(int) + (127 if bits == 8 else 0)
    wrong = codes != gptq_by_the_paper(weight, inputs, bits, 32)
    assert wrong.sum() <= 1, f"seed {SEED}: {wrong.sum()}"


@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_compensation_makes_outputs_better_than_nearest(bits):
    for trial in range(8):
        rng = np.random.default_rng([SEED, bits, trial])
        weight, inputs = matrix(rng, 16, 64), correlated(rng, 64)
        nearest, fitted = quantise_groups(weight, bits, 32), round_to_nearest(weight, bits, 32, importance=inputs.importance)
        errors = [inputs.output_error(linear.dequantised() - weight) for linear in (compensate(weight, inputs, bits, 32), fitted, nearest)]
        assert errors[0] < 0.9 * min(errors[1:]), f"seed {SEED}, trial {trial}: {errors}"


def test_output_error_is_the_mean_over_the_tokens():
    rng = np.random.default_rng(SEED)
    x, difference = matrix(rng, 50, 24), matrix(rng, 6, 24)
    expected = np.mean([np.sum((difference.astype(np.float64) @ one) ** 2) for one in x])
    parts = InputStatistics.of(x[:20]).joined(InputStatistics.of(x[20:]))
    assert np.isclose(InputStatistics.of(x).output_error(difference), expected, rtol=1e-5)
    assert np.isclose(parts.output_error(difference), expected, rtol=1e-5) and np.allclose(parts.absmean, np.abs(x).mean(axis=0), rtol=1e-5)
    assert np.array_equal(parts.absmax, np.abs(x).max(axis=0)) and parts.tokens == 50
    scale = np.exp(rng.standard_normal(24)).astype(np.float32)
    assert np.isclose(parts.scaled(scale).output_error(difference * scale), expected, rtol=1e-4)


@pytest.mark.parametrize("bits", BITS)
def test_inputs_that_are_not_correlated_leave_nothing_to_compensate(bits):
    """A diagonal Gram matrix: every column is rounded by itself, in whatever order."""
    rng = np.random.default_rng([SEED, bits])
    weight, sizes = matrix(rng, 16, 96), np.exp(rng.standard_normal(96)).astype(np.float32)
    inputs = InputStatistics(np.diag(sizes), sizes, sizes, 1)
    assert np.array_equal(compensate(weight, inputs, bits, 32).codes, round_to_nearest(weight, bits, 32, importance=inputs.importance).codes)
    shuffled = InputStatistics(np.diag(sizes), sizes, sizes, 1)
    shuffled.order = rng.permutation(96)
    assert np.array_equal(compensate(weight, shuffled, bits, 32).codes, compensate(weight, inputs, bits, 32).codes)


def test_inputs_that_calibration_never_saw():
    rng = np.random.default_rng(SEED)
    x = matrix(rng, 40, 64)
    x[:, 10:20] = 0
    weight = matrix(rng, 8, 64)
    for inputs in (InputStatistics.of(x), InputStatistics.of(np.zeros((3, 64), np.float32)), InputStatistics.of(x[:1])):
        for method in ("wanda", "sparsegpt"):
            kept, pruned = prune(weight, inputs, uniform_counts(weight.shape, 8), 2, method)
            linear = compensate(weight, inputs, 4, 32, kept=kept, pruned=pruned, index_share=2)
            assert np.isfinite(linear.dequantised()).all() and (block_counts(kept, 2) == 8).all()


# Pruning.


def test_the_best_of_every_index_are_kept():
    rng = np.random.default_rng(SEED)
    for share in (1, 2):
        score = rng.random((22, 64))
        counts = rng.choice(KEPT_COUNTS, (2, 4))
        kept = keep_best(score, counts, share)
        assert np.array_equal(block_counts(kept, share), counts)
        for row in range(0, 22, share):
            for block in range(4):
                sums = [sum(score[twin, 16 * block + j] for twin in range(row, row + share)) for j in range(16)]
                best = sorted(range(16), key=lambda j: -sums[j])[: counts[row // 16, block]]
                assert set(np.flatnonzero(kept[row, 16 * block : 16 * block + 16])) == set(best), f"seed {SEED}"
    assert np.array_equal(np.flatnonzero(keep_best(np.ones((16, 16)), np.array([[4]]), 1)[7]), [0, 1, 2, 3])


def lost_by(score, counts, share):
    return float(score.sum() - score[keep_best(score, counts, share)].sum())


@pytest.mark.parametrize("n", [2, 4, 8, 12])
def test_mixed_counts_keep_the_budget_and_lose_no_more_than_equal_ones(n):
    rng = np.random.default_rng([SEED, n])
    ties = np.ones((32, 64))
    lumpy = np.exp(2 * rng.standard_normal((3, 5)))
    for score in (rng.random((40, 80)), np.kron(lumpy, np.ones((16, 16)))[:40] * rng.random((40, 80)), ties, 0 * ties, 1e-30 * ties, 1e30 * rng.random((16, 16))):
        for share in (1, 2):
            counts = mixed_counts(score, n, share)
            equal = uniform_counts(score.shape, n)
            assert counts.shape == equal.shape and set(counts.flat) <= set(KEPT_COUNTS) and counts.mean() <= n
            assert lost_by(score, counts, share) <= lost_by(score, equal, share) * (1 + 1e-12), f"seed {SEED}"
    score = np.kron(lumpy, np.ones((16, 16))) * rng.random((48, 80))
    assert n == 2 or lost_by(score, mixed_counts(score, n, 2), 2) < 0.9 * lost_by(score, uniform_counts(score.shape, n), 2)


def test_mixed_counts_are_the_best_on_small_matrices():
    """All choices of four blocks: no better one within what the found one uses."""
    from itertools import product

    for trial in range(5):
        rng = np.random.default_rng([SEED, trial])
        score = rng.random((32, 32)) * np.kron(rng.random((2, 2)), np.ones((16, 16)))
        found = mixed_counts(score, 8, 1)
        for choice in product(KEPT_COUNTS, repeat=4):
            counts = np.array(choice).reshape(2, 2)
            if counts.sum() <= found.sum():
                assert lost_by(score, found, 1) <= lost_by(score, counts, 1) + 1e-9, f"seed {SEED}, trial {trial}: {counts}"


def sparsegpt_by_the_paper(weight, inputs, n):
    """Algorithm 1 of SparseGPT with a mask for every 16 columns, and inverses of what remains of the Hessian instead of a factor of it."""
    hessian = np.array(inputs.gram, np.float64)
    hessian[np.diag_indices(len(hessian))] += DAMP * hessian.diagonal().mean()
    rest, kept = weight.astype(np.float64), np.zeros(weight.shape, bool)
    rows, columns = weight.shape
    for column in range(columns):
        inverse = np.linalg.inv(hessian[column:, column:])
        if column % 16 == 0:
            # The diagonal that each of the 16 columns has once those before it are gone.
            diagonal = [np.linalg.inv(hessian[j:, j:])[0, 0] for j in range(column, column + 16)]
            cost = rest[:, column : column + 16] ** 2 / diagonal
            for row in range(rows):
                kept[row, column + np.argsort(-cost[row], kind="stable")[:n]] = True
        gone = ~kept[:, column]
        rest[gone, column:] -= np.outer(rest[gone, column] / inverse[0, 0], inverse[0])
        rest[gone, column] = 0
    return kept, rest


def test_sparsegpt_is_the_paper_s():
    for trial, n in enumerate((4, 8, 12)):
        rng = np.random.default_rng([SEED, trial])
        weight, inputs = matrix(rng, 16, 48), correlated(rng, 48)
        kept, pruned = prune(weight, inputs, uniform_counts(weight.shape, n), 1, "sparsegpt")
        expected_kept, expected = sparsegpt_by_the_paper(weight, inputs, n)
        assert np.array_equal(kept, expected_kept), f"seed {SEED}"
        assert np.allclose(pruned, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()) and not pruned[~kept].any()
        codes = compensate(weight, inputs, 4, 32, kept=kept, pruned=pruned).codes
        assert (codes != gptq_by_the_paper(weight, inputs, 4, 32, kept, pruned)).sum() <= 1


def test_better_pruning_costs_the_outputs_less():
    totals = dict.fromkeys(("magnitude", "wanda", "sparsegpt"), 0.0)
    for trial in range(4):
        rng = np.random.default_rng([SEED, trial])
        weight, inputs = matrix(rng, 32, 64), correlated(rng, 64)
        for method in totals:
            kept, pruned = prune(weight, inputs, uniform_counts(weight.shape, 8), 2, method)
            assert not pruned[~kept].any() and (block_counts(kept, 2) == 8).all()
            totals[method] += inputs.output_error(pruned - weight)
    assert totals["sparsegpt"] < totals["wanda"] < totals["magnitude"], f"seed {SEED}"


def test_scores():
    rng = np.random.default_rng(SEED)
    weight, inputs = matrix(rng, 4, 16), correlated(rng, 16)
    damped = np.array(inputs.gram, np.float64) + DAMP * np.mean(np.diag(inputs.gram).astype(np.float64)) * np.eye(16)
    wide = weight.astype(np.float64) ** 2
    assert np.allclose(scores(weight, None, "magnitude"), wide)
    assert np.allclose(scores(weight, inputs, "wanda"), wide * np.diag(damped))
    assert np.allclose(scores(weight, inputs, "sparsegpt"), wide / np.diag(np.linalg.inv(damped)), rtol=1e-6)


@pytest.mark.parametrize(("shape", "share"), [((4, 8), 1), ((4, 24), 1), ((5, 32), 2)])
def test_shapes_that_blocks_do_not_fill_are_refused(shape, share):
    with pytest.raises(UserError, match=r"tensor layers.0.q: has shape \(\d, \d+\); N:16 sparse ones have a multiple of 16 inputs"):
        check_shape("layers.0.q", shape, share)
    check_shape("layers.0.q", (4, 16), 2)
