"""What the memory headroom costs: a faster plan that the device would hold, but not with room to spare."""

from collections.abc import Callable
from typing import Final

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.hardware.units import bytes_to_gib
from meshwright.planner.expand import expand
from meshwright.planner.field import Field, survey
from meshwright.planner.heuristic import Found, even_plans
from meshwright.planner.meshes import mesh_of
from meshwright.planner.pricing import price_plan
from meshwright.planner.result import Estimate
from meshwright.planner.search import Effort, refine, solve_mesh

EFFORT: Final = Effort(tolerance=1e-3, mesh_limit=0.2)
"""Spent on one mesh; a plan within the tolerance of the best is not called faster."""
ROWS: Final = 48
"""Meshes of best bound whose even splits are tried."""
SOLVED: Final = 3
"""Of them those that are given to CP-SAT."""


def lost_to_headroom(f: Field, best: Estimate, expired: Callable[[], bool]) -> Estimate | None:
    """Return the fastest plan found that the headroom forbids; None where none was found.

    A look at the most promising meshes, not a search of all: that a plan is told proves that it exists, that
    none is told proves nothing, except where no bound is below the best plan.
    """
    if not f.problem.headroom.share or expired():
        return None
    whole = survey(f.problem.leaving(0.0))
    cutoff = best.step_time_s * (1 - EFFORT.tolerance)
    rows = _below(whole, whole.order, cutoff)
    refine(whole, rows, cutoff)
    found = _fastest(whole, _below(whole, rows, cutoff), cutoff)
    return None if found is None else price_plan(whole.problem, expand(whole, found))


def _below(f: Field, rows: IntArray, cutoff: float) -> IntArray:
    """Return the meshes of lowest bound among those that may beat a time."""
    rows = rows[f.bounds[rows] < cutoff]
    return rows[np.argsort(f.bounds[rows], kind="stable")][:ROWS]


def _fastest(f: Field, rows: IntArray, cutoff: float) -> Found | None:
    """Return the fastest plan below a time: evenly split first, then CP-SAT where most may be gained."""
    starts = {plan.row: plan for plan in even_plans(f, rows)}
    best = next((plan for plan in starts.values() if plan.candidate.step_s < cutoff), None)
    for row in dict.fromkeys([*list(starts)[:1], *rows[: SOLVED - 1].tolist()]):
        below = cutoff if best is None else best.candidate.step_s * (1 - EFFORT.tolerance)
        outcome = solve_mesh(f, row, below, starts.get(row), EFFORT)
        if outcome.best is not None and outcome.best.step_s < below:
            best = Found(row, outcome.best)
    return best


def headroom_words(best: Estimate, lost: Estimate) -> str:
    """Say what the headroom costs, in a sentence."""
    mesh, peak = mesh_of(lost.plan).describe(0), bytes_to_gib(max(lost.peak_bytes))
    gain = 1 - lost.step_time_s / best.step_time_s
    return (
        f"headroom: without it {mesh} would take {lost.step_time_s:.4g} s, {100 * gain:.1f} % less, and "
        f"{peak:.1f} of {bytes_to_gib(lost.capacity_bytes):.1f} GiB"
    )
