"""How well the cost models predict published runs.

``python -m benchmarks.accuracy [FILE ...]`` reads rows of the schema of ``data/README.md`` (the built-in
ones without a file), prices each with the functions that ``solve`` uses, and prints per group and overall
the errors of the step time, the agreement of ranks inside sweeps, the errors of the peak memory, who is
called out of memory, every row that has no price with its reason, and for the built-in rows what their
targets ask for (``--targets`` for other files too). ``--leave-one-out family`` prices each family with
constants fitted without it; ``--cache`` keeps what is done, so that a run resumes. ``--without-fit`` prices
with the sourced constants alone. ``--validated`` prices nothing: it tells for which accelerators, stacks and
kinds of training the predictions were checked, by how many runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from benchmarks.accuracy_groups import KEYS, KINDS, kind_of
from benchmarks.accuracy_left_out import left_out_figures, left_out_text, price_left_out
from benchmarks.accuracy_report import figures, row_record, text
from benchmarks.accuracy_targets import TARGETS
from benchmarks.accuracy_validated import validated_figures, validated_text
from benchmarks.measured_prices import price_rows
from benchmarks.row_mixture import with_experts
from benchmarks.row_reading import read_all
from benchmarks.rows import Row
from meshwright.cli.errors import reader_may_leave
from meshwright.hardware.errors import MeshwrightError, UnknownNameError
from meshwright.planner.calibrate.profile_file import check_place, write_whole


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=".jsonl or .jsonl.xz")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures")
    parser.add_argument("--rows", type=Path, metavar="OUT", help="write one JSON line a row")
    parser.add_argument("--by", action="append", choices=tuple(KEYS), help="groups; may be repeated")
    parser.add_argument("--worst", type=_count, default=0, metavar="N", help="list the N rows furthest off")
    parser.add_argument("--kind", choices=KINDS, help="only rows of this kind")
    parser.add_argument("--family", action="append", help="only rows of this family; may be repeated")
    parser.add_argument("--leave-one-out", choices=("family",), help="fit without each group in turn")
    parser.add_argument("--without-fit", action="store_true", help="price with sourced constants alone")
    parser.add_argument(
        "--targets", action="store_true", help="what built-in rows should reach, with FILE too"
    )
    parser.add_argument("--validated", action="store_true", help="tell what was checked, and stop")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="of leave-one-out results, to resume")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    """Return a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def chosen(options: argparse.Namespace) -> tuple[Row, ...]:
    """Return the rows that the options ask for; raises RowError."""
    rows = read_all(options.files)
    known = {row.family: None for row in rows}
    for family in options.family or ():
        if family not in known:
            raise UnknownNameError("family", family, list(known))
    rows = tuple(r for r in rows if options.kind in (None, kind_of(with_experts(r)[0])))
    return tuple(r for r in rows if not options.family or r.family in options.family)


def constants(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return the context in which rows are priced: with the fitted constants, or as if nothing were fitted.

    Profiles and rates are read once a process, hence before anything else is priced.
    """
    nothing = patch("meshwright.costmodels.calibration.calibration", return_value={})
    return nothing if options.without_fit else nullcontext()


def _run(options: argparse.Namespace) -> dict[str, Any]:
    """Price the rows, print the tables, write the rows; returns the figures."""
    if options.validated:
        known = validated_figures()
        print(validated_text(known))
        return known
    rows, begin = chosen(options), time.perf_counter()
    _check_places(options)
    if options.leave_one_out:
        priced = price_left_out(rows, options.cache)
        found = left_out_figures(priced)
        print(left_out_text(found))
    else:
        with constants(options):
            priced = price_rows(rows)
        targets = TARGETS if options.targets or not options.files else ()
        found = figures(priced, options.by or ("family",), options.worst, targets)
        print(text(found))
    found["seconds"] = time.perf_counter() - begin
    print(f"\n{len(rows)} rows in {found['seconds']:.1f} s")
    if options.rows is not None:
        _write(options.rows, [row_record(p) for p in priced])
    return found


DEVICES: Final = Path("/dev")
"""Where streams are, which take what several write."""


def _check_places(options: argparse.Namespace) -> None:
    """Refuse before the work a place that cannot be written, is read as well or is named twice."""
    taken = {file.resolve(): "one of the files that are read" for file in options.files}
    for name in ("json", "rows", "cache"):
        place: Path | None = getattr(options, name)
        if place is None:
            continue
        check_place(place)
        at = place.resolve()
        if at in taken and DEVICES not in place.parents:
            raise MeshwrightError(f"--{name}: {str(place)!r} is {taken[at]}; name another place")
        taken[at] = f"what --{name} names"


def _write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    write_whole({path: "".join(f"{json.dumps(r, allow_nan=False)}\n" for r in records)})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; ends with status 2 and a message if a file or an option cannot be used."""
    options = options_of(arguments)
    try:
        found = _run(options)
        if options.json is not None:
            write_whole({options.json: json.dumps(found, indent=1, allow_nan=False) + "\n"})
    except MeshwrightError as error:
        print(f"benchmarks.accuracy: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    with reader_may_leave():
        main()
