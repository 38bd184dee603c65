"""How published runs are grouped when predictions are judged: kinds of training, sweeps, memory counters."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from benchmarks.accuracy_stats import kendall_tau, mean, regret
from benchmarks.measured_prices import Priced
from benchmarks.rows import Row, features

KINDS: Final = ("dense", "moe", "tuned")
"""Full training of dense models, of mixtures of experts, and fine-tuning of adapters."""
VOTING_ROWS: Final = 5
"""Timed rows from which a family has a vote in a mean over families."""
SWEEP_LAYOUTS: Final = 5
"""Different layouts that make a sweep."""


def kind_of(row: Row) -> str:
    """Return which of :data:`KINDS` a run is."""
    if row.tuning not in (None, "full") or "lora" in row.model_name.lower():
        return "tuned"
    return "dense" if row.moe is None else "moe"


def packed(row: Row) -> bool:
    """Return whether a run's sequences are full, as far as its source says (samples differ in length)."""
    return not re.search(r"variable length|longest (training )?sample", row.notes)


def profile_of(priced: Priced) -> str | None:
    """Return the software profile that a run was priced with; None if it was not."""
    return None if priced.expressed is None else priced.expressed.problem.profile.name


_FIELDS: Final = (
    "family",
    "source",
    "accelerator",
    "framework",
    "precision",
    "model_name",
    "num_gpus",
    "year",
    "seq_len",
    "recompute",
    "sharding",
    "trust",
)


def _text(field: str) -> Callable[[Priced], Iterable[str]]:
    def said(priced: Priced) -> Iterable[str]:
        """Return what a row says in the field."""
        value = getattr(priced.row, field)
        return ("not stated" if value is None else str(value),)

    return said


KEYS: Final[Mapping[str, Callable[[Priced], Iterable[str]]]] = {
    **{field: _text(field) for field in _FIELDS},
    "kind": lambda priced: (kind_of(priced.row),),
    "feature": lambda priced: features(priced.row),
    "profile": lambda priced: (str(profile_of(priced)),),
}
"""What ``--by`` groups by."""


def grouped(priced: Iterable[Priced], by: str) -> dict[str, list[Priced]]:
    """Return the runs by each of their keys, largest group first."""
    groups: dict[str, list[Priced]] = defaultdict(list)
    for one in priced:
        for name in KEYS[by](one):
            groups[name].append(one)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def timed(priced: Iterable[Priced]) -> list[Priced]:
    """Return the runs whose step times count: priced, measured, of trust A or B."""
    return [p for p in priced if p.row.trusted and p.error is not None]


def errors_of(priced: Iterable[Priced]) -> list[float]:
    """Return the signed errors of the step times that count."""
    return [p.error for p in timed(priced) if p.error is not None]


def mean_over_families(priced: Iterable[Priced]) -> tuple[float | None, int]:
    """Return the mean over families of the family's mean error size, one vote each, and the votes.

    Families with fewer than :data:`VOTING_ROWS` timed rows have none.
    """
    groups = grouped(timed(priced), "family").values()
    votes = [mean(map(abs, errors_of(rows))) for rows in groups if len(rows) >= VOTING_ROWS]
    return mean(v for v in votes if v is not None), len(votes)


def _sweep_key(row: Row) -> Hashable:
    return (
        row.family,
        row.model_name,
        row.seq_len,
        row.precision,
        row.accelerator,
        row.num_gpus,
        row.global_batch,
    )


@dataclass(frozen=True)
class Layout:
    """One way of running a job, timed once or several times.

    Attributes
    ----------
    runs
        Those that state the same job, stack and plan: releases that print a table again, jobs run twice.
        Nothing that a planner is told sets their order.
    """

    runs: tuple[Priced, ...]

    @property
    def family(self) -> str:
        """Who published it."""
        return self.runs[0].row.family

    @property
    def measured_s(self) -> float:
        """Mean of the measured step times."""
        return fmean(p.row.step_time_s for p in self.runs if p.row.step_time_s is not None)

    @property
    def predicted_s(self) -> float:
        """Mean of the predicted step times: equal but for rounding."""
        return fmean(p.step_time_s for p in self.runs if p.step_time_s is not None)


Sweep = Sequence[Layout]


def _layouts(runs: Iterable[Priced]) -> list[Layout]:
    """Return runs by what they state, in the order of their first."""
    groups: dict[Hashable, list[Priced]] = defaultdict(list)
    for one in runs:
        groups[one.row.id if one.expressed is None else one.expressed.plan].append(one)
    return [Layout(tuple(own)) for own in groups.values()]


def sweeps(priced: Iterable[Priced], apart: bool = False) -> list[Sweep]:
    """Return the groups of runs that differ in their layout alone, at least :data:`SWEEP_LAYOUTS` each.

    Parameters
    ----------
    priced
        Runs, of which the timed ones of trust A or B count.
    apart
        Whether runs of one layout count as layouts of their own, in the order of chance: no prediction then
        agrees with all (:func:`best_tau`).
    """
    groups: dict[Hashable, list[Priced]] = defaultdict(list)
    for one in timed(priced):
        groups[_sweep_key(one.row)].append(one)
    found = ([Layout((p,)) for p in runs] if apart else _layouts(runs) for runs in groups.values())
    return [sweep for sweep in found if len(sweep) >= SWEEP_LAYOUTS]


def ranking(sweep: Sweep) -> tuple[float | None, float]:
    """Return Kendall's tau and the regret inside a sweep."""
    measured, predicted = [each.measured_s for each in sweep], [each.predicted_s for each in sweep]
    return kendall_tau(measured, predicted), regret(measured, predicted)


def best_tau(sweep: Sweep) -> float | None:
    """Return the tau of predictions that are right: each run takes the mean time of its layout.

    Below 1 where runs of one layout count one by one: they state the same, so that one time is predicted.
    """
    right = {
        p.row.id: own.measured_s for own in _layouts(p for each in sweep for p in each.runs) for p in own.runs
    }
    return kendall_tau([each.measured_s for each in sweep], [right[each.runs[0].row.id] for each in sweep])
