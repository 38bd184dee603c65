"""A robust, bounded fit of a few constants to many logarithms of ratios: pure functions of arrays.

Sought are changes ``x`` of the constants that minimise

``sum_i w_i huber(r_i + (J x)_i) + sum_j ((s_j + x_j) / width_j)^2``

where ``r`` are the logarithms of predicted over measured, ``J`` their derivatives, and ``s`` how far each
constant is from what its sources say: a normal prior of that width keeps a constant that no run tells
anything about where its sources have it. Iteratively reweighted least squares (Huber 1964); each weighted
problem is a convex quadratic in a box, solved by coordinate descent.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from meshwright.costmodels.arrays import FloatArray

BEND: Final = 0.05
"""Residual from which a run pulls by its sign rather than by its size, so that outliers have no more say."""
_ROUNDS: Final = 100
_SWEEPS: Final = 400
_TINY: Final = 1e-9


def huber(residual: FloatArray, bend: float = BEND) -> FloatArray:
    """Return Huber's loss in units of the bend squared: quadratic within it, linear beyond."""
    size = np.abs(residual) / bend
    return np.asarray(np.where(size <= 1, size**2, 2 * size - 1))


def huber_weight(residual: FloatArray, bend: float = BEND) -> FloatArray:
    """Return the factor that makes the squared residual stand for Huber's loss."""
    return np.asarray(1.0 / np.maximum(np.abs(residual) / bend, 1.0))


def solve_in_box(matrix: FloatArray, linear: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the ``x`` in a box that minimises ``x A x / 2 - b x``: coordinate descent from a good start.

    Parameters
    ----------
    matrix
        Positive definite, (N, N).
    linear
        ``b``, (N,).
    low, high
        The box, (N,), ``low <= high``.
    """
    x = _start_in_box(matrix, linear, low, high)
    slope = matrix @ x - linear
    for _ in range(_SWEEPS):
        moved = 0.0
        for j in range(len(x)):
            there = min(max(x[j] - slope[j] / matrix[j, j], low[j]), high[j])
            change = there - x[j]
            if change:
                slope = slope + matrix[:, j] * change
                x[j] = there
                moved = max(moved, abs(change) * np.sqrt(matrix[j, j]))
        if moved < _TINY:
            break
    return x


def _start_in_box(matrix: FloatArray, linear: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the minimum without a box, coordinates that leave it put on its side and held there.

    It is the minimum in the box unless a held coordinate should have come free again.
    """
    x, free = np.zeros_like(linear), np.ones(len(linear), dtype=np.bool_)
    while free.any():
        rest = linear[free] - matrix[np.ix_(free, ~free)] @ x[~free]
        x[free] = np.linalg.solve(matrix[np.ix_(free, free)], rest)
        outside = free & ((x < low) | (x > high))
        x = np.clip(x, low, high)
        if not outside.any():
            break
        free &= ~outside
    return x


@dataclass(frozen=True)
class Linearised:
    """Residuals and their derivatives at some constants; N rows, P constants.

    Attributes
    ----------
    residual
        Logarithm of predicted over measured, (N,).
    slopes
        Derivatives by each constant, (N, P).
    weight
        Of each row, (N,).
    shift
        How far each constant is from its sources, (P,).
    width
        Of each constant's prior, (P,).
    low, high
        How far each constant may move from here, (P,).
    """

    residual: FloatArray
    slopes: FloatArray
    weight: FloatArray
    shift: FloatArray
    width: FloatArray
    low: FloatArray
    high: FloatArray

    def objective(self, change: FloatArray) -> float:
        """Return what is minimised, by the linear prediction after a change of the constants."""
        return objective(self.residual + self.slopes @ change, self.weight, self.shift + change, self.width)

    def solved(self) -> FloatArray:
        """Return the best change of the constants, (P,)."""
        change = np.clip(np.zeros_like(self.shift), self.low, self.high)
        for _ in range(_ROUNDS):
            before = change
            change = self._reweighted(change)
            if np.abs(change - before).max(initial=0.0) < _TINY:
                break
        return change

    def _reweighted(self, change: FloatArray) -> FloatArray:
        matrix = self.curvature(change)
        pull = self._weights(change) * self.residual
        linear = -(self.slopes.T @ pull) - self.shift / self.width**2
        return solve_in_box(matrix, linear, self.low, self.high)

    def _weights(self, change: FloatArray) -> FloatArray:
        return self.weight * huber_weight(self.residual + self.slopes @ change) / BEND**2

    def curvature(self, change: FloatArray) -> FloatArray:
        """Return half the second derivative of the objective, the weights of the rows held, (P, P)."""
        weighted = self.slopes * self._weights(change)[:, None]
        return np.asarray(self.slopes.T @ weighted + np.diag(self.width**-2))


def objective(residual: FloatArray, weight: FloatArray, shift: FloatArray, width: FloatArray) -> float:
    """Return the loss of residuals, and of constants away from their sources."""
    return float((weight * huber(residual)).sum() + ((shift / width) ** 2).sum())


def standard_errors(at: Linearised) -> FloatArray:
    """Return the standard error of each constant, (P,): the spread that rows and prior leave together."""
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(at.curvature(np.zeros_like(at.shift))))))
