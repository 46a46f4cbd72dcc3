"""Keys and values of 4 bits (contract section 6): INT8 grid values to codes of the weights' own 4-bit map, in integers alone."""

import numpy as np

from headrace.kernels.contract import constants as c
from headrace.kernels.contract.integers import check_int8, decode_codes

BITS = 4
_TOP = 2**BITS - 1
_UNITS = 1 << c.CODE_SHIFT[BITS]  # grid steps of mult and off in one of INT8


def encode(grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes uint8 [..., d], mult uint8 and off int16 [..., ceil(d / 32)] of INT8 values [..., d >= 1], grouped along the last axis.

    Raises ValueError for a value outside -127 .. 127.
    """
    grid = check_int8(grid, "keys and values")
    length = grid.shape[-1]
    groups = -(-length // c.GROUP)
    # Repeating the last value fills the last group and leaves its least and greatest as they are.
    padded = np.pad(grid, [(0, 0)] * (grid.ndim - 1) + [(0, groups * c.GROUP - length)], mode="edge")
    values = padded.reshape(*grid.shape[:-1], groups, c.GROUP).astype(np.int32)
    low, high = values.min(axis=-1), values.max(axis=-1)
    spread = _UNITS * (high - low)
    mult = np.maximum(1, (2 * spread + _TOP) // (2 * _TOP))
    off = _UNITS * low - ((_TOP * mult - spread + 1) >> 1)
    step = mult[..., None]
    codes = np.minimum(_TOP, (2 * (_UNITS * values - off[..., None]) + step) // (2 * step))
    codes = codes.reshape(*grid.shape[:-1], groups * c.GROUP)[..., :length]
    return codes.astype(np.uint8), mult.astype(np.uint8), off.astype(np.int16)


def decode(codes, mult, off) -> np.ndarray:
    """INT8 values [..., d] that a cache of `encode`'s codes stands for: section 1's map of 4-bit codes."""
    return decode_codes(codes, mult, off, BITS)
