"""Each family of sources priced with constants fitted without it: the error to believe on unseen runs.

A row on an accelerator that no other family has measured is an extrapolation: nothing could be fitted to that
accelerator without the family, so such rows stand beside the mean, not in it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy_groups import VOTING_ROWS, errors_of, kind_of, mean_over_families
from benchmarks.accuracy_report import (
    HEADER,
    group_figures,
    group_line,
    percent,
    table,
    target_figures,
    targets_text,
)
from benchmarks.accuracy_targets import LEFT_OUT
from benchmarks.fit_left_out import leave_one_out
from benchmarks.fit_workers import WORKERS
from benchmarks.measured_prices import Priced
from benchmarks.rows import Row
from meshwright.hardware.errors import MeshwrightError

ROOT: Final = Path(__file__).parent.parent
_FITTED: Final = ("benchmarks", "costmodels", "hardware", "planner")
"""Folders whose files decide what a fit gives."""


def measured_families(rows: Iterable[Row], least: int = 1) -> tuple[str, ...]:
    """Return the families with at least so many measured step times of trust A or B."""
    counts = Counter(row.family for row in rows if row.trusted and row.step_time_s is not None)
    return tuple(family for family, count in counts.items() if count >= least)


def voters(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the families with a vote in a mean over families."""
    return measured_families(rows, VOTING_ROWS)


def alone(rows: Iterable[Row]) -> dict[str, str]:
    """Return the accelerators that a single family has measured, with that family."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        if row.trusted and row.step_time_s is not None:
            seen.setdefault(str(row.accelerator), set()).add(row.family)
    return {name: next(iter(families)) for name, families in seen.items() if len(families) == 1}


def _state(rows: Sequence[Row]) -> str:
    """Return a digest of the rows and of every file that a fit depends on."""
    digest = hashlib.sha256(repr(rows).encode())
    for folder in _FITTED:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".toml", ".yaml", ".json"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


_BEGINS: Final = '{"state": '
"""How a line of the cache begins, one that was cut short too."""


def _line(state: str, family: str, priced: Sequence[Priced]) -> str:
    rows = [
        {
            "id": p.row.id,
            "reason": p.reason,
            "step_time_s": p.step_time_s,
            "breakdown": None if p.breakdown is None else dict(p.breakdown),
            "memory": None if p.memory is None else dict(p.memory),
            "counted": None if p.counted is None else dict(p.counted),
        }
        for p in priced
    ]
    return json.dumps({"state": state, "family": family, "rows": rows}) + "\n"


def read_cache(path: Path, state: str, rows: Iterable[Row]) -> dict[str, list[Priced]]:
    """Return the families that are done in this state; a line that was cut short counts as missing.

    Raises
    ------
    MeshwrightError
        If the file holds something else, to which no results are to be added.
    """
    if not path.exists():
        return {}
    by_id, done = {row.id: row for row in rows}, {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            kept = json.loads(line)
        except (ValueError, RecursionError):
            if line and not line.startswith(_BEGINS[: len(line)]):
                raise _no_cache(path) from None
            continue
        if not isinstance(kept, dict) or not {"state", "family", "rows"} <= set(kept):
            raise _no_cache(path)
        if kept["state"] == state:
            done[kept["family"]] = [Priced(by_id[p.pop("id")], **p) for p in kept["rows"]]
    return done


def _add(cache: Path, lines: str) -> None:
    """Write lines behind what a cache holds, on lines of their own where the last one was cut short."""
    before = cache.read_bytes() if cache.exists() else b""
    cut = len(before) > 0 and not before.endswith(b"\n")
    with cache.open("a", encoding="utf-8") as file:
        file.write("\n" * cut + lines)


def _no_cache(path: Path) -> MeshwrightError:
    return MeshwrightError(f"cache: {str(path)!r} holds other lines than results of this; name a new file")


def price_left_out(rows: Sequence[Row], cache: Path | None = None) -> list[Priced]:
    """Return the rows of every voting family, each priced without its own family; others have no price here.

    Parameters
    ----------
    cache
        Where each finished family is kept; results of other rows, code or data in it are left unused.

    """
    state, families = _state(rows), voters(rows)
    done = {} if cache is None else read_cache(cache, state, rows)
    todo = [family for family in families if family not in done]
    for start in range(0, len(todo), WORKERS):
        found = leave_one_out(rows, todo[start : start + WORKERS])
        done |= found
        if cache is not None:
            _add(cache, "".join(_line(state, family, own) for family, own in found.items()))
    return [priced for family in families for priced in done[family]]


def left_out_figures(priced: Sequence[Priced]) -> dict[str, Any]:
    """Return the errors on left-out families by kind and family, extrapolations apart."""
    lonely = alone(p.row for p in priced)
    known = [p for p in priced if str(p.row.accelerator) not in lonely]
    found: dict[str, Any] = {"kinds": {}, "extrapolated": {}, "alone": lonely}
    for kind in dict.fromkeys(kind_of(p.row) for p in priced):
        own = [p for p in known if kind_of(p.row) == kind]
        headline, votes = mean_over_families(own)
        found["kinds"][kind] = {
            "mean_over_families": headline,
            "votes": votes,
            "families": {f: group_figures(rows) for f, rows in _families(own).items()},
        }
        beyond = [p for p in priced if str(p.row.accelerator) in lonely and kind_of(p.row) == kind]
        found["extrapolated"][kind] = {f: group_figures(rows) for f, rows in _families(beyond).items()}
    found["targets"] = target_figures(known, (LEFT_OUT,))
    return found


def _families(priced: Iterable[Priced]) -> dict[str, list[Priced]]:
    groups: dict[str, list[Priced]] = {}
    for one in priced:
        groups.setdefault(one.row.family, []).append(one)
    return {family: rows for family, rows in groups.items() if errors_of(rows)}


def left_out_text(found: Mapping[str, Any]) -> str:
    """Return the tables of :func:`left_out_figures` as text."""
    lines = []
    for kind, own in found["kinds"].items():
        headline = f"{percent(own['mean_over_families'])} %, the mean of {own['votes']} families"
        each = [group_line(*item) for item in own["families"].items()]
        lines += table(f"left out in turn, {kind}: {headline}", HEADER, each)
        beyond = [group_line(*item) for item in found["extrapolated"][kind].items()]
        title = f"{kind} on accelerators that the family alone has measured: extrapolation, not in the mean"
        lines += table(title, HEADER, beyond)
    return "\n".join([*lines, *targets_text(found["targets"])]).lstrip("\n")
