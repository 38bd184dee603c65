"""The best distinct meshes beside the winner, each at its own optimum, and why each lost."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.expand import expand
from meshwright.planner.field import Field
from meshwright.planner.pricing import price_plan
from meshwright.planner.result import Alternative, Estimate
from meshwright.planner.search import Effort, State, search

EFFORT = Effort(tolerance=1e-3, mesh_limit=0.1, most_meshes=3)
"""Spent on one alternative; its optimum counts as unproven beyond."""


def alternatives(
    f: Field, best: Estimate, count: int, expired: Callable[[], bool]
) -> tuple[Alternative, ...]:
    """Return up to ``count`` alternatives by rising step time; distinct means other (tp, pp, dp)."""
    groups = _groups(f, (best.plan.tp, best.plan.pp, best.plan.dp))
    found: list[tuple[float, Alternative]] = []
    for rows in groups[: 2 * count]:
        enough = sorted(step for step, _ in found)[count - 1 : count]
        if expired() or (enough and f.bounds[rows].min() >= enough[0]):
            break
        own = replace(f, order=rows, bounds=f.bounds.copy(), refined=set(f.refined), pathed=set(f.pathed))
        state = search(own, expired, effort=EFFORT)
        if state.best is not None:
            found.append((state.incumbent_s, _alternative(own, state, best)))
    return tuple(a for _, a in sorted(found, key=lambda pair: pair[0])[:count])


def _groups(f: Field, winner: tuple[int, int, int]) -> list[IntArray]:
    """Return rows of each (tp, pp, dp) but the winner's, each by rising bound, by rising best bound."""
    m = f.meshes
    rows = f.order[np.argsort(f.bounds[f.order], kind="stable")]
    rows = rows[np.isfinite(f.bounds[rows])]
    keys: dict[tuple[int, int, int], list[int]] = {}
    for row in rows:
        keys.setdefault((int(m.tp[row]), int(m.pp[row]), int(m.dp[row])), []).append(int(row))
    return [np.array(own, dtype=np.int64) for key, own in keys.items() if key != winner]


def _alternative(f: Field, state: State, best: Estimate) -> Alternative:
    assert state.best is not None
    priced = price_plan(f.problem, expand(f, state.best))
    gap = priced.step_time_s / best.step_time_s - 1
    return Alternative(priced, gap, why_slower(priced, best), state.proven)


def why_slower(other: Estimate, best: Estimate) -> str:
    """Return the cause that grew most from the best plan to another."""
    grown = {cause: s - best.breakdown[cause] for cause, s in other.breakdown.items()}
    cause = max(grown, key=lambda c: grown[c])
    if grown[cause] <= 0:
        return "equally fast; ties are broken by recomputation, memory, evenness and tp"
    word = cause.replace("_", " ")
    return f"{word}: {other.breakdown[cause]:.4g} s against {best.breakdown[cause]:.4g} s"
