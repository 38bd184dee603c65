"""The runs that constants are fitted to: measured, of trust A or B, evenly thinned in large families."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import numpy as np

from benchmarks.fit_runs import STEP_TIME, Observable, Runs
from benchmarks.measured_prices import Expressed, express
from benchmarks.rows import Row
from meshwright.hardware.errors import MeshwrightError

T = TypeVar("T")
MOST_EACH: Final = 60
"""Runs of a family that the derivatives see; of more, evenly spread ones."""


def fit_rows(rows: Iterable[Row], observable: Observable = STEP_TIME) -> list[Row]:
    """Return the rows that are fitted to: measured, of trust A or B, evenly thinned in large families."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.trusted and observable.measured(row) is not None and row.outcome == "ok":
            families.setdefault(row.family, []).append(row)
    return [row for own in families.values() for row in thinned(own, MOST_EACH)]


def thinned(rows: Sequence[T], most: int) -> list[T]:
    """Return at most so many of the items, evenly spread."""
    if len(rows) <= most:
        return list(rows)
    return [rows[int(at)] for at in np.linspace(0, len(rows) - 1, most).round()]


def expressed(rows: Iterable[Row]) -> tuple[Expressed, ...]:
    """Return what can be written as a problem and a plan."""
    found = []
    for row in rows:
        try:
            found.append(express(row))
        except MeshwrightError:
            continue  # listed with its reason by benchmarks.accuracy
    return tuple(found)


def priceable(rows: Iterable[Row], observable: Observable = STEP_TIME) -> Runs:
    """Return the runs of rows that have a price."""
    runs = Runs(expressed(rows), observable)
    return runs.take(np.flatnonzero(np.isfinite(runs.log_ratio({}))).tolist())
