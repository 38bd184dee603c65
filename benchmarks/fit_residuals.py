"""``costmodels/data/residuals.toml``: what the fitted cost models leave unexplained, by groups of runs.

Step times come from pricing each family without itself, so that the spread is that of unseen runs; peaks of
memory from the constants as they are. In a group of several families each has one vote, those with fewer
than five runs less.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.accuracy_groups import VOTING_ROWS, timed
from benchmarks.accuracy_memory import memory_error
from benchmarks.fit_file import CALIBRATION, number, quoted
from benchmarks.measured_prices import Priced
from benchmarks.rows import COUNTERS, counter_of
from meshwright.costmodels.arrays import FloatArray
from meshwright.costmodels.profiles import profile_parts
from meshwright.costmodels.residuals import UNSEEN
from meshwright.planner.uncertainty import TYPICAL, WIDE, kind_of

RESIDUALS: Final = CALIBRATION.with_name("residuals.toml")
TIME_SHARES: Final = (0.5, TYPICAL, WIDE)
MEMORY_SHARES: Final = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 1.0)

Of = tuple[tuple[str, str], ...]
"""What the runs of a group have in common: fields and values."""


@dataclass(frozen=True)
class Residual:
    """One run's error: measured over predicted, minus one, and the fields by which it is grouped."""

    error: float
    family: str
    fields: Mapping[str, str]

    def of(self, *names: str) -> Of:
        """Return the group of some of the fields."""
        return tuple((name, self.fields[name]) for name in names)


@dataclass(frozen=True)
class Group:
    """The errors of the runs that have something in common."""

    of: Of
    families: int
    errors: FloatArray
    weights: FloatArray

    @property
    def runs(self) -> int:
        """How many they are."""
        return len(self.errors)

    @property
    def bias(self) -> float:
        """Mean of the errors."""
        return float(self.errors.mean())


def grouped(residuals: Iterable[Residual], groups_of: Mapping[str, tuple[str, ...]]) -> list[Group]:
    """Return all groups by some combinations of fields, largest first."""
    found: dict[Of, list[Residual]] = defaultdict(list)
    for one in residuals:
        for names in groups_of.values():
            found[one.of(*names)].append(one)
    return sorted((_group(of, own) for of, own in found.items()), key=lambda g: (len(g.of), -g.runs, g.of))


def _group(of: Of, own: list[Residual]) -> Group:
    size = Counter(one.family for one in own)
    weights = np.array([1 / max(size[one.family], VOTING_ROWS) for one in own])
    return Group(of, len(size), np.array([one.error for one in own]), weights)


def quantiles(values: FloatArray, weights: FloatArray, shares: Iterable[float]) -> list[float]:
    """Return weighted quantiles: each value stands in the middle of its weight, linear between them."""
    order = np.argsort(values, kind="stable")
    middle = np.cumsum(weights[order]) - weights[order] / 2
    return [float(v) for v in np.interp(tuple(shares), middle / weights.sum(), values[order])]


TIME_GROUPS: Final = {
    "stack on an accelerator": ("profile", "accelerator", "kind"),
    "stack": ("profile", "kind"),
    "accelerator": ("accelerator", "kind"),
    "architecture": ("architecture", "kind"),
    "kind": ("kind",),
    "all": (),
}
UNSEEN_GROUPS: Final = {"kind": ("accelerator", "kind"), "all": ("accelerator",)}
MEMORY_GROUPS: Final = {"stack": ("profile", "counter"), "counter": ("counter",), "all": ()}


def time_residuals(priced: Iterable[Priced]) -> list[Residual]:
    """Return the errors of the step times that count."""
    return [
        Residual(1 / (1 + p.error) - 1, p.row.family, _fields(p))
        for p in timed(priced)
        if p.error is not None
    ]


def _fields(priced: Priced) -> dict[str, str]:
    if priced.expressed is None:
        raise ValueError(f"{priced.row.id}: a price without its problem tells no group")
    problem = priced.expressed.problem
    accelerator = problem.cluster.accelerator
    return {
        "profile": profile_parts(problem.profile.name)[0],
        "accelerator": accelerator.name,
        "architecture": accelerator.architecture,
        "kind": kind_of(problem),
        "counter": counter_of(priced.row),
    }


def unseen(residuals: Iterable[Residual]) -> list[Residual]:
    """Return the runs on accelerators that their family alone has measured: nothing was fitted to those."""
    every = list(residuals)
    families = defaultdict(set)
    for one in every:
        families[one.fields["accelerator"]].add(one.family)
    return [
        Residual(one.error, one.family, {**one.fields, "accelerator": UNSEEN})
        for one in every
        if len(families[one.fields["accelerator"]]) == 1
    ]


def memory_residuals(priced: Iterable[Priced]) -> list[Residual]:
    """Return the errors of the peaks by stated counters, trust A and B."""
    known = [(p, memory_error(p)) for p in priced if p.row.trusted and counter_of(p.row) in COUNTERS]
    return [Residual(1 / (1 + e) - 1, p.row.family, _fields(p)) for p, e in known if e is not None]


def residual_text(left_out: Iterable[Priced], as_they_are: Iterable[Priced]) -> str:
    """Return the file's text.

    Parameters
    ----------
    left_out
        Rows priced without their families, for the step times.
    as_they_are
        Rows priced with the constants fitted to all, for the peaks of memory.
    """
    times, peaks = time_residuals(left_out), memory_residuals(as_they_are)
    groups = [*grouped(times, TIME_GROUPS), *grouped(unseen(times), UNSEEN_GROUPS)]
    lines = [
        "# Errors on published runs; written by python -m benchmarks.calibrate --write.",
        "",
        "[step_time]",
        "# sizes of measured over predicted minus one, each family of sources priced with constants fitted",
        "# without it; quantiles at these shares of the runs",
        f"shares = [{', '.join(map(number, TIME_SHARES))}]",
        *_lines("step_time", groups, lambda g: quantiles(np.abs(g.errors), g.weights, TIME_SHARES)),
        "",
        "[memory]",
        "# measured over predicted peak minus one, less its mean (bias); quantiles at these shares",
        f"shares = [{', '.join(map(number, MEMORY_SHARES))}]",
        *_lines("memory", grouped(peaks, MEMORY_GROUPS), _peaks, bias=True),
    ]
    return "\n".join(lines) + "\n"


def _peaks(group: Group) -> list[float]:
    even = np.ones(group.runs)
    return quantiles(group.errors - group.bias, even, MEMORY_SHARES)


def _lines(
    what: str, groups: Iterable[Group], errors: Callable[[Group], list[float]], *, bias: bool = False
) -> list[str]:
    lines = []
    for group in groups:
        of = ", ".join(f"{name} = {quoted(value)}" for name, value in group.of)
        lines += ["", f"[[{what}.groups]]", f"of = {{{f' {of} ' if of else ''}}}"]
        lines += [f"runs = {group.runs}", f"families = {group.families}"]
        lines += [f"bias = {number(group.bias)}"] if bias else []
        lines += [f"errors = [{', '.join(map(number, errors(group)))}]"]
    return lines
