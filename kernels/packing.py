"""Weights as the Triton kernels read them. The packing knows no machine: no ports, words or stripes.

4 bits: byte j of group g holds code ``32 g + j`` in its low and code ``32 g + 16 + j`` in its high nibble, so that both halves of a
group are contiguous along K and a group's metadata serve 16 consecutive bytes. The last group is padded with zero codes.
8 bits: two's complement, a byte a weight, no metadata.
"""

from dataclasses import dataclass

import numpy as np

from headrace.kernels.contract import constants as c
from headrace.kernels.contract.integers import check_codes, check_int8
from headrace.models.quantise import QuantisedLinear

WIDTHS = (4, 8)
GROUP_BYTES = c.GROUP // 2


@dataclass(frozen=True, kw_only=True)
class PackedLinear:
    """One weight matrix [N, K].

    4 bits: codes uint8 [N, 16 G], mult uint8 [N, G], off int16 [N, G] with G = ceil(K / 32). 8 bits: codes int8 [N, K], mult and off
    [N, 0]. row_scale float32 [N].
    """

    inputs: int
    bits: int
    codes: np.ndarray
    mult: np.ndarray
    off: np.ndarray
    row_scale: np.ndarray

    @property
    def outputs(self) -> int:
        return self.codes.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes that one pass reads: codes, metadata and row scales, padding of the last group included."""
        return self.codes.nbytes + self.mult.nbytes + self.off.nbytes + self.row_scale.nbytes


def pack_linear(linear: QuantisedLinear) -> PackedLinear:
    """Pack codes of 4 or 8 bits. Raises ValueError for other widths, codes out of range or K beyond exact int32 sums."""
    linear = linear.in_groups_of_32()
    outputs, inputs = linear.codes.shape
    if linear.bits not in WIDTHS:
        raise ValueError(f"codes of {linear.bits} bits have no kernel; allowed are {', '.join(map(str, WIDTHS))}")
    if not 1 <= inputs <= c.MAX_DOT_LENGTH:
        raise ValueError(f"a matrix of {inputs} inputs; allowed are 1 to {c.MAX_DOT_LENGTH}, which int32 sums hold exactly")
    if linear.row_scale.shape != (outputs,) or linear.row_scale.dtype != np.float32:
        raise ValueError(f"row scales {linear.row_scale.dtype} {linear.row_scale.shape}; needed are float32 ({outputs},)")
    if linear.bits == 8:
        codes = check_int8(linear.codes, "weights")
        mult, off = np.zeros((outputs, 0), np.uint8), np.zeros((outputs, 0), np.int16)
    else:
        check_codes(linear.codes, linear.mult, linear.off, linear.bits, "weights")
        padded = np.pad(linear.codes.astype(np.uint8), ((0, 0), (0, -inputs % c.GROUP))).reshape(outputs, -1, 2, GROUP_BYTES)
        codes = (padded[:, :, 0] | padded[:, :, 1] << 4).reshape(outputs, -1)
        mult, off = linear.mult.astype(np.uint8), linear.off.astype(np.int16)
    return PackedLinear(
        inputs=inputs, bits=linear.bits, codes=np.ascontiguousarray(codes), mult=np.ascontiguousarray(mult),
        off=np.ascontiguousarray(off), row_scale=np.ascontiguousarray(linear.row_scale),
    )  # fmt: skip
