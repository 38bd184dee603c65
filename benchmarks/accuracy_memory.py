"""Predicted against printed memory: peaks by what counted them, and who is called out of memory."""

from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.accuracy_groups import kind_of
from benchmarks.accuracy_stats import Confusion, confusion
from benchmarks.measured_prices import Priced
from benchmarks.rows import COUNTERS, counter_of, step_peak_gib
from meshwright.hardware.units import bytes_to_gib
from meshwright.planner.headroom import measured_headroom

MODES: Final = {"full": ("dense", "moe"), "tuned": ("tuned",)}
"""Full training and fine-tuning of adapters, as kinds of rows."""


def memory_error(priced: Priced) -> float | None:
    """Return the signed error of the peak that the row's own counter sees; None where either is unknown."""
    printed, seen = step_peak_gib(priced.row), priced.comparable_bytes
    if printed is None or seen is None:
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


def within(priced: Priced, oom_risk: float | None = None) -> bool | None:
    """Return whether the fullest rank fits the device; None if it has no price.

    With a risk it must leave what a search leaves free at that risk.
    """
    if priced.peak_bytes is None or priced.expressed is None:
        return None
    problem = priced.expressed.problem
    device, share = problem.cluster.accelerator, 0.0
    if oom_risk is not None:
        share = measured_headroom(oom_risk, problem.profile.name, device).share
    return bool(priced.peak_bytes <= device.memory_bytes * (1 - share))


def fit_confusion(priced: Iterable[Priced], oom_risk: float | None = None) -> Confusion:
    """Return fitting runs (trust A and B) and runs out of memory (any trust) by what was predicted."""
    pairs = []
    for p in priced:
        called = within(p, oom_risk)
        if called is not None and (p.row.outcome == "oom" or p.row.trusted):
            pairs.append((p.row.outcome == "ok", called))
    return confusion(pairs)
