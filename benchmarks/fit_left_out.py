"""Each family priced with constants that were chosen and fitted without it.

A fold starts from the slopes around the fit to all runs. Without the family's runs the free constants are
chosen anew and moved to where the others' linear problem has them, less far where pricing them shows that
this does not help: what the family alone supported falls back to
the parent profile, or to the accelerator's architecture; an architecture that it alone has measured falls
back to the benchmarks' rates in the hardware catalogue. The slopes stay those around the fit to all runs,
which is what this saves over fitting anew.
"""

from collections.abc import Iterable, Mapping, Sequence
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


def without(fit: Fit, family: str) -> Shifts:
    """Return the constants chosen and fitted without a family's runs."""
    stay = np.array([r.row.family != family for r in fit.runs.runs])
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


def left_out(fit: Fit, rows: Sequence[Row], families: Sequence[str]) -> dict[str, list[Priced]]:
    """Return the rows of each family priced with constants fitted to all other runs of a fit."""
    shifts = in_processes(without, [(fit, family) for family in families])
    own: Mapping[str, Iterable[Row]] = {f: [r for r in rows if r.family == f] for f in families}
    return {f: price_under(own[f], there) for f, there in zip(families, shifts, strict=True)}


def leave_one_out(rows: Sequence[Row], families: Sequence[str]) -> dict[str, list[Priced]]:
    """Return the rows of each family priced with constants fitted to all other families.

    The slopes around the stored constants are taken once a process; those must be the constants of a fit to
    these rows (``python -m benchmarks.calibrate --write``).
    """
    return left_out(stored(tuple(rows)), rows, families)
