"""Cycles of a VEC instruction on the SFU, exact, from the microprogram alone. Imports neither Amaranth nor numpy."""

from functools import lru_cache

from headrace.hw.sfu_programs import Microprogram, microprograms
from headrace.hw.sfu_ucode import (
    ACCUMULATE_PACE, BLOCK_ROWS, DEPENDENT, DONE_STAGE, FETCH_INTERVAL, FIRST_LOAD, FLAT, QUIET, REPS_MAX, WAIT_AGE3,
    WAIT_NONE, Uop,
)  # fmt: skip

_LONG_AGO = -(10**6)
_WALKED_BLOCKS = 3
NOP_CYCLES = 2
"""From the acceptance of a VEC_NOP to its done pulse."""


class _Issue:
    """The state that decides when a uop starts: the last three starts, the last issued row, the issue register."""

    def __init__(self):
        self.starts = (_LONG_AGO,) * 3
        self.last_row = _LONG_AGO
        self.load = FIRST_LOAD

    def run(self, uop: Uop, rows: int, first_block: bool) -> None:
        start = self.load
        if WAIT_NONE < uop.wait <= WAIT_AGE3:
            start = max(start, self.starts[uop.wait - 1] + DEPENDENT)
        elif uop.wait and first_block:
            start = max(start, self.last_row + QUIET[uop.wait])
        pace = ACCUMULATE_PACE if uop.accumulate else 1
        self.starts = (start, *self.starts[:2])
        self.last_row = start + (rows - 1) * pace
        # The end of a block commits the block's position before the next uop may load.
        self.load = max(start + rows * pace + uop.loop_end, self.load + FETCH_INTERVAL)


def _loops(program: Microprogram):
    """The program's parts: ("uop", [uop]) or ("loop", uops of its body)."""
    body: list[Uop] = []
    for uop in program.uops:
        if not body and not uop.loop_start:
            yield "uop", [uop]
            continue
        body.append(uop)
        if uop.loop_end:
            yield "loop", body
            body = []


@lru_cache(maxsize=65536)
def sfu_cycles(program: int, n: int, reps: int = 1) -> int:
    """Cycles from the acceptance of the command to its done pulse; the next command can be accepted in that very cycle.

    program: number of docs/machine.md, section 4; n elements per rep; reps is not used by programs without reps.
    Raises ValueError outside what the SFU accepts.
    """
    if not 0 <= program < len(microprograms()):
        raise ValueError(f"VEC program {program} does not exist")
    micro = microprograms()[program]
    if n < 1 or (micro.whole_blocks and n % 16):
        raise ValueError(f"{micro.name}: n = {n} is not allowed")
    if not micro.has_reps:
        reps = 1
    if not 1 <= reps <= REPS_MAX:
        raise ValueError(f"{micro.name}: reps = {reps} is not one of 1..{REPS_MAX}")
    rows = reps * 2 * -(-n // 16)
    issue = _Issue()
    for kind, uops in _loops(micro):
        if kind == "uop":
            issue.run(uops[0], rows if uops[0].mode == FLAT else reps, True)
            continue
        full, rest = divmod(rows, BLOCK_ROWS)
        # From the second full block on each takes as long as the one before: all waits look back into the block.
        for block in range(min(full, _WALKED_BLOCKS)):
            before = issue.load
            for uop in uops:
                issue.run(uop, BLOCK_ROWS, block == 0)
        if full > _WALKED_BLOCKS:
            skip = (full - _WALKED_BLOCKS) * (issue.load - before)
            issue.starts = tuple(s + skip for s in issue.starts)
            issue.last_row += skip
            issue.load += skip
        if rest:
            for uop in uops:
                issue.run(uop, rest, full == 0)
    return issue.last_row + DONE_STAGE


def sfu_vector_accesses(program: int, n: int, reps: int = 1) -> tuple[int, int]:
    """VB rows that a VEC instruction reads and writes: one access each, never delayed."""
    micro = microprograms()[program]
    reps = reps if micro.has_reps else 1
    rows = reps * 2 * -(-n // 16)

    def total(condition):
        return sum(rows if u.mode == FLAT else reps for u in micro.uops if condition(u))

    return total(lambda u: u.memory and not u.int8), total(lambda u: u.store_vb)
