"""Fitting a few positive constants of a formula to measured seconds: bounded least squares of logarithms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from meshwright.costmodels.arrays import FloatArray
from meshwright.planner.calibrate.least_squares import Linearised, huber

Predict = Callable[[Mapping[str, float]], FloatArray]
"""From constants to the seconds of all samples, (N,)."""
STEP: Final = 0.05
"""Of a constant's logarithm: the difference over which derivatives are taken."""
ITERATIONS: Final = 20
WIDE: Final = 1e3
"""Width of the priors, in logarithms: none to speak of."""
DONE: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Curve:
    """Fitted constants and what they leave unexplained: logarithms of predicted over measured, (N,)."""

    values: Mapping[str, float]
    residual: FloatArray


def fit(
    predict: Predict,
    seconds: FloatArray,
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
) -> Curve:
    """Return the constants within bounds that explain measured seconds best.

    Gauss-Newton on ``log(predicted / measured)`` with Huber's loss, so that one spoiled sample has a bounded
    say; a step that does not improve is halved.

    Parameters
    ----------
    seconds
        Measured, (N,).
    start, bounds
        Of each constant, positive.
    """
    names = list(start)
    low, high = (np.log([bounds[name][side] for name in names]) for side in (0, 1))
    at = np.clip(np.log([start[name] for name in names]), low, high)

    def residual(x: FloatArray) -> FloatArray:
        """Return the logarithms of predicted over measured."""
        values = dict(zip(names, np.exp(x).tolist(), strict=True))
        return np.asarray(np.log(predict(values) / seconds))

    here = residual(at)
    for _ in range(ITERATIONS):
        moved, there = _improved(residual, at, here, low, high)
        change = float(np.abs(moved - at).max(initial=0.0))
        at, here = moved, there
        if change < DONE:
            break
    return Curve(dict(zip(names, np.exp(at).tolist(), strict=True)), here)


def _improved(
    residual: Callable[[FloatArray], FloatArray],
    at: FloatArray,
    here: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return better constants and their residuals; the same ones where no step is better."""
    columns = [(residual(at + STEP * one) - here) / STEP for one in np.eye(len(at))]
    width, ones = np.full_like(at, WIDE), np.ones_like(here)
    problem = Linearised(here, np.stack(columns, -1), ones, np.zeros_like(at), width, low - at, high - at)
    step, before = problem.solved(), float(huber(here).sum())
    for _ in range(6):
        moved = np.clip(at + step, low, high)
        there = residual(moved)
        if float(huber(there).sum()) <= before:
            return moved, there
        step = step / 2
    return at, here
