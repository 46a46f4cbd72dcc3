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

    The solver's tolerances are shares of what it is given. So bytes are counted over the narrowest widths' and in their greatest common
    divisor: whole numbers, small enough that a share of them is no unit. Where it is one after all, the budget shrinks by what was too much.
    """
    pairs = [(name, bits) for name in losses for bits in losses[name]]
    least = sum(min(sizes[name].values()) for name in losses)
    if least > budget_bytes:
        raise UserError(f"budget of {budget_bytes} bytes for the linears: at their narrowest they take {least}")
    loss = np.array([losses[name][bits] for name, bits in pairs])
    extra = np.array([sizes[name][bits] - min(sizes[name].values()) for name, bits in pairs], np.int64)
    divisor = max(int(np.gcd.reduce(extra)), 1)
    units, room = (extra // divisor).astype(float), (budget_bytes - least) // divisor
    place = {name: number for number, name in enumerate(losses)}
    one_each = scipy.sparse.csr_array((np.ones(len(pairs)), ([place[name] for name, _ in pairs], range(len(pairs)))))
    unit = max(loss.max(), 1e-300)  # HiGHS' tolerances are absolute
    allowed = room
    while True:
        result = scipy.optimize.milp(
            loss / unit, integrality=np.ones(len(pairs)), bounds=scipy.optimize.Bounds(0, 1), options={"mip_rel_gap": 0.0},
            constraints=[
                scipy.optimize.LinearConstraint(one_each, 1, 1), scipy.optimize.LinearConstraint(units[None], -np.inf, allowed),
            ],
        )
        if result.x is None:
            raise UserError(f"budget of {budget_bytes} bytes for the linears: the solver found no widths ({result.message})")
        taken = result.x > 0.5
        excess = int(extra[taken].sum()) // divisor - room
        if excess <= 0:
            return {name: bits for (name, bits), one in zip(pairs, taken, strict=True) if one}
        allowed -= excess
