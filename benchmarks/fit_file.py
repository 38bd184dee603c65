"""``costmodels/data/calibration.toml``: how a fit is written down and read again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.fit_constants import PLACES, Constant
from meshwright.costmodels.arrays import FloatArray
from meshwright.costmodels.calibration import calibration

CALIBRATION: Final = Path(__file__).parent.parent / "costmodels" / "data" / "calibration.toml"


@dataclass(frozen=True, slots=True)
class Entry:
    """A fitted constant as it is written down.

    Attributes
    ----------
    value
        Of a profile's field; of an accelerator's rate a factor.
    shift
        From what it inherits, in the prior's scale (a logarithm, or a difference of shares).
    error
        Standard error of the shift.
    rows
        Runs that tell about it.
    """

    constant: Constant
    value: float
    shift: float
    error: float
    rows: int

    @property
    def on_bound(self) -> bool:
        """Whether it sits on a bound: what it stands for is then a mechanism that is missing."""
        return self.constant.bounds.near(self.value)


def text_of(
    entries: Iterable[Entry], head: Mapping[str, Any], groups: Mapping[str, Any], sample: Mapping[str, float]
) -> str:
    """Return the file's text.

    Parameters
    ----------
    head
        Of the fit as a whole.
    groups
        Figures of each family and kind: ``rows``, ``mape``, ``bias``.
    sample
        Logarithms of predicted over measured step time of some rows by their id.
    """
    lines = [
        "# Constants fitted to published runs; written by python -m benchmarks.calibrate --write.",
        "",
        "[fit]",
    ]
    lines += [f"{name} = {_toml(value)}" for name, value in head.items()]
    for entry in entries:
        c, b = entry.constant, entry.constant.bounds
        lines += ["", f"[{c.kind}.{_key(c.place)}.{c.field}]", f"value = {_toml(entry.value)}"]
        lines += [f"shift = {_toml(entry.shift)}", f"standard_error = {_toml(entry.error)}"]
        lines += [f"rows = {entry.rows}", f"low = {b.low!r}", f"high = {b.high!r}"]
    lines += [
        "",
        "[residuals]",
        "# mean size and mean of the signed errors of the step time, by family and kind",
    ]
    lines += [f"{_key(name)} = {_table(figures)}" for name, figures in groups.items()]
    lines += ["", "[sample]", "# logarithms of predicted over measured step time"]
    lines += [f"{_key(name)} = {value:.6f}" for name, value in sample.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else quoted(name)


def quoted(value: str) -> str:
    """Return a name as TOML's text."""
    return f'"{value}"'


def number(value: float) -> str:
    """Return a number as TOML's, to six digits."""
    return f"{value:.6g}"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    return number(value) if isinstance(value, float) else str(value)


def _table(figures: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in figures.items()) + " }"


def stored() -> tuple[Entry, ...]:
    """Return the constants of the file, in its order."""
    found = calibration()
    return tuple(
        Entry(Constant(kind, place, field), e["value"], e["shift"], e["standard_error"], e["rows"])
        for kind in PLACES
        for place, fields in found.get(kind, {}).items()
        for field, e in fields.items()
    )


def stored_shifts() -> dict[Constant, float]:
    """Return how far the file's constants are from what they inherit."""
    return {entry.constant: entry.shift for entry in stored()}


def group_figures(log_ratio: FloatArray, groups: Sequence[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """Return rows, mean size and mean of the errors of each family and kind, largest group first."""
    own: dict[str, list[float]] = defaultdict(list)
    for value, group in zip(np.expm1(log_ratio), groups, strict=True):
        own[" ".join(group)].append(float(value))
    order = sorted(own, key=lambda name: -len(own[name]))
    return {
        name: {
            "rows": len(own[name]),
            "mape": float(np.mean(np.abs(own[name]))),
            "bias": float(np.mean(own[name])),
        }
        for name in order
    }
