"""What calibration knows of a linear's inputs, and what is computed from it once for all linears that share them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.linalg

DAMP = 0.01
"""Share of the mean of the Gram matrix' diagonal that is added to it before it is inverted (GPTQ, section 3.3, step 3)."""


class InputStatistics:
    """Gram matrix and sizes of the inputs x [K] of a linear over calibration tokens.

    gram: float32 [K, K], sum of x x^T; absmax, absmean: float32 [K], largest and mean |x| of each column; tokens: how many.
    """

    def __init__(self, gram: np.ndarray, absmax: np.ndarray, absmean: np.ndarray, tokens: int):
        self.gram, self.absmax, self.absmean, self.tokens = gram, absmax, absmean, tokens

    @classmethod
    def of(cls, x: np.ndarray) -> InputStatistics:
        """Of inputs float32 [tokens, K]."""
        size = np.abs(x)
        return cls(x.T @ x, size.max(axis=0), size.mean(axis=0), len(x))

    def joined(self, other: InputStatistics) -> InputStatistics:
        """Over the tokens of both."""
        tokens = self.tokens + other.tokens
        mean = (self.absmean * np.float32(self.tokens / tokens)) + other.absmean * np.float32(other.tokens / tokens)
        return InputStatistics(self.gram + other.gram, np.maximum(self.absmax, other.absmax), mean, tokens)

    def scaled(self, scale: np.ndarray) -> InputStatistics:
        """Of inputs that are divided by `scale` [K]."""
        return InputStatistics(self.gram / np.outer(scale, scale), self.absmax / scale, self.absmean / scale, self.tokens)

    @cached_property
    def importance(self) -> np.ndarray:
        """Of each column, float64 [K]: the (damped) sum of squares that an error of its weight is multiplied by."""
        diagonal = self.gram.diagonal().astype(np.float64)
        mean = diagonal.mean()
        return diagonal + (DAMP * mean if mean > 0 else 1.0)

    @property
    def damped(self) -> np.ndarray:
        """float64 [K, K]: the Gram matrix with a diagonal that is nowhere 0, so that it has an inverse. Made anew each time: it is large."""
        result = np.array(self.gram, np.float64)
        np.fill_diagonal(result, self.importance)
        return result

    @cached_property
    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of the inverse of `damped`, float64 [K]."""
        return np.square(self.factor, dtype=np.float64).sum(axis=0)

    @cached_property
    def order(self) -> np.ndarray:
        """Columns by falling importance, int64 [K]."""
        return np.argsort(-self.importance, kind="stable")

    @cached_property
    def factor(self) -> np.ndarray:
        """Upper triangular float32 U [K, K] with U^T U = inverse of `damped`."""
        return _inverse_factor(self.damped).astype(np.float32)

    @cached_property
    def ordered_factor(self) -> np.ndarray:
        """`factor` for columns taken in `order`."""
        return _inverse_factor(self.damped[self.order][:, self.order]).astype(np.float32)

    def output_error(self, difference: np.ndarray) -> float:
        """Mean over tokens of the squared length of difference [N, K] times x: what a change of the weights does to the outputs."""
        return float(np.einsum("nk,nk->", difference @ self.gram, difference, dtype=np.float64)) / self.tokens


def _inverse_factor(matrix: np.ndarray) -> np.ndarray:
    """Upper triangular float64 U with U^T U = inverse of a positive definite matrix [K, K].

    With rows and columns in reverse order a lower factor becomes an upper one: matrix = R R^T, and U = inverse of R. That costs two thirds
    of K^3 multiplications; an inverse and its factor would cost four times as many.
    """
    upper = scipy.linalg.cholesky(matrix[::-1, ::-1], lower=True)[::-1, ::-1]
    inverse, status = scipy.linalg.lapack.dtrtri(np.asfortranarray(upper))
    if status:
        raise ValueError(f"a factor of a positive definite matrix has no inverse (LAPACK status {status})")
    return inverse
