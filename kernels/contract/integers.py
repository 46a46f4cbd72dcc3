"""Integer rules of the contract (section 1): weight codes, DSP packing, exact INT8 dot products."""

import numpy as np

from headrace.kernels.contract import constants as c

# Any partial sum of K products within +-127**2 is an integer of magnitude at most K * 127**2. float32 holds every
# integer up to 2**24, so for K <= 1040 no order of summation, fused or not, can round: BLAS is exact.
EXACT_F32_LENGTH = 2**24 // c.INT8_MAX**2  # 1040


def check_int8(values, what: str = "tensor") -> np.ndarray:
    """`values` as int8; raises ValueError, naming `what`, when one lies outside -127 .. 127."""
    values = np.asarray(values)
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{what}: INT8 values are integers, not {values.dtype}")
    if values.size and (values.min() < -c.INT8_MAX or values.max() > c.INT8_MAX):
        raise ValueError(f"{what}: holds {values.min()} .. {values.max()}, allowed is -127 .. 127")
    return values.astype(np.int8, copy=False)


def check_codes(codes, mult, off, bits: int, what: str = "tensor", group: int = c.GROUP) -> None:
    """Raise ValueError when codes or group metadata do not fit the map of `bits` bits.

    codes [..., K] unsigned, mult and off [..., ceil(K / group)].
    """
    if bits not in c.CODE_SHIFT:
        raise ValueError(f"{what}: codes of {bits} bits have no map, allowed are {sorted(c.CODE_SHIFT)}")
    codes, mult, off = np.asarray(codes), np.asarray(mult), np.asarray(off)
    groups = -(-codes.shape[-1] // group)
    if mult.shape != codes.shape[:-1] + (groups,) or off.shape != mult.shape:
        raise ValueError(f"{what}: codes {codes.shape} need mult and off of {codes.shape[:-1] + (groups,)}, not {mult.shape}, {off.shape}")
    for name, array, low, high in (("code", codes, 0, 2**bits - 1), ("mult", mult, 0, c.MULT_MAX), ("off", off, c.OFF_MIN, c.OFF_MAX)):
        if array.size and (array.min() < low or array.max() > high):
            raise ValueError(f"{what}: {name} holds {array.min()} .. {array.max()}, allowed is {low} .. {high}")


def decode_codes(codes, mult, off, bits: int, group: int = c.GROUP) -> np.ndarray:
    """``w8 = clip((c * mult + off + half) >> shift, -127, 127)`` per group of `group` codes along the last axis.

    codes [..., K] unsigned, mult and off [..., ceil(K / group)] -> int8 [..., K]. The last group may be short.
    """
    check_codes(codes, mult, off, bits, group=group)
    codes = np.asarray(codes)
    shift = c.CODE_SHIFT[bits]
    length = codes.shape[-1]
    # 63 * 255 + 2047 + 8 < 2**15, and the smallest value is -2048 + 1: int16 holds every step.
    multiplier = np.repeat(np.asarray(mult).astype(np.int16), group, axis=-1)[..., :length]
    offset = np.repeat(np.asarray(off).astype(np.int16), group, axis=-1)[..., :length]
    grid = (codes.astype(np.int16) * multiplier + offset + np.int16(1 << (shift - 1))) >> shift
    return np.clip(grid, -c.INT8_MAX, c.INT8_MAX).astype(np.int8)


def decode_sparse(codes, mult, off, bits: int, kept, group: int = c.GROUP) -> np.ndarray:
    """`decode_codes` of a matrix that stores the kept weights alone; the others are 0 and take no part in groups.

    kept: boolean [N, K]; codes [N, K], read where kept; mult and off [N, groups], groups of the row that stores most -> int8 [N, K].
    """
    kept = np.asarray(kept, bool)
    codes, lengths = np.asarray(codes), kept.sum(axis=1)
    stored = np.zeros((len(kept), -(-int(lengths.max(initial=1)) // group) * group), codes.dtype)
    filled = np.arange(stored.shape[1]) < lengths[:, None]
    stored[filled] = codes[kept]
    grid = np.zeros(kept.shape, np.int8)
    grid[kept] = (check_int8(stored) if bits == 8 else decode_codes(stored, mult, off, bits, group))[filled]
    return grid


def pack_pair(w0, w1) -> np.ndarray:
    """Two weights in one 27-bit DSP operand: ``A = (w1 << 19) + w0`` (int64, within -2**26 .. 2**26 - 1)."""
    w0, w1 = check_int8(w0, "w0").astype(np.int64), check_int8(w1, "w1").astype(np.int64)
    return (w1 << c.DSP_SHIFT) + w0


def unpack_pair(product) -> tuple[np.ndarray, np.ndarray]:
    """The two sums in P after a cascade of at most 16: ``lo = sext19(P)``, ``hi = (P - lo) >> 19``."""
    product = np.asarray(product, np.int64)
    half = np.int64(1 << (c.DSP_SHIFT - 1))
    low = ((product + half) & ((1 << c.DSP_SHIFT) - 1)) - half
    return low, (product - low) >> c.DSP_SHIFT


def as_operand(values, what: str = "tensor") -> np.ndarray:
    """INT8 values as the float32 operand of `dot_operands`: checked and converted once, to be used often."""
    return check_int8(values, what).astype(np.float32)


def dot_operands(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exact ``sum_k a[..., m, k] * b[..., n, k]`` of operands made by `as_operand`; int32 [..., m, n].

    a may be one vector [k]: the result is [n]. K is split into slices of at most 1040, within which float32 cannot
    round (see `EXACT_F32_LENGTH`); slices are added in int32, exact for K <= 133,144.
    """
    length = a.shape[-1]
    if length != b.shape[-1]:
        raise ValueError(f"dot products of length {length} and {b.shape[-1]} do not match")
    if length > c.MAX_DOT_LENGTH:
        raise ValueError(f"a dot product of {length} products may overflow int32; allowed are {c.MAX_DOT_LENGTH}")
    b = np.swapaxes(b, -1, -2)
    slices = max(1, -(-length // EXACT_F32_LENGTH))
    step = -(-length // slices)
    total = None
    for start in range(0, max(length, 1), max(step, 1)):
        part = np.matmul(a[..., start : start + step], b[..., start : start + step, :]).astype(np.int32)
        total = part if total is None else total + part
    return total


def dot_int8(a, b) -> np.ndarray:
    """Exact int32 dot products of INT8 values along the last axis: a [..., m, k] (or [k]), b [..., n, k] -> [..., m, n]."""
    return dot_operands(as_operand(a, "a"), as_operand(b, "b"))
