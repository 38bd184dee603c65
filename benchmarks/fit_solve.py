"""Gauss-Newton on the constants of profiles and accelerators, around pricings of all runs.

The logarithms of predicted over measured are fitted with Huber's loss (:mod:`benchmarks.fit`). A family of
sources has one vote for each kind of training, however many runs it has. Derivatives are differences over
whole pricings of the runs that a constant reaches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.fit import Linearised, objective
from benchmarks.fit_choice import FELT, SURE, Slopes, columns, free_constants, inside, of_constants, pruned
from benchmarks.fit_constants import EVERYWHERE, Constant, Shifts, tree
from benchmarks.fit_runs import Runs, moved, value_of
from benchmarks.fit_workers import in_processes
from meshwright.costmodels.arrays import FloatArray, IntArray

VOTE: Final = 6.0
"""Weight of a family against the prior: an error of :data:`~benchmarks.fit.BEND` in all of a family's runs
weighs as much as one constant 2.4 of its widths away."""
DIFFERENCE: Final = 0.5
"""Of a constant's width: the step of the numerical derivatives; kinks of maxima average out over it."""
TRUST: Final = 2.0
"""Widths by which a constant moves in one iteration at most."""
ITERATIONS: Final = 3
HALVINGS: Final = 3
"""Steps tried in one iteration, each half of the one before."""


@dataclass(frozen=True)
class Fit:
    """Fitted constants, and how the residuals follow every field around them.

    Attributes
    ----------
    runs
        The runs that were fitted to.
    shifts
        Where the free constants ended, those that matter most to a place first.
    residual
        Logarithms of predicted over measured there, (N,).
    slopes
        Their derivatives by each field.
    """

    runs: Runs
    shifts: Shifts
    residual: FloatArray
    slopes: Slopes

    @property
    def constants(self) -> tuple[Constant, ...]:
        """The free ones."""
        return tuple(self.shifts)

    @property
    def at(self) -> Linearised:
        """The linearised problem of the free constants."""
        return linearised(self.runs, self.residual, self.slopes, self.constants, self.shifts)

    @property
    def score(self) -> float:
        """What is minimised, and for each constant what it must gain to be told from what it inherits."""
        at = self.at
        return at.objective(np.zeros_like(at.shift)) + SURE**2 * len(self.shifts)

    @property
    def support(self) -> dict[Constant, int]:
        """Runs that tell about each constant."""
        at = self.at
        felt = (np.abs(at.slopes * at.width) > FELT).sum(axis=0)
        return dict(zip(self.constants, felt.tolist(), strict=True))


def derivatives(
    runs: Runs, shifts: Shifts, here: FloatArray, known: Slopes | None = None
) -> dict[tuple[str, str], FloatArray]:
    """Return how the residuals follow each field.

    A place's constant moves the runs that it reaches as the field itself does, so that one pricing a field
    gives the slopes of every place; two processes share them.

    Parameters
    ----------
    known
        Slopes nearby, taken over for the fields that no constant of ``shifts`` has.
    """
    tables, own = runs.observable.fields, {(tree(c.kind), c.field) for c in shifts}
    every = [Constant(kind, EVERYWHERE, f) for kind, table in tables.items() for f in table]
    fields = [c for c in every if known is None or (c.kind, c.field) in own]
    rows = [np.flatnonzero(runs.concerned(c)) for c in fields]
    tasks = [(runs, {**shifts, c: _step(c)}, at) for c, at in zip(fields, rows, strict=True)]
    moved_to = in_processes(_log_ratio, tasks)
    found = dict(known or {})
    for constant, at, there in zip(fields, rows, moved_to, strict=True):
        slopes = np.zeros_like(here)
        slopes[at] = (there - here[at]) / _step(constant)
        found[constant.kind, constant.field] = slopes
    return found


def _step(constant: Constant) -> float:
    """Return the difference over which a slope is taken: shares are lowered, as many are near one."""
    width = DIFFERENCE * constant.bounds.width
    return -width if constant.field.startswith("overlap_") and constant.field != "overlap_cost" else width


def _log_ratio(runs: Runs, shifts: Shifts, rows: IntArray) -> FloatArray:
    return runs.log_ratio(shifts, rows) if len(rows) else np.zeros(0)


def room(constant: Constant, shifts: Shifts) -> tuple[float, float]:
    """Return how far a constant may move down and up: its bounds, and the trust in the linearisation."""
    bounds, value = constant.bounds, value_of(constant, shifts)
    trust = TRUST * bounds.width
    if value <= 0 and not bounds.shares:
        return 0.0, 0.0
    low, high = bounds.shift(value, bounds.low), bounds.shift(value, bounds.high)
    return float(np.clip(low, -trust, 0.0)), float(np.clip(high, 0.0, trust))


def linearised(
    runs: Runs, here: FloatArray, slopes: Slopes, constants: Sequence[Constant], shifts: Shifts
) -> Linearised:
    """Return the problem around some constants, of which those without a shift are where they inherit."""
    rooms = np.array([room(c, shifts) for c in constants]).reshape(-1, 2)
    return Linearised(
        residual=here,
        slopes=columns(runs, slopes, constants),
        weight=runs.weights(VOTE),
        shift=np.array([shifts.get(c, 0.0) for c in constants]),
        width=np.array([c.bounds.width for c in constants]),
        low=rooms[:, 0],
        high=rooms[:, 1],
    )


def fitted(
    runs: Runs,
    say: Callable[[str], None] = lambda _: None,
    iterations: int = ITERATIONS,
    start: Shifts | None = None,
) -> Fit:
    """Return the constants that fit runs best, those left out that are not told from what they inherit.

    Of the iterations the one with the lowest :attr:`Fit.score`.

    Parameters
    ----------
    start
        Where to begin; which constants are free is chosen anew in any case.
    """
    shifts = start or {}
    here = runs.log_ratio(shifts)
    fit = best = Fit(runs, shifts, here, derivatives(runs, shifts, here))
    say(f"{len(here)} runs, {votes_error(runs, here):.2%} in the mean before")
    for number in range(iterations):
        shifts, here = step(fit, say)
        fit = Fit(runs, shifts, here, derivatives(runs, shifts, here, fit.slopes))
        say(
            f"{number + 1}: {votes_error(runs, here):.2%} with {len(shifts)} constants, score {fit.score:.1f}"
        )
        best = min(best, fit, key=lambda f: f.score)
    return best


def step(fit: Fit, say: Callable[[str], None] = lambda _: None) -> tuple[Shifts, FloatArray]:
    """Return the constants chosen anew around a fit, where they are moved to, and the residuals there."""
    runs, shifts = fit.runs, fit.shifts
    free = free_constants(runs, fit.slopes)
    every = tuple(dict.fromkeys((*free, *shifts)))
    at = linearised(runs, fit.residual, fit.slopes, every, shifts)
    constants, at = pruned(free, of_constants(at, np.arange(len(free))))
    constants, at, stuck = inside(constants, at, shifts)
    if stuck:
        say(f"on their bounds, so left out (mechanisms are missing): {', '.join(map(str, stuck))}")
    return downhill(runs, at, constants, shifts)


def downhill(
    runs: Runs, at: Linearised, constants: Sequence[Constant], shifts: Shifts
) -> tuple[Shifts, FloatArray]:
    """Return the constants after the linear problem's best step, halved until it helps, and the residuals."""
    before = objective(at.residual, at.weight, at.shift, at.width)
    change = at.solved()
    for _ in range(HALVINGS):
        there = moved(constants, shifts, change)
        after = runs.log_ratio(there)
        ended = np.array([there[c] for c in constants])
        if objective(after, at.weight, ended, at.width) < before:
            break
        change = change / 2
    return there, after


def votes_error(runs: Runs, log_ratio: FloatArray) -> float:
    """Return the mean over families and kinds of the mean size of the error."""
    size, groups = np.abs(np.expm1(log_ratio)), np.array([" ".join(g) for g in runs.groups])
    return float(np.mean([size[groups == name].mean() for name in np.unique(groups)]))
