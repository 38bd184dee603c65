"""Each family priced with constants that were chosen and fitted without it.

A fold starts from the slopes around the fit to all runs. Without the family's runs the free constants are
chosen anew and moved to where the others' linear problem has them, less far where pricing them shows that
this does not help: what the family alone supported falls back to the parent profile, or to the
accelerator's architecture; an architecture that it alone has measured falls back to the benchmarks' rates in
the hardware catalogue. The slopes stay those around the fit to all runs, which is what this saves over
fitting anew.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import numpy as np

from benchmarks.fit_constants import Shifts
from benchmarks.fit_file import stored_shifts
from benchmarks.fit_rows import fit_rows, priceable
from benchmarks.fit_runs import Runs
from benchmarks.fit_solve import Fit, derivatives, step
from benchmarks.fit_workers import in_processes
from benchmarks.measured_prices import Expressed, Priced, express
from benchmarks.rows import Row
from meshwright.hardware.errors import MeshwrightError


def without(fit: Fit, families: Collection[str]) -> Shifts:
    """Return the constants chosen and fitted without the runs of some families."""
    stay = np.array([r.row.family not in families for r in fit.runs.runs])
    rest = fit.runs.take(np.flatnonzero(stay).tolist())
    slopes = {field: slope[stay] for field, slope in fit.slopes.items()}
    return step(Fit(rest, fit.shifts, fit.residual[stay], slopes))[0]


def price_under(rows: Iterable[Row], shifts: Shifts) -> list[Priced]:
    """Return the prices of rows, in their order, under shifted constants."""
    answers: list[Priced | None] = []
    runs: list[Expressed] = []
    for row in rows:
        try:
            runs.append(express(row))
            answers.append(None)
        except MeshwrightError as error:
            answers.append(Priced(row, reason=str(error)))
    got = iter(Runs(tuple(runs)).prices(shifts))
    return [next(got) if answer is None else answer for answer in answers]


@lru_cache(maxsize=1)
def stored(rows: tuple[Row, ...]) -> Fit:
    """Return the constants of ``calibration.toml`` with the slopes around them."""
    runs, shifts = priceable(fit_rows(rows)), stored_shifts()
    here = runs.log_ratio(shifts)
    return Fit(runs, shifts, here, derivatives(runs, shifts, here))


def left_out(fit: Fit, rows: Sequence[Row], folds: Sequence[Collection[str]]) -> list[list[Priced]]:
    """Return for each fold of families their rows, priced with constants fitted to all other runs."""
    shifts = in_processes(without, [(fit, fold) for fold in folds])
    own = [[r for r in rows if r.family in fold] for fold in folds]
    return [price_under(rows_, there) for rows_, there in zip(own, shifts, strict=True)]


def leave_one_out(rows: Sequence[Row], families: Sequence[str]) -> dict[str, list[Priced]]:
    """Return the rows of each family priced with constants fitted to all other families.

    The slopes around the stored constants are taken once a process; those must be the constants of a fit to
    these rows (``python -m benchmarks.calibrate --write``).
    """
    found = left_out(stored(tuple(rows)), rows, [(family,) for family in families])
    return dict(zip(families, found, strict=True))
