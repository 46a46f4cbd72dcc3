"""INT8 matrix times vector in int32, compiled: what bounds a decode step of the golden executor is reading the weights."""

import numba
import numpy as np


@numba.njit("void(int16[::1], int8[:, ::1], int32[::1])", cache=True)
def int8_gemv(vector, matrix, result):
    """result[n] = sum_k vector[k] * matrix[n, k], exact for INT8 values and K <= 133,144 (int32 cannot overflow).

    The products of int16 operands summed in int32 are one instruction on most processors (multiply-add of pairs).
    """
    for n in range(matrix.shape[0]):
        total = np.int32(0)
        for k in range(matrix.shape[1]):
            total += np.int32(vector[k]) * np.int32(np.int16(matrix[n, k]))
        result[n] = total
