"""For which accelerators, stacks and kinds of training predictions were checked, and where they extrapolate.

Read from ``costmodels/data/residuals.toml``: what ``solve`` and ``estimate`` print beside a step time stands
here for every group at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.accuracy_report import percent, table
from meshwright.costmodels.residuals import LEAST, UNSEEN, Spread, measured_accelerators, residuals, spreads
from meshwright.hardware.catalogue import accelerator_names
from meshwright.planner.uncertainty import KIND_WORDS, TYPICAL, WIDE

HEADER = ("", "runs", "families", "2 of 3 within %", "9 of 10", "")


def validated_figures() -> dict[str, Any]:
    """Return the groups by accelerator and kind, by stack and kind, and the accelerators without a run."""
    groups = residuals()["step_time"]["groups"]
    families = {frozenset(g["of"].items()): g["families"] for g in groups}
    found = [_figures(s, families[frozenset(s.group.items())]) for s in spreads("step_time")]
    return {
        "accelerators": [f for f in found if set(f["of"]) == {"accelerator", "kind"}],
        "stacks": [f for f in found if set(f["of"]) == {"profile", "kind"}],
        "unmeasured": sorted(set(accelerator_names()) - measured_accelerators()),
    }


def _figures(spread: Spread, families: int) -> dict[str, Any]:
    return {
        "of": dict(spread.group),
        "runs": spread.runs,
        "families": families,
        "typical": spread.quantile(TYPICAL),
        "wide": spread.quantile(WIDE),
    }


def validated_text(found: Mapping[str, Any]) -> str:
    """Return the tables of :func:`validated_figures` as text."""
    known = [f for f in found["accelerators"] if f["of"]["accelerator"] != UNSEEN]
    unseen = [f for f in found["accelerators"] if f["of"]["accelerator"] == UNSEEN]
    lines = [
        "Runs of trust A and B, each family of sources priced with constants fitted without it: how far",
        "measured step times lie from the predicted ones.",
    ]
    lines += table("accelerators", HEADER, _lines(known, "accelerator"))
    lines += table("stacks (software profiles)", HEADER, _lines(found["stacks"], "profile"))
    lines += table(
        "accelerators that no other family has measured: extrapolation", HEADER, _lines(unseen, "kind")
    )
    return "\n".join([*lines, "", f"no measured run: {', '.join(found['unmeasured'])}"])


def _lines(found: Iterable[Mapping[str, Any]], field: str) -> list[Sequence[str]]:
    order = sorted(found, key=lambda f: (tuple(KIND_WORDS).index(f["of"]["kind"]), -f["runs"]))
    return [_line(f, field) for f in order]


def _line(found: Mapping[str, Any], field: str) -> Sequence[str]:
    kind, name = KIND_WORDS[found["of"]["kind"]], found["of"][field]
    alone = "one family alone: extrapolated" if field == "accelerator" and found["families"] == 1 else ""
    few = "few" if found["runs"] < LEAST else ""
    told = f"{kind}, {name}" if field != "kind" else kind
    errors = percent(found["typical"]), percent(found["wide"])
    return (told, str(found["runs"]), str(found["families"]), *errors, few or alone)
