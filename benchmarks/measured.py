"""Published training runs priced by the cost models: which can be, how far off they are, and what fits.

``python -m benchmarks.measured [FILE ...]`` reads rows of the schema of ``data/README.md`` (the built-in ones
without a file) and prints for each family the rows, those priced, and the signed errors of the step time;
then why the others are not priced, and the predicted against the printed memory. ``--rows OUT.jsonl`` writes
one line a row with the price, its parts and every assumption. Nothing is fitted to the rows.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy_memory import memory_error
from benchmarks.measured_prices import Priced, price_rows
from benchmarks.row_reading import read_all
from benchmarks.rows import features
from meshwright.cli.errors import reader_may_leave
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.units import bytes_to_gib
from meshwright.planner.calibrate.profile_file import check_place, write_whole

FEATURES = ("dense", "moe", "cp", "fp8", "tuning")


def grouped(priced: Iterable[Priced], key: Callable[[Priced], Iterable[str]]) -> dict[str, list[Priced]]:
    """Return the priced rows by each of their keys, largest group first."""
    groups: dict[str, list[Priced]] = defaultdict(list)
    for one in priced:
        for name in key(one):
            groups[name].append(one)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def reason_class(reason: str) -> str:
    """Return a reason without the numbers that tell rows apart."""
    return " ".join("N" if word.strip(",:;").isdigit() else word for word in reason.split())[:110]


def error_line(name: str, rows: Sequence[Priced]) -> str:
    """Return one line of a group: rows, priced, and median and mean absolute error in percent."""
    errors = np.array([p.error for p in rows if p.error is not None])
    done = sum(p.reason is None for p in rows)
    figures = f"{'':>8} {'':>8}"
    if errors.size:
        figures = f"{100 * np.median(errors):>+8.1f} {100 * np.abs(errors).mean():>8.1f}"
    return f"{name[:44]:<44} {len(rows):>5} {done:>6} {errors.size:>6} {figures}"


HEADER = f"{'':<44} {'rows':>5} {'priced':>6} {'timed':>6} {'median %':>8} {'MAPE %':>8}"


def _memory_lines(priced: Sequence[Priced]) -> list[str]:
    """Return counts of fits against outcomes, and the errors of the printed peaks."""
    seen = Counter((p.row.outcome, bool(p.fits)) for p in priced if p.fits is not None)
    lines = ["outcome   predicted to fit   predicted not to fit"]
    lines += [f"{o:<9} {seen[o, True]:>16} {seen[o, False]:>22}" for o in ("ok", "oom")]
    ratios = [error for p in priced if (error := memory_error(p)) is not None]
    if ratios:
        median, mean = 100 * np.median(ratios), 100 * np.abs(ratios).mean()
        lines.append(f"peak memory of {len(ratios)} runs: median {median:+.1f} %, mean error {mean:.1f} %")
    return lines


def report(priced: Sequence[Priced]) -> str:
    """Return the tables as text."""
    trusted = [p for p in priced if p.row.trusted]
    done = sum(p.reason is None for p in trusted)
    lines = ["by family", HEADER]
    lines += [error_line(name, rows) for name, rows in grouped(priced, lambda p: (p.row.family,)).items()]
    lines += ["", "by feature", HEADER]
    by_feature = grouped(priced, lambda p: features(p.row))
    lines += [error_line(name, by_feature[name]) for name in FEATURES if name in by_feature]
    lines += ["", error_line("all", priced)]
    if trusted:
        lines += [
            error_line("trust A and B", trusted),
            f"{done / len(trusted):.1%} of trust A and B are priced",
        ]
    reasons = Counter(reason_class(p.reason) for p in priced if p.reason is not None)
    lines += ["", "not priced"] + [f"{n:>6} {reason}" for reason, n in reasons.most_common()]
    return "\n".join([*lines, "", *_memory_lines(priced)])


def record(priced: Priced) -> dict[str, Any]:
    """Return a priced row as plain data."""
    run = priced.expressed
    peak, compared = priced.peak_bytes, priced.comparable_bytes
    return {
        "id": priced.row.id,
        "family": priced.row.family,
        "trust": priced.row.trust,
        "features": sorted(features(priced.row)),
        "reason": priced.reason,
        "measured_step_s": priced.row.step_time_s,
        "predicted_step_s": priced.step_time_s,
        "error": priced.error,
        "breakdown_s": priced.breakdown,
        "outcome": priced.row.outcome,
        "fits": priced.fits,
        "peak_gib": None if peak is None else bytes_to_gib(peak),
        "comparable_gib": None if compared is None else bytes_to_gib(compared),
        "measured_gib": priced.row.peak_memory_gib,
        "memory_bytes": priced.memory,
        "plan": None if run is None else _strategy(run.plan.to_dict()),
        "assumptions": [] if run is None else run.assumptions,
        "broken_rules": [] if run is None else run.broken_rules,
    }


def _strategy(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's decisions, the lists of stages and layers left out."""
    return {name: value for name, value in plan.items() if name not in ("chunks", "recompute")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Price rows and print what came out."""
    parser = argparse.ArgumentParser(prog="benchmarks.measured", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=".jsonl or .jsonl.xz")
    parser.add_argument("--only", choices=FEATURES, help="rows with this feature")
    parser.add_argument("--family", help="rows of this family")
    parser.add_argument("--rows", type=Path, metavar="OUT", help="write one JSON line a row")
    parser.add_argument("--detail", action="store_true", help="tell transfers apart from the bubble")
    options = parser.parse_args(arguments)
    try:
        rows = read_all(options.files)
        if options.rows is not None:
            check_place(options.rows)
    except MeshwrightError as error:
        parser.exit(2, f"{error}\n")
    rows = tuple(r for r in rows if options.only is None or options.only in features(r))
    rows = tuple(r for r in rows if options.family is None or options.family == r.family)
    begin = time.perf_counter()
    priced = price_rows(rows, options.detail)
    spent = time.perf_counter() - begin
    print(report(priced))
    print(f"\n{len(rows)} rows in {spent:.1f} s")
    if options.rows is not None:
        lines = (json.dumps(record(p)) for p in priced)
        write_whole({options.rows: "".join(f"{line}\n" for line in lines)})


if __name__ == "__main__":
    with reader_may_leave():
        main()
