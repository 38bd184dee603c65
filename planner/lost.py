"""What the memory headroom costs: a faster plan that the device would hold, but not with room to spare."""

from collections.abc import Callable
from itertools import count
from typing import Final

from meshwright.hardware.units import bytes_to_gib, s_to_text
from meshwright.planner.expand import expand
from meshwright.planner.field import Field, survey
from meshwright.planner.heuristic import Found
from meshwright.planner.meshes import mesh_of
from meshwright.planner.pricing import price_plan
from meshwright.planner.result import Estimate
from meshwright.planner.search import Effort, State, best_first, solve_mesh

EFFORT: Final = Effort(tolerance=1e-3, mesh_limit=0.2)
"""Spent on one mesh; a plan within the tolerance of the best is not called faster."""
ROUNDS: Final = 24
"""Portions of meshes whose bounds are raised."""
SOLVED: Final = 4
"""Meshes that are given to CP-SAT, those of best bound."""


def lost_to_headroom(f: Field, winner: Found, best: Estimate, expired: Callable[[], bool]) -> Estimate | None:
    """Return the fastest plan found that the headroom forbids; None where none was found.

    The search's own way over the meshes as if nothing had to be left free, from the best plan on and cut
    short: that a plan is told proves that it exists, that none is told proves nothing.
    """
    if not f.problem.headroom.share or expired():
        return None
    whole, state = survey(f.problem.leaving(0.0)), State(best=winner)
    turns = count()
    rows = best_first(whole, state, EFFORT.tolerance, lambda: expired() or next(turns) >= ROUNDS)
    for _, row in zip(range(SOLVED), rows, strict=False):
        cutoff = state.incumbent_s * (1 - EFFORT.tolerance)
        outcome = solve_mesh(whole, row, cutoff, state.starts.get(row), EFFORT)
        if outcome.best is not None and outcome.best.step_s < cutoff:
            state.best = Found(row, outcome.best)
    if state.best is winner or state.best is None:
        return None
    lost = price_plan(whole.problem, expand(whole, state.best))
    return lost if max(lost.peak_bytes) > best.usable_bytes else None


def headroom_words(best: Estimate, lost: Estimate) -> str:
    """Say what the headroom costs, in a sentence."""
    mesh, peak = mesh_of(lost.plan).describe(0), bytes_to_gib(max(lost.peak_bytes))
    gain = 1 - lost.step_time_s / best.step_time_s
    return (
        f"headroom: without it {mesh} would take {s_to_text(lost.step_time_s)}, {100 * gain:.1f} % less, and "
        f"{peak:.1f} of {bytes_to_gib(lost.capacity_bytes):.1f} GiB"
    )
