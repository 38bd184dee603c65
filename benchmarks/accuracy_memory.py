"""Predicted against printed memory: peaks by what counted them, and who is called out of memory."""

from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.accuracy_groups import kind_of
from benchmarks.accuracy_stats import Confusion, confusion
from benchmarks.measured_prices import Priced
from benchmarks.rows import COUNTERS, counter_of
from meshwright.hardware.units import bytes_to_gib
from meshwright.planner.job import Job

SEARCH_HEADROOM: Final = Job(global_batch_size=1, sequence_length=1).headroom
"""What a search leaves free unless it is told otherwise."""
MODES: Final = {"full": ("dense", "moe"), "tuned": ("tuned",)}
"""Full training and fine-tuning of adapters, as kinds of rows."""


NO_STEP: Final = "not a training step"
"""What the notes of a row say whose peak was seen while a model was loaded or wrapped."""


def memory_error(priced: Priced) -> float | None:
    """Return the signed error of the peak that the row's own counter sees; None where either is unknown,
    or where no step was run.
    """
    printed, seen = priced.row.peak_memory_gib, priced.comparable_bytes
    if printed is None or seen is None or priced.row.outcome != "ok" or NO_STEP in priced.row.notes:
        return None
    return bytes_to_gib(seen) / printed - 1


def memory_errors(priced: Iterable[Priced], mode: str, counters: Sequence[str] = COUNTERS) -> list[float]:
    """Return the signed errors of the peaks of one of :data:`MODES`, trust A and B, by some counters."""
    return [
        error
        for p in priced
        if p.row.trusted and kind_of(p.row) in MODES[mode] and counter_of(p.row) in counters
        if (error := memory_error(p)) is not None
    ]


def within(priced: Priced, headroom: float) -> bool | None:
    """Return whether the fullest rank leaves a share of the device's memory free; None if it has no price."""
    if priced.peak_bytes is None or priced.expressed is None:
        return None
    usable = priced.expressed.problem.cluster.accelerator.memory_bytes
    return bool(priced.peak_bytes <= usable * (1 - headroom))


def fit_confusion(priced: Iterable[Priced], headroom: float = 0.0) -> Confusion:
    """Return fitting runs (trust A and B) and runs out of memory (any trust) by what was predicted."""
    pairs = []
    for p in priced:
        called = within(p, headroom)
        if called is not None and (p.row.outcome == "oom" or p.row.trusted):
            pairs.append((p.row.outcome == "ok", called))
    return confusion(pairs)
