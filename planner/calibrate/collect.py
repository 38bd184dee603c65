"""Measuring within a budget: every case once, then all of them again until the time is up.

Rounds interleave the cases, so that a disturbance of a second spoils one timing of several cases rather than
all of one; the median of a case's timings counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from meshwright.planner.calibrate.cases import Case, Sample

ROUNDS: Final = 9
"""Timings of a case at most: a median of more moves little."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a measurement is."""

    case: Case
    round: int
    spent_s: float


@dataclass(frozen=True, slots=True)
class Collected:
    """Samples, and the cases that the budget left out."""

    samples: tuple[Sample, ...]
    left_out: tuple[Case, ...]


def collect(
    cases: Sequence[Case],
    measure: Callable[[Case], float | None],
    budget_s: float,
    clock: Callable[[], float],
    progress: Callable[[Progress], None] = lambda _: None,
) -> Collected:
    """Return the median seconds of each case.

    Parameters
    ----------
    measure
        Returns the seconds of one timing, or None where the machine cannot run the case.
    clock
        Seconds; on several ranks the same on all of them, so that they stop together.
    """
    times: dict[Case, list[float]] = {}
    impossible: set[Case] = set()
    start = clock()
    for turn in range(ROUNDS):
        for case in cases:
            if (spent := clock() - start) > budget_s:
                return _collected(cases, times, impossible)
            if case in impossible:
                continue
            progress(Progress(case, turn, spent))
            seconds = measure(case)
            if seconds is None:
                impossible.add(case)
            else:
                times.setdefault(case, []).append(seconds)
    return _collected(cases, times, impossible)


def _collected(cases: Sequence[Case], times: dict[Case, list[float]], impossible: set[Case]) -> Collected:
    samples = tuple(Sample(case, median(own)) for case, own in times.items())
    return Collected(samples, tuple(c for c in cases if c not in times and c not in impossible))


def merged(runs: Sequence[Sequence[Sample]]) -> tuple[Sample, ...]:
    """Return the samples of several runs as one; a case that several measured has the median of them."""
    times: dict[Case, list[float]] = {}
    for sample in (s for run in runs for s in run):
        times.setdefault(sample.case, []).append(sample.seconds)
    return tuple(Sample(case, median(own)) for case, own in times.items())
