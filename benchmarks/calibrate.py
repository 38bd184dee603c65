"""Constants of profiles and accelerators fitted to published runs.

``python -m benchmarks.calibrate`` fits the constants of :mod:`benchmarks.fit_constants` to the runs of trust
A and B, those of time to step times and those of memory to peaks, and prints them with their bounds, their
standard errors and the runs behind each. ``--write`` stores them in ``costmodels/data/calibration.toml``,
which profiles and accelerators are read with; then it prices each family with constants fitted without it
and stores the errors in ``costmodels/data/residuals.toml``, from which come the uncertainty beside a step
time and the headroom. A constant is free if enough runs are priced with it and if it makes a difference to
enough of them (:mod:`benchmarks.fit_choice`); all others keep what they inherit.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

from benchmarks.accuracy_left_out import left_out_figures, left_out_text, measured_families, voters
from benchmarks.fit import standard_errors
from benchmarks.fit_constants import tree
from benchmarks.fit_file import CALIBRATION, Entry, group_figures, stored_shifts, text_of
from benchmarks.fit_left_out import left_out, price_under
from benchmarks.fit_observable import PEAK, STEP_TIME, Observable
from benchmarks.fit_residuals import RESIDUALS, residual_text
from benchmarks.fit_rows import fit_rows, priceable, thinned
from benchmarks.fit_runs import value_of
from benchmarks.fit_solve import ITERATIONS, Fit, fitted, votes_error
from benchmarks.measured_prices import Priced
from benchmarks.rows import BUILT_IN, Row, read_rows
from meshwright.cli.errors import reader_may_leave
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.profile_file import write_whole

SAMPLE: Final = 120
"""Runs whose residuals are written down one by one."""


def entries(fit: Fit) -> tuple[Entry, ...]:
    """Return the constants as they are written down, those of one place together."""
    errors, support = standard_errors(fit.at), fit.support
    return tuple(
        Entry(c, value_of(c, fit.shifts), fit.shifts[c], float(error), support[c])
        for c, error in zip(fit.constants, errors, strict=True)
    )


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
    figures = group_figures(fit.residual, fit.runs.groups)
    lines += ["", f"{'family and kind':<46} {'rows':>5} {'MAPE %':>8} {'bias %':>8}"]
    lines += [
        f"{name[:46]:<46} {g['rows']:>5} {100 * g['mape']:>8.1f} {100 * g['bias']:>+8.1f}"
        for name, g in figures.items()
    ]
    told = f"{len(fit.constants)} constants, {len(fit.runs.runs)} runs"
    return "\n".join([*lines, "", f"{told}, {votes_error(fit.runs, fit.residual):.2%} in the mean"])


def file_text(time: Fit, memory: Fit) -> str:
    """Return the data file of the constants that step times and peaks of memory tell."""
    head = {
        "date": date.today().isoformat(),
        "rows": len(time.runs.runs),
        "memory_rows": len(memory.runs.runs),
        "constants": len(time.constants) + len(memory.constants),
        "mean_over_families_and_kinds": votes_error(time.runs, time.residual),
        "memory_mean_over_families_and_kinds": votes_error(memory.runs, memory.residual),
    }
    some = thinned(range(len(time.runs.runs)), SAMPLE)
    sample = {time.runs.runs[at].row.id: float(time.residual[at]) for at in some}
    found = sorted((*entries(time), *entries(memory)), key=lambda e: (e.constant.kind, e.constant.place))
    return text_of(found, head, group_figures(time.residual, time.runs.groups), sample)


def left_out_of(fit: Fit, rows: Sequence[Row]) -> list[Priced]:
    """Return the measured rows of every family, priced without it; those too small to vote leave together."""
    large = voters(rows)
    small = set(measured_families(rows)) - set(large)
    folds = [*((family,) for family in large), tuple(sorted(small))]
    return [priced for own in left_out(fit, rows, folds) for priced in own]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.calibrate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows",
        type=Path,
        default=BUILT_IN,
        metavar="FILE",
        help="to fit to; the built-in ones by default",
    )
    parser.add_argument("--iterations", type=int, default=ITERATIONS, metavar="N")
    parser.add_argument("--resume", action="store_true", help="begin at the stored constants")
    parser.add_argument("--write", action="store_true", help="store constants and residuals")
    parser.add_argument(
        "--leave-one-out",
        action="store_true",
        help="price each family without itself too",
    )
    return parser.parse_args(arguments)


def _fitted(rows: Sequence[Row], what: Observable, options: argparse.Namespace) -> Fit:
    """Return the constants that one observable tells."""
    stored = stored_shifts() if options.resume else {}
    own = {c: shift for c, shift in stored.items() if c.field in what.fields.get(tree(c.kind), {})}
    return fitted(priceable(fit_rows(rows, what), what), _say, options.iterations, own)


def _say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, print, and store if asked to."""
    options = _options(arguments)
    try:
        rows = read_rows(options.rows)
    except MeshwrightError as error:
        print(f"benchmarks.calibrate: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    time, memory = (_fitted(rows, what, options) for what in (STEP_TIME, PEAK))
    print(report(time), report(memory), sep="\n\n")
    if options.write:
        write_whole({CALIBRATION: file_text(time, memory)})
    if options.write or options.leave_one_out:
        priced = left_out_of(time, rows)
        print(left_out_text(left_out_figures(priced)))
    if options.write:
        as_they_are = price_under(rows, {**time.shifts, **memory.shifts})
        write_whole({RESIDUALS: residual_text(priced, as_they_are)})


if __name__ == "__main__":
    with reader_may_leave():
        main()
