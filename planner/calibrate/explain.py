"""Samples explained by a formula whose constants are sought."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshwright.costmodels.arrays import FloatArray
from meshwright.planner.calibrate.cases import Case, Sample
from meshwright.planner.calibrate.curve import fit

CaseT = TypeVar("CaseT", bound=Case)
Own = Sequence[tuple[CaseT, float]]
"""Cases of one kind with their seconds."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A sample and what the fitted formula says of it."""

    case: Case
    measured_s: float
    predicted_s: float

    @property
    def log_ratio(self) -> float:
        """Logarithm of predicted over measured."""
        return float(np.log(self.predicted_s / self.measured_s))


@dataclass(frozen=True)
class Explained:
    """Fitted constants by name, and the residuals of the samples behind them."""

    values: Mapping[str, float]
    residuals: tuple[Residual, ...] = ()


def of_kind(samples: Sequence[Sample], kind: type[CaseT]) -> list[tuple[CaseT, float]]:
    """Return the cases of one kind with their seconds."""
    return [(s.case, s.seconds) for s in samples if isinstance(s.case, kind)]


def explained(
    own: Own[CaseT],
    price: Callable[[CaseT, Mapping[str, float]], float],
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
) -> Explained:
    """Return the constants with which ``price`` explains samples best; none without samples."""
    if not own:
        return Explained({})

    def predict(values: Mapping[str, float]) -> FloatArray:
        """Return the seconds of all cases."""
        return np.array([price(case, values) for case, _ in own])

    curve = fit(predict, np.array([seconds for _, seconds in own]), start, bounds)
    residuals = [
        Residual(case, seconds, float(seconds * np.exp(r)))
        for (case, seconds), r in zip(own, curve.residual.tolist(), strict=True)
    ]
    return Explained(curve.values, tuple(residuals))
