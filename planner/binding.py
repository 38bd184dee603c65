"""What binds the best plan: limits without which a step could be shorter, with a bound on how much."""

from dataclasses import replace

import numpy as np

from meshwright.hardware.units import bytes_to_gib, s_to_text
from meshwright.planner.choice import Choice
from meshwright.planner.field import Field, survey
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate

FULL = 0.95
"""A rank that fills this share of the usable memory is worth naming."""


def binding(f: Field, best: Estimate) -> tuple[str, ...]:
    """Return sentences on memory, pins and target; each bound is proven, not a promise."""
    told = [_memory(f, best)]
    job = f.problem.job
    for name in job.choices:
        rest = {k: v for k, v in job.choices.items() if k != name}
        told.append(_without(replace(f.problem, job=replace(job, choices=rest)), f"pin on {name}", best))
    if job.target != "any":
        free = replace(f.problem, job=replace(job, target="any", profile=f.problem.profile.name))
        told.append(_without(free, f"target {job.target}", best))
    return tuple(t for t in told if t)


def _memory(f: Field, best: Estimate) -> str:
    """Return the fullest stage, and how short a step could be if memory had no limit."""
    peak = max(best.peak_bytes)
    if peak < FULL * best.usable_bytes:
        return ""
    stage = int(np.argmax(best.peak_bytes))
    held, usable = bytes_to_gib(peak), bytes_to_gib(best.usable_bytes)
    text = f"memory: stage {stage} holds {held:.1f} of {usable:.1f} GiB usable"
    return text + _at_best(f.free_s, best)


def _without(problem: Problem, what: str, best: Estimate) -> str:
    """Return what dropping a restriction could gain at best; nothing if it costs nothing for sure."""
    bounds = survey(problem).bounds
    least = float(bounds.min(initial=np.inf))
    return f"{what}{_at_best(least, best)}" if least < best.step_time_s else ""


def _at_best(bound: float, best: Estimate) -> str:
    gain = 1 - bound / best.step_time_s
    least = s_to_text(bound)
    return f"; lifting that limit could save at most {100 * max(gain, 0):.1f} % (no step is below {least})"


def unpinned(problem: Problem, name: str) -> Problem:
    """Return the problem without the pin on a decision."""
    rest: dict[str, Choice] = {k: v for k, v in problem.job.choices.items() if k != name}
    return replace(problem, job=replace(problem.job, choices=rest))
