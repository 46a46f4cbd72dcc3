"""The width of every linear under a budget of bytes, by an exact solver."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.optimize
import scipy.sparse

from headrace.models.errors import UserError


def solve_widths(losses: Mapping[str, Mapping[int, float]], sizes: Mapping[str, Mapping[int, int]], budget_bytes: int) -> dict[str, int]:
    """Bits of each matrix, so that the sum of losses is least and the sum of bytes at most the budget.

    losses, sizes: matrix -> bits -> loss (any unit that adds up), and bytes. A multiple-choice knapsack, solved to optimality by HiGHS
    (Huangfu and Hall, 2018) through scipy. Raises UserError where even the narrowest widths do not fit.
    """
    pairs = [(name, bits) for name in losses for bits in losses[name]]
    least = sum(min(sizes[name].values()) for name in losses)
    if least > budget_bytes:
        raise UserError(f"budget of {budget_bytes} bytes for the linears: at their narrowest they take {least}")
    loss = np.array([losses[name][bits] for name, bits in pairs])
    size = np.array([sizes[name][bits] for name, bits in pairs], float)
    place = {name: number for number, name in enumerate(losses)}
    one_each = scipy.sparse.csr_array((np.ones(len(pairs)), ([place[name] for name, _ in pairs], range(len(pairs)))))
    unit = max(loss.max(), 1e-300)  # HiGHS' tolerances are absolute
    result = scipy.optimize.milp(
        loss / unit, integrality=np.ones(len(pairs)), bounds=scipy.optimize.Bounds(0, 1), options={"mip_rel_gap": 0.0},
        constraints=[
            scipy.optimize.LinearConstraint(one_each, 1, 1), scipy.optimize.LinearConstraint(size[None] / budget_bytes, -np.inf, 1.0),
        ],
    )
    if result.x is None:
        raise UserError(f"budget of {budget_bytes} bytes for the linears: the solver found no widths ({result.message})")
    return {name: bits for (name, bits), taken in zip(pairs, result.x, strict=True) if taken > 0.5}
