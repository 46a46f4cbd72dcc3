"""Retirement signatures in gates (docs/machine.md, section 6); the numpy twin is `hw.isa.signature_of`."""

from functools import reduce
from operator import xor

from amaranth.hdl import Value

ROTATIONS = 8
"""Lanes i and i + 8 rotate alike, since 4 * 8 = 32."""


def fold(value: Value) -> Value:
    """32 bits: the xor over the 32-bit lanes i of `value` of the lane rotated left by (4 i + 1) mod 32."""
    lanes = [value[at : at + 32] for at in range(0, len(value), 32)]
    if len(lanes[-1]) != 32:
        raise ValueError(f"fold of {len(value)} bits: a multiple of 32 is allowed")
    groups = [reduce(xor, lanes[j::ROTATIONS]) for j in range(min(ROTATIONS, len(lanes)))]
    return reduce(xor, (group.rotate_left(4 * j + 1) for j, group in enumerate(groups)))


def term(folded: Value, address: Value) -> Value:
    """32 bits: one unit's share of the sum. `address` has 32 bits."""
    return folded ^ address.rotate_left(16)
