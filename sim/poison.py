"""What the simulated memory holds where the image says nothing: the twin of the filler in hw/verilog/hr_sim_store.v."""

import numba
import numpy as np

_SPREAD = np.array(
    [0, 0x85EBCA6B, 0xB55A4F09, 0xFD7046C5, 0xD3A2646C, 0x165667B1, 0xC761C23C, 0x7ED55D16], np.uint32
)
"""Lane 0 .. 7 of a beat: xor-ed onto the generator's word."""


@numba.njit(cache=True)
def _xorshift(state, count):
    out = np.empty(count, np.uint32)
    x = np.uint64(state)
    for i in range(count):
        x ^= x << np.uint64(13) & np.uint64(0xFFFFFFFF)
        x ^= x >> np.uint64(17)
        x ^= x << np.uint64(5) & np.uint64(0xFFFFFFFF)
        out[i] = x
    return out


def memory_poison(seed: int, beats: int) -> np.ndarray:
    """uint8 [beats, 32]: the beats that follow the image in a memory started with +poison=seed."""
    state = (seed * 0x9E3779B1 ^ 0x2545F491) & 0xFFFFFFFF or 1
    words = _xorshift(state, beats)
    return (words[:, None] ^ _SPREAD).view(np.uint8)
