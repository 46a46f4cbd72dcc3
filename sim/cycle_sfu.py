"""What the SFU does in every cycle of a VEC command: its use of the buffers' ports and its stalls, from the microprogram.

The walk is that of `hw.sfu_timing`, which gives the command's length; here every row of it is placed. The SFU never waits for a buffer, so a
command's cycles are known when it starts (hw/vector_buffer.py: r_sfu and w_sfu come first).
"""

from functools import lru_cache

import numpy as np

from headrace.hw.sfu_programs import microprograms
from headrace.hw.sfu_timing import _Issue, _loops, sfu_cycles
from headrace.hw.sfu_ucode import ACCUMULATE_PACE, BLOCK_ROWS, FLAT, OUTPUT_STAGE

VB_READ, AB_READ, VB_WRITE, AB_WRITE, DEPENDENCY, DRAIN = (1 << i for i in range(6))


@lru_cache(maxsize=4096)
def timeline(program: int, n: int, reps: int) -> np.ndarray:
    """uint8 [cycles + 1]: bits of each cycle from the command's acceptance (index 0) to its done pulse (last index).

    The unit is active in the cycles between: from 1 (state CHECK) to the one before done.
    """
    micro = microprograms()[program]
    reps = reps if micro.has_reps else 1
    length = sfu_cycles(program, n, reps)
    marks = np.zeros(length + 1, np.uint8)
    rows = reps * 2 * -(-n // 16)
    issue = _Issue()
    end = 0

    def walk(uop, count, first_block):
        nonlocal end
        load = issue.load
        issue.run(uop, count, first_block)
        start = issue.starts[0]
        pace = ACCUMULATE_PACE if uop.accumulate else 1
        marks[load:start] |= DEPENDENCY
        at = start + pace * np.arange(count)
        if uop.memory:
            marks[at] |= AB_READ if uop.int8 else VB_READ
        if uop.store_vb or uop.store_ab:
            marks[at + OUTPUT_STAGE] |= VB_WRITE if uop.store_vb else AB_WRITE
        end = start + count * pace

    for kind, uops in _loops(micro):
        if kind == "uop":
            walk(uops[0], rows if uops[0].mode == FLAT else reps, True)
            continue
        full, rest = divmod(rows, BLOCK_ROWS)
        for block in range(full + bool(rest)):
            for uop in uops:
                walk(uop, BLOCK_ROWS if block < full else rest, block == 0)
    marks[end:length] |= DRAIN
    return marks
