"""Constants of profiles and accelerators fitted to published runs.

``python -m benchmarks.calibrate`` fits the constants of :mod:`benchmarks.fit_constants` to the timed runs of
trust A and B and prints them with their bounds, their standard errors and the runs behind each;
``--write`` stores them in ``costmodels/data/calibration.toml``, which profiles and accelerators are read
with. :func:`leave_one_out` fits without a family and prices the family with the result.

The fit: Gauss-Newton on the logarithms of predicted over measured step time with Huber's loss
(:mod:`benchmarks.fit`). A family of sources has one vote for each kind of training, however many runs it
has. Derivatives are differences over whole pricings of the runs that a constant reaches. A constant is free
if enough runs are priced with it and if it makes a difference to enough of them; all others keep what they
inherit. Without a family, its runs leave the linearised fit, and what it alone supported falls back to the
parent profile, or to the accelerator's architecture; an architecture that it alone has measured falls back
to the benchmarks' rates in the hardware catalogue.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from benchmarks.accuracy_left_out import left_out_figures, left_out_text, voters
from benchmarks.fit import Linearised, objective, standard_errors
from benchmarks.fit_constants import EVERYWHERE, MOST, ROWS_EACH, TABLES, Constant, Shifts, tree
from benchmarks.fit_file import CALIBRATION, Entry, group_figures, stored_shifts, text_of
from benchmarks.fit_runs import ROOT, Runs, depth, value_of
from benchmarks.fit_workers import in_processes
from benchmarks.measured_prices import Expressed, Priced, express
from benchmarks.measured_prices import _priced as priced_run
from benchmarks.rows import BUILT_IN, Row, read_rows
from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.hardware.errors import MeshwrightError

T = TypeVar("T")

VOTE: Final = 6.0
"""Weight of a family against the prior: an error of :data:`~benchmarks.fit.BEND` in all of a family's runs
weighs as much as one constant 2.4 of its widths away."""
FELT: Final = 0.002
"""Change of a run's time by one width of a constant from which the run tells about it."""
DIFFERENCE: Final = 0.5
"""Of a constant's width: the step of the numerical derivatives; kinks of maxima average out over it."""
TRUST: Final = 2.0
"""Widths by which a constant moves in one iteration at most."""
ITERATIONS: Final = 3
SAMPLE: Final = 120
"""Runs whose residuals are written down one by one."""
SURE: Final = 2.0
"""Standard errors by which a constant must differ from what it inherits."""
MOST_EACH: Final = 120
"""Runs of a family that the derivatives see; of more, evenly spread ones."""


@dataclass(frozen=True)
class Fit:
    """Fitted constants, and the linearised problem around them.

    Attributes
    ----------
    runs
        The timed runs that were fitted to.
    constants
        The free ones, in the order of the columns.
    shifts
        Where they ended.
    at
        Residuals and slopes there.
    """

    runs: Runs
    constants: tuple[Constant, ...]
    shifts: Shifts
    at: Linearised

    @property
    def support(self) -> dict[Constant, int]:
        """Runs that tell about each constant."""
        return dict(zip(self.constants, felt(self.at).sum(axis=0).tolist(), strict=True))


def felt(at: Linearised) -> BoolArray:
    """Return which runs tell about which constants, (N, P)."""
    return np.asarray(np.abs(at.slopes * at.width) > FELT)


def fit_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that are fitted to: timed, of trust A or B, evenly thinned in large families."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.trusted and row.step_time_s is not None and row.outcome == "ok":
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


def priceable(rows: Iterable[Row]) -> Runs:
    """Return the runs of rows that have a price."""
    runs = Runs(expressed(rows))
    return runs.take(np.flatnonzero(np.isfinite(runs.log_ratio({}))).tolist())


Slopes = Mapping[tuple[str, str], FloatArray]
"""Derivatives of the residuals, (N,), by the kind of place and the field, wherever the field is set."""


def derivatives(
    runs: Runs, shifts: Shifts, here: FloatArray, constants: Sequence[Constant] = ()
) -> dict[tuple[str, str], FloatArray]:
    """Return how the residuals follow each field.

    A place's constant moves the runs that it reaches as the field itself does, so that one pricing a field
    gives the slopes of every place; two processes share them.

    Parameters
    ----------
    constants
        Slopes are wanted of these alone; of all by default.
    """
    fields = [Constant(kind, EVERYWHERE, f) for kind, table in TABLES.items() for f in table]
    rows = [np.flatnonzero(runs.concerned(c) & _wanted(runs, c, constants)) for c in fields]
    tasks = [(runs, {**shifts, c: _step(c)}, at) for c, at in zip(fields, rows, strict=True)]
    moved = in_processes(_log_ratio, tasks)
    found = {}
    for constant, at, there in zip(fields, rows, moved, strict=True):
        slopes = np.zeros_like(here)
        slopes[at] = (there - here[at]) / _step(constant)
        found[constant.kind, constant.field] = slopes
    return found


def _wanted(runs: Runs, field: Constant, constants: Sequence[Constant]) -> BoolArray:
    """Return which runs some of the constants reach by a field; all of them without constants."""
    same = [c for c in constants if (tree(c.kind), c.field) == (field.kind, field.field)]
    every = np.full(len(runs.runs), not constants)
    return np.asarray(np.logical_or.reduce([every, *(runs.reached(c) for c in same)]))


def _step(constant: Constant) -> float:
    """Return the difference over which a slope is taken: shares are lowered, as many are near one."""
    width = DIFFERENCE * constant.bounds.width
    return -width if constant.field.startswith("overlap_") and constant.field != "overlap_cost" else width


def _log_ratio(runs: Runs, shifts: Shifts, rows: IntArray) -> FloatArray:
    return runs.log_ratio(shifts, rows) if len(rows) else np.zeros(0)


def columns(runs: Runs, by_field: Slopes, constants: Sequence[Constant]) -> FloatArray:
    """Return the slopes of constants, (N, P)."""
    picked = [by_field[tree(c.kind), c.field] * runs.reached(c) for c in constants]
    return np.stack(picked, axis=-1) if picked else np.zeros((len(runs.runs), 0))


def free_constants(runs: Runs, by_field: Slopes) -> tuple[Constant, ...]:
    """Return the constants that may be fitted.

    Each makes a difference to at least :data:`ROWS_EACH` runs. A place has at most one for every so many
    of its runs, those that matter most to them. A place with a single leaf below it leaves the constant to
    the leaf.
    """
    found: list[Constant] = []
    for (kind, place), leaves in sorted(runs.places.items()):
        if len(leaves) == 1 and place not in leaves and kind == "profiles":
            continue
        if kind == "accelerators" and _only_one_of_its_kind(runs, place):
            continue
        found += _own(runs, by_field, kind, place)
    return tuple(found)


def _only_one_of_its_kind(runs: Runs, accelerator: str) -> bool:
    """Return whether no other accelerator of its architecture has runs: the architecture tells the same."""
    return any(
        kind == "architectures" and leaves == {accelerator} for (kind, _), leaves in runs.places.items()
    )


def _own(runs: Runs, by_field: Slopes, kind: str, place: str) -> list[Constant]:
    table = TABLES[tree(kind)]
    every = [Constant(kind, place, field) for field in table]
    slopes = columns(runs, by_field, every) * np.array([c.bounds.width for c in every])
    told = (np.abs(slopes) > FELT).sum(axis=0)
    matter = (runs.weights()[:, None] * slopes**2).sum(axis=0)
    rows = max(int(runs.reached(c).sum()) for c in every)
    most = rows // ROWS_EACH
    if place != ROOT:
        most = min(most, MOST)
    enough = [at for at in np.argsort(-matter, kind="stable") if told[at] >= ROWS_EACH]
    return [every[at] for at in enough[:most]]


def room(constant: Constant, shifts: Shifts) -> tuple[float, float]:
    """Return how far a constant may move down and up: its bounds, and the trust in the linearisation."""
    bounds, value = constant.bounds, value_of(constant, shifts)
    trust = TRUST * bounds.width
    if value <= 0 and not bounds.shares:
        return 0.0, 0.0
    low, high = bounds.shift(value, bounds.low), bounds.shift(value, bounds.high)
    return float(np.clip(low, -trust, 0.0)), float(np.clip(high, 0.0, trust))


def linearised(
    runs: Runs, here: FloatArray, slopes: FloatArray, constants: Sequence[Constant], shifts: Shifts
) -> Linearised:
    """Return the problem around some constants."""
    rooms = np.array([room(c, shifts) for c in constants]).reshape(-1, 2)
    return Linearised(
        residual=here,
        slopes=slopes,
        weight=runs.weights(VOTE),
        shift=np.array([shifts.get(c, 0.0) for c in constants]),
        width=np.array([c.bounds.width for c in constants]),
        low=rooms[:, 0],
        high=rooms[:, 1],
    )


def moved(constants: Sequence[Constant], shifts: Shifts, change: FloatArray) -> dict[Constant, float]:
    """Return shifts after a change, each value kept in its bounds, ancestors first."""
    found: dict[Constant, float] = {}
    order = sorted(range(len(constants)), key=lambda at: depth(constants[at]))
    for at in order:
        constant = constants[at]
        found[constant] = 0.0
        start, bounds = value_of(constant, found), constant.bounds
        shift = shifts.get(constant, 0.0) + float(change[at])
        value = min(max(bounds.moved(start, shift), bounds.low), bounds.high)
        found[constant] = bounds.shift(start, value)
    return found


def fitted(
    runs: Runs,
    say: Callable[[str], None] = lambda _: None,
    iterations: int = ITERATIONS,
    start: Shifts | None = None,
) -> Fit:
    """Return the constants that fit runs best, those left out that are not told from what they inherit.

    Parameters
    ----------
    start
        Constants to go on from, none of which is chosen anew.
    """
    shifts = dict(start or {})
    constants = tuple(shifts)
    here = runs.log_ratio(shifts)
    say(f"{len(here)} runs, {votes_error(runs, here):.2%} in the mean before")
    for number in range(iterations):
        by_field = derivatives(runs, shifts, here, constants)
        constants = constants or free_constants(runs, by_field)
        at = linearised(runs, here, columns(runs, by_field, constants), constants, shifts)
        if not start:
            constants, at = pruned(constants, at)
        constants, at, stuck = inside(constants, at, shifts)
        if stuck:
            say(f"on their bounds, so left out (mechanisms are missing): {', '.join(map(str, stuck))}")
        shifts, here = _downhill(runs, at, constants, shifts)
        say(f"{number + 1}: {votes_error(runs, here):.2%} with {len(constants)} constants")
    return around(runs, here, constants, shifts)


def pruned(constants: tuple[Constant, ...], at: Linearised) -> tuple[tuple[Constant, ...], Linearised]:
    """Return the constants, and their problem, that a solution tells from what they inherit.

    Those that it moves by less than :data:`SURE` standard errors leave, a quarter of them at a time, the
    least sure first: what one constant explained another may take over.
    """
    while True:
        change = at.solved()
        sure = np.abs(at.shift + change) / np.sqrt(np.diag(np.linalg.inv(at.curvature(change))))
        unsure = np.flatnonzero(sure < SURE)
        if not unsure.size:
            return constants, at
        worst = unsure[np.argsort(sure[unsure])][: max(1, unsure.size // 4)]
        kept = np.setdiff1d(np.arange(len(constants)), worst)
        constants = tuple(constants[k] for k in kept)
        at = of_constants(at, kept)


def inside(
    constants: tuple[Constant, ...], at: Linearised, shifts: Shifts
) -> tuple[tuple[Constant, ...], Linearised, list[Constant]]:
    """Return the constants that runs do not push onto a bound, their problem, and those that they do.

    What would sit on its bound goes back to what it inherits, the one that is furthest from there first: runs
    ask it for what it does not stand for.
    """
    out: list[Constant] = []
    while True:
        there = moved(constants, shifts, at.solved())
        stuck = [k for k, c in enumerate(constants) if c.bounds.near(value_of(c, there))]
        if not stuck:
            return constants, at, out
        worst = max(stuck, key=lambda k: abs(there[constants[k]]) / at.width[k])
        out.append(constants[worst])
        kept = np.setdiff1d(np.arange(len(constants)), [worst])
        constants, at = tuple(constants[k] for k in kept), of_constants(at, kept)


def of_constants(at: Linearised, kept: IntArray) -> Linearised:
    """Return the problem of some of the constants; the others go back to what they inherit."""
    gone = np.setdiff1d(np.arange(len(at.shift)), kept)
    residual = at.residual - at.slopes[:, gone] @ at.shift[gone]
    columns_ = {name: getattr(at, name)[kept] for name in ("shift", "width", "low", "high")}
    return replace(at, residual=residual, slopes=at.slopes[:, kept], **columns_)


def around(runs: Runs, here: FloatArray, constants: tuple[Constant, ...], shifts: Shifts) -> Fit:
    """Return constants with the problem linearised around them."""
    slopes = columns(runs, derivatives(runs, shifts, here, constants), constants)
    return Fit(runs, constants, shifts, linearised(runs, here, slopes, constants, shifts))


def _downhill(
    runs: Runs, at: Linearised, constants: Sequence[Constant], shifts: Shifts
) -> tuple[dict[Constant, float], FloatArray]:
    """Return the constants after the linear problem's best step, halved until it helps."""
    before = objective(at.residual, at.weight, at.shift, at.width)
    change = at.solved()
    for _ in range(4):
        there = moved(constants, shifts, change)
        after = runs.log_ratio(there)
        ended = np.array([there[c] for c in constants])
        if objective(after, at.weight, ended, at.width) < before:
            return there, after
        change = change / 2
    return dict(shifts), at.residual


def votes_error(runs: Runs, log_ratio: FloatArray) -> float:
    """Return the mean over families and kinds of the mean size of the error."""
    size, groups = np.abs(np.expm1(log_ratio)), np.array([" ".join(g) for g in runs.groups])
    return float(np.mean([size[groups == name].mean() for name in np.unique(groups)]))


def without(fit: Fit, family: str) -> dict[Constant, float]:
    """Return the constants fitted to all runs but a family's: the linearised problem solved without them.

    Constants that too few runs are left for fall back to what they inherit.
    """
    stay = np.array([r.row.family != family for r in fit.runs.runs])
    rest = fit.runs.take(np.flatnonzero(stay).tolist())
    told = felt(fit.at)[stay].sum(axis=0)
    kept = _affordable(fit, rest, told)
    gone = np.where(kept, 0.0, -fit.at.shift)
    start = replace(
        fit.at,
        residual=fit.at.residual[stay],
        slopes=fit.at.slopes[stay],
        weight=rest.weights(VOTE),
        low=np.where(kept, fit.at.low, gone),
        high=np.where(kept, fit.at.high, gone),
    )
    return moved(fit.constants, fit.shifts, start.solved())


def _affordable(fit: Fit, rest: Runs, told: IntArray) -> BoolArray:
    """Return which constants have runs enough: by themselves, and together with others of their place."""
    spent: Counter[tuple[str, str]] = Counter()
    kept = np.zeros(len(fit.constants), dtype=np.bool_)
    for at, constant in enumerate(fit.constants):  # those that matter most come first
        place = constant.kind, constant.place
        rows = int(rest.reached(constant).sum())
        if told[at] >= ROWS_EACH and rows >= ROWS_EACH * (spent[place] + 1):
            kept[at] = True
            spent[place] += 1
    return kept


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
    got = iter(
        [priced_run(run, one) for run, one in zip(runs, Runs(tuple(runs)).prices(shifts), strict=True)]
    )
    return [next(got) if answer is None else answer for answer in answers]


@lru_cache(maxsize=1)
def stored(rows: tuple[Row, ...]) -> Fit:
    """Return the constants of ``calibration.toml``, linearised for rows."""
    shifts = stored_shifts()
    runs = priceable(fit_rows(rows))
    here = runs.log_ratio(shifts)
    return around(runs, here, tuple(shifts), shifts)


def leave_one_out(rows: Sequence[Row], families: Iterable[str] | None = None) -> dict[str, list[Priced]]:
    """Return the rows of each family priced with constants fitted to all other families.

    The stored constants are linearised once a process, which takes most of the time; they must be those of a
    fit to these rows (``python -m benchmarks.calibrate --write``).

    Parameters
    ----------
    families
        Which; all of the rows by default.
    """
    return left_out(stored(tuple(rows)), rows, families)


def left_out(fit: Fit, rows: Sequence[Row], families: Iterable[str] | None = None) -> dict[str, list[Priced]]:
    """Return the rows of each family priced with constants fitted to all other runs of a fit."""
    wanted = dict.fromkeys(row.family for row in rows) if families is None else families
    return {name: price_under([r for r in rows if r.family == name], without(fit, name)) for name in wanted}


def entries(fit: Fit) -> tuple[Entry, ...]:
    """Return the constants as they are written down, those of one place together."""
    errors = dict(zip(fit.constants, standard_errors(fit.at), strict=True))
    support = fit.support
    found = [
        Entry(c, value_of(c, fit.shifts), fit.shifts[c], float(errors[c]), support[c]) for c in fit.constants
    ]
    return tuple(found)


def report(fit: Fit) -> str:
    """Return the constants and the errors of each family as text."""
    lines = [f"{'constant':<46} {'value':>10} {'shift':>8} {'+-':>6} {'rows':>5} {'low':>8} {'high':>8}"]
    for e in entries(fit):
        b = e.constant.bounds
        mark = "  on its bound: a mechanism is missing" if e.on_bound else ""
        lines.append(
            f"{e.constant!s:<46} {e.value:>10.4g} {e.shift:>+8.3f} {e.error:>6.3f} {e.rows:>5} "
            f"{b.low:>8.3g} {b.high:>8.3g}{mark}"
        )
    figures = group_figures(fit.at.residual, fit.runs.groups)
    lines += ["", f"{'family and kind':<46} {'rows':>5} {'MAPE %':>8} {'bias %':>8}"]
    lines += [
        f"{name[:46]:<46} {g['rows']:>5} {100 * g['mape']:>8.1f} {100 * g['bias']:>+8.1f}"
        for name, g in figures.items()
    ]
    mean = votes_error(fit.runs, fit.at.residual)
    return "\n".join(
        [*lines, "", f"{len(fit.constants)} constants, {len(fit.runs.runs)} runs, {mean:.2%} in the mean"]
    )


def file_text(fit: Fit) -> str:
    """Return the data file of a fit."""
    head = {
        "date": date.today().isoformat(),
        "rows": len(fit.runs.runs),
        "constants": len(fit.constants),
        "mean_over_families_and_kinds": votes_error(fit.runs, fit.at.residual),
    }
    some = thinned(range(len(fit.runs.runs)), SAMPLE)
    sample = {fit.runs.runs[at].row.id: float(fit.at.residual[at]) for at in some}
    return text_of(entries(fit), head, group_figures(fit.at.residual, fit.runs.groups), sample)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, print, and store if asked to."""
    parser = argparse.ArgumentParser(prog="benchmarks.calibrate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="rows to fit to; the built-in ones by default"
    )
    parser.add_argument("--iterations", type=int, default=ITERATIONS, metavar="N")
    parser.add_argument(
        "--write", nargs="?", type=Path, const=CALIBRATION, metavar="FILE", help="store the constants"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the stored constants")
    parser.add_argument("--leave-one-out", action="store_true", help="then price each family without itself")
    options = parser.parse_args(arguments)
    rows = read_rows(BUILT_IN if options.rows is None else options.rows)
    fit = fitted(
        priceable(fit_rows(rows)), print, options.iterations, stored_shifts() if options.resume else None
    )
    print(report(fit))
    if options.write is not None:
        options.write.write_text(file_text(fit), encoding="utf-8")
    if options.leave_one_out:
        priced = [p for own in left_out(fit, rows, voters(rows)).values() for p in own]
        print(left_out_text(left_out_figures(priced)))


if __name__ == "__main__":
    main()
