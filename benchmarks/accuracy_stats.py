"""What predictions are judged by: errors, agreement of ranks, regret, and who is called out of memory.

Pure functions of numbers. An error is signed: predicted over measured, minus one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np


@dataclass(frozen=True, slots=True)
class Summary:
    """Signed errors of a group of rows in a few figures.

    Attributes
    ----------
    count
        Errors in the group.
    mape
        Mean of the errors' sizes.
    median, p90, maximum
        Of the errors' sizes.
    bias
        Mean of the signed errors.
    """

    count: int
    mape: float
    median: float
    p90: float
    maximum: float
    bias: float


def summary(errors: Iterable[float]) -> Summary | None:
    """Return the figures of signed errors; None without any."""
    signed = np.array(list(errors), dtype=np.float64)
    if not signed.size:
        return None
    size = np.abs(signed)
    return Summary(
        count=int(signed.size),
        mape=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        maximum=float(size.max()),
        bias=float(signed.mean()),
    )


def mean(values: Iterable[float]) -> float | None:
    """Return the mean; None without any value."""
    every = list(values)
    return sum(every) / len(every) if every else None


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of two rankings (Kendall 1945, ties counted apart); None where one is constant.

    Raises
    ------
    ValueError
        If they differ in length.
    """
    agree = untied_first = untied_second = 0
    for (a, x), (b, y) in combinations(zip(first, second, strict=True), 2):
        way, other = (a > b) - (a < b), (x > y) - (x < y)
        agree += way * other
        untied_first += way != 0
        untied_second += other != 0
    pairs = untied_first * untied_second
    return agree / sqrt(pairs) if pairs else None


def regret(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return what choosing by prediction costs: time of the predicted fastest over the fastest, minus one.

    Times are measured ones. Where several are predicted equally fast, the mean of theirs.
    """
    chosen = [m for m, p in zip(measured, predicted, strict=True) if p == min(predicted)]
    return sum(chosen) / len(chosen) / min(measured) - 1


@dataclass(frozen=True, slots=True)
class Confusion:
    """Runs by what happened and what was predicted.

    Attributes
    ----------
    fit_called_fit, fit_called_oom
        Runs that fitted.
    oom_called_fit, oom_called_oom
        Runs that ended out of memory.
    """

    fit_called_fit: int = 0
    fit_called_oom: int = 0
    oom_called_fit: int = 0
    oom_called_oom: int = 0

    @property
    def missed(self) -> float | None:
        """Share of the runs out of memory that were called "fits"; None without such runs."""
        return _share(self.oom_called_fit, self.oom_called_oom)

    @property
    def refused(self) -> float | None:
        """Share of the fitting runs that were called "out of memory"; None without such runs."""
        return _share(self.fit_called_oom, self.fit_called_fit)


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def confusion(outcomes: Iterable[tuple[bool, bool]]) -> Confusion:
    """Return the counts of (fitted, predicted to fit)."""
    seen = list(outcomes)
    return Confusion(*(seen.count((fitted, called)) for fitted in (True, False) for called in (True, False)))
