"""Microinstructions of the SFU: the word's fields, the pipeline's distances, the constants.

A microinstruction (uop) runs over rows of 8 lanes, one row per cycle, and computes in every lane

    y = post( (a (*) pre(b)) (+) c )

with each of the two operations rounded by itself. Sources are rows of the vector registers, one row of VB or AB
through a pointer, the running maximum of the rep, and constants. There is no other arithmetic: integer steps of
the contract (seeds, exponent insertion) are `pre`, clipping and rounding to INT8 are `post`.

Rows. A FLAT uop runs over the rows of all reps one after the other (rep, then row of the rep), either in blocks of
`BLOCK_ROWS` inside a loop or over all of them at once (`whole`). A REPS uop runs over one row per rep. Element
indices past n are masked in FLAT uops: memory sources read +0, results are +0, reductions skip them.

This file imports neither Amaranth nor numpy: the timing model and the compiler use it too.
"""

from dataclasses import dataclass

LANES = 8
BLOCK_ROWS = 32
VECTOR_REGISTERS = 8
REPS_MAX = 16

# Distances in cycles from a row's issue (addresses out) to the named point; hw/sfu_lane.py checks the latencies.
READ_LATENCY = 2
MUL_LATENCY = 4
ADD_LATENCY = 5
OPERAND_STAGE = READ_LATENCY + 1
"""Operands stand in the multiplier's input registers."""
ADDEND_STAGE = OPERAND_STAGE + MUL_LATENCY
"""The product meets its addend."""
RESULT_STAGE = ADDEND_STAGE + ADD_LATENCY
"""The result is written to a vector register."""
OUTPUT_STAGE = RESULT_STAGE + 1
"""The result, registered, is written to VB or AB or enters the reduction tree."""
REDUCTION_STAGES = 4
"""From the reduction tree's input to the write of the rep's result: three levels of lanes and the running value."""
ACCUMULATE_PACE = (ADD_LATENCY + 2) // 2
"""Cycles per row of a sum: rows alternate between two accumulators, each usable ADD_LATENCY + 1 cycles later."""
DONE_STAGE = OUTPUT_STAGE + 3
"""From the last row's issue to the done pulse: fold, signature sum, pulse."""
FIRST_LOAD = 3
"""From the acceptance of a command to its first uop standing in the issue register."""
FETCH_INTERVAL = 2
"""Shortest distance between two uops in the issue register."""

# Waits. AGE k: the k-th uop before this one started at least DEPENDENT cycles ago, so row i of its results is there
# when row i issues. The others count from the last issue of any row; inside a loop they hold for its first block only.
WAIT_NONE, WAIT_AGE1, WAIT_AGE2, WAIT_AGE3, WAIT_OPERAND_REDUCTION, WAIT_RESULT, WAIT_STORE, WAIT_REDUCTION = range(8)
DEPENDENT = RESULT_STAGE + 1
QUIET = {
    WAIT_OPERAND_REDUCTION: OPERAND_STAGE + REDUCTION_STAGES + 1,
    WAIT_RESULT: RESULT_STAGE + 1,
    WAIT_STORE: OUTPUT_STAGE + 3,
    WAIT_REDUCTION: OUTPUT_STAGE + REDUCTION_STAGES + 1,
}

FLAT, REPS = 0, 1
A_REGISTER, A_MEMORY, A_COMMON = range(3)
B_REGISTER, B_MEMORY, B_COMMON = range(3)
C_REGISTER, C_COMMON = range(2)
COMMON_CONSTANT, COMMON_BEST, COMMON_LANE = range(3)  # source a: the constant is 1.0
PRE_NONE, PRE_RECIP, PRE_RSQRT, PRE_EXP = range(4)
POST_NONE, POST_CLAMP, POST_QUANT, POST_INDEX = range(4)
TAP_NONE, TAP_ABSMAX, TAP_MAX, TAP_ARGMAX = range(4)

FIELDS = (
    ("mode", 1), ("whole", 1), ("wait", 3), ("loop_start", 1), ("loop_end", 1), ("last", 1),
    ("a_select", 2), ("a_common", 2), ("a_register", 3), ("a_scalar", 1), ("a_negate", 1),
    ("b_select", 2), ("b_common", 1), ("b_register", 3), ("b_scalar", 1), ("b_constant", 4), ("pre", 2),
    ("c_select", 1), ("c_common", 1), ("c_register", 3), ("c_negate", 1), ("c_constant", 4), ("swap", 2),
    ("accumulate", 1), ("memory", 1), ("pointer", 2), ("offset", 1), ("int8", 1),
    ("store_register", 1), ("register", 3), ("store_vb", 1), ("store_ab", 1), ("store_pointer", 2),
    ("post", 2), ("tap", 2), ("tap_result", 1), ("gate", 1),
)  # fmt: skip
"""(name, bits), lowest first. Names as in `Uop`."""

UOP_BITS = sum(width for _, width in FIELDS)

B_CONSTANTS = {
    "1.0": 0x3F800000, "LOG2E": 0x3FB8AA3B, "-LN2_HI": 0xBF318000, "-LN2_LO": 0x395E8083, "C7": 0x39506967,
    "127.0": 0x42FE0000, "1/127": 0x3C010204, "-0.5": 0xBF000000,
}  # fmt: skip
C_CONSTANTS = {
    "-0.0": 0x80000000, "MAGIC": 0x4B400000, "-MAGIC": 0xCB400000, "C6": 0x3AB743CE, "C5": 0x3C088908, "C4": 0x3D2AA9C1,
    "C3": 0x3E2AAAAA, "C2": 0x3F000000, "1.0": 0x3F800000, "2.0": 0x40000000, "1.5": 0x3FC00000,
}  # fmt: skip
"""Constants of the contract by name; a multiply alone adds -0.0, an add alone multiplies by 1.0."""

RECIP_SEED = 0x7EF311C7
RSQRT_SEED = 0x5F3759DF
CLAMP_LOW = 0xC2AE0000  # -87.0
CLAMP_HIGH = 0x42A00000  # 80.0
MAGIC = C_CONSTANTS["MAGIC"]
QUANT_MINIMUM = 0x03014EAB
"""QMIN: f32(3.8e-37)."""


@dataclass(frozen=True)
class Uop:
    """One microinstruction; the fields of `FIELDS`."""

    mode: int = FLAT
    whole: int = 0
    wait: int = WAIT_NONE
    loop_start: int = 0
    loop_end: int = 0
    last: int = 0
    a_select: int = A_COMMON
    a_common: int = COMMON_CONSTANT
    a_register: int = 0
    a_scalar: int = 0
    a_negate: int = 0
    b_select: int = B_COMMON
    b_common: int = COMMON_CONSTANT
    b_register: int = 0
    b_scalar: int = 0
    b_constant: int = 0
    pre: int = PRE_NONE
    c_select: int = C_COMMON
    c_common: int = COMMON_CONSTANT
    c_register: int = 0
    c_negate: int = 0
    c_constant: int = 0
    swap: int = 0
    accumulate: int = 0
    memory: int = 0
    pointer: int = 0
    offset: int = 0
    int8: int = 0
    store_register: int = 0
    register: int = 0
    store_vb: int = 0
    store_ab: int = 0
    store_pointer: int = 0
    post: int = POST_NONE
    tap: int = TAP_NONE
    tap_result: int = 0
    gate: int = 0

    def encode(self) -> int:
        """The word in the microcode ROM. Raises ValueError where a field does not fit."""
        word, shift = 0, 0
        for name, width in FIELDS:
            value = getattr(self, name)
            if not 0 <= value < 1 << width:
                raise ValueError(f"uop field {name} = {value} does not fit {width} bits")
            word |= value << shift
            shift += width
        return word
