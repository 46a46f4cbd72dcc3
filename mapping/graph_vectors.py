"""Cycles and accesses of the float32 functions of a graph on the SFU.

Functions that have a microprogram take `analytic.vec_cycles`, which is exact. The others are counted from their formula in the manner of
`hw.sfu_timing`: a step issues a row of `lanes` elements a cycle (sums at their slower pace), a step that waits for the one before starts
DEPENDENT cycles after it, and a command fills and drains the pipeline once. No microprogram of theirs exists: it is an estimate.
"""

from __future__ import annotations

import numpy as np

from headrace.hw.isa import Program
from headrace.hw.machine import BLOCK, LANES
from headrace.hw.sfu_timing import sfu_vector_accesses
from headrace.hw.sfu_ucode import ACCUMULATE_PACE, DEPENDENT, DONE_STAGE, FIRST_LOAD
from headrace.mapping.analytic import vec_cycles
from headrace.mapping.placement import MAX_REPS
from headrace.models.functions import FUNCTIONS

PROGRAMS = {
    "rmsnorm": Program.RMSNORM, "quantise": Program.QUANT, "rope": Program.ROPE, "softmax": Program.SOFTMAX, "silu_mul": Program.SILU_MUL,
    "add": Program.ADD, "bias": Program.ADD, "dequantise": Program.DEQUANT, "argmax": Program.ARGMAX,
}
"""Kind of an operator -> its microprogram."""

REPEATED = ("quantise", "rope", "softmax")
"""Programs that take several rows in one command."""


def data_rows(n, lanes: int = LANES):
    """Rows of `lanes` that hold n elements, in whole blocks of 16."""
    return -(-np.asarray(n) // BLOCK) * max(1, BLOCK // lanes) if lanes <= BLOCK else -(-np.asarray(n) // lanes)


def formula_cycles(kind: str, n, rows: int = 1, *, lanes: int = LANES, element_times: int = 1):
    """Of `rows` rows of n elements of a function, from its operations. `element_times`: its element formula is run so often (taps)."""
    function = FUNCTIONS[kind]
    element, row = function.element.without_calls(), function.row.without_calls()
    if not row.steps:
        return _command(element, row, n * rows, 1, lanes, element_times)
    full, rest = divmod(rows, MAX_REPS)
    total = full * _command(element, row, n, MAX_REPS, lanes, element_times)
    return total + (_command(element, row, n, rest, lanes, element_times) if rest else 0)


def _command(element, row, n, rows: int, lanes: int, times: int):
    data = rows * data_rows(n, lanes)
    flat = element.steps * times * np.maximum(data, DEPENDENT) + element.sums * (ACCUMULATE_PACE - 1) * data
    return FIRST_LOAD + flat + row.steps * max(DEPENDENT, rows) + DONE_STAGE


def vector_cycles(kind: str, n, rows: int = 1, *, per_command: int = MAX_REPS, element_times: int = 1):
    """Of `rows` rows of n elements (a number or an array), in commands of at most `per_command` rows."""
    if kind not in PROGRAMS:
        return formula_cycles(kind, n, rows, element_times=element_times)
    program = PROGRAMS[kind]
    if kind == "rope":
        n = -(-n // 2 // BLOCK) * BLOCK  # pairs, in whole blocks
    if kind in REPEATED:
        return vec_cycles(program, n, rows, per_command)
    if FUNCTIONS[kind].row.steps:
        return rows * vec_cycles(program, n)
    return vec_cycles(program, n * rows)


def issue_cycles(kind: str, n, rows: int = 1, element_times: int = 1):
    """Cycles in which rows issue (the event vec_busy), waits left out."""
    function = FUNCTIONS[kind]
    element, row = function.element.without_calls(), function.row.without_calls()
    pace = ACCUMULATE_PACE - 1
    return rows * ((element.steps * element_times + pace * element.sums) * data_rows(n) + row.steps) + FIRST_LOAD * -(-rows // MAX_REPS)


def buffer_rows(kind: str, n, rows: int = 1, element_times: int = 1):
    """Vector buffer rows read and written."""
    if kind in PROGRAMS:
        n = -(-n // 2) if kind == "rope" else n
        program = int(PROGRAMS[kind])
        one, two = (sum(sfu_vector_accesses(program, size, 1)) for size in (BLOCK, 2 * BLOCK))
        return rows * (2 * one - two + (two - one) * -(-np.asarray(n) // BLOCK))
    function = FUNCTIONS[kind]
    return rows * (function.reads * element_times + function.writes) * data_rows(n)
