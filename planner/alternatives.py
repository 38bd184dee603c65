"""The best distinct meshes beside the winner, each at its own optimum, and why each lost."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.hardware.units import s_to_text
from meshwright.planner.expand import expand
from meshwright.planner.field import Field
from meshwright.planner.heuristic import Found, even_plans
from meshwright.planner.pricing import price_plan
from meshwright.planner.result import Alternative, Estimate
from meshwright.planner.search import Effort, refine, solve_mesh

EFFORT = Effort(tolerance=1e-3, mesh_limit=0.1)
"""Spent on one alternative."""
SPARE = 2
"""Groups tried beyond the wanted ones: the order of bounds is not quite that of optima."""
DISTINCT = ("tp", "cp", "pp", "dp", "ep")
"""Degrees that make a mesh another one."""
ROWS = 16
"""Meshes of best bound that one alternative is looked for among."""


def alternatives(
    f: Field, best: Estimate, count: int, expired: Callable[[], bool]
) -> tuple[Alternative, ...]:
    """Return up to ``count`` alternatives by rising step time; distinct means another (tp, cp, pp, dp, ep).

    An alternative counts as proven if nothing in its mesh can beat it by more than the effort's tolerance.
    """
    f = replace(f, bounds=f.bounds.copy(), refined=set(f.refined))
    found: list[tuple[Found, IntArray]] = []
    for rows in _groups(f, tuple(getattr(best.plan, d) for d in DISTINCT))[: count + SPARE]:
        steps = sorted(one.candidate.step_s for one, _ in found)
        if expired() or (len(steps) >= count and f.bounds[rows].min() >= steps[count - 1]):
            break
        one = _optimum(f, rows)
        if one is not None:
            found.append((one, rows))
    found.sort(key=lambda pair: pair[0].candidate.step_s)
    return tuple(_alternative(f, one, rows, best) for one, rows in found[:count])


def _optimum(f: Field, rows: IntArray) -> Found | None:
    """Return the best plan of a group: evenly split first, then CP-SAT on the most promising meshes."""
    near = rows[:ROWS]
    refine(f, np.array([r for r in near if int(r) not in f.refined], dtype=np.int64), np.inf)
    starts = even_plans(f, near)
    if not starts:
        return None
    best = starts[0]
    own = {start.row: start for start in starts}
    for row in _promising(f, near, starts):
        cutoff = best.candidate.step_s * (1 - EFFORT.tolerance)
        outcome = solve_mesh(f, row, cutoff, own.get(row), EFFORT)
        f.bounds[row] = max(f.bounds[row], outcome.bound_s)
        if outcome.best is not None:
            best = Found(row, outcome.best)
    return best


def _promising(f: Field, rows: IntArray, starts: list[Found]) -> list[int]:
    """Return the meshes worth CP-SAT: fastest start, lowest bound, and lowest bound with free stages."""
    by_bound = rows[np.argsort(f.bounds[rows], kind="stable")]
    free = by_bound[f.meshes.vpp[by_bound] == 1]
    return list(dict.fromkeys([starts[0].row, *by_bound[:1].tolist(), *free[:1].tolist()]))


def _groups(f: Field, winner: tuple[int, ...]) -> list[IntArray]:
    """Return rows of each set of degrees but the winner's, each by rising bound, by rising best bound."""
    m = f.meshes
    rows = f.order[np.argsort(f.bounds[f.order], kind="stable")]
    rows = rows[np.isfinite(f.bounds[rows])]
    table = np.stack([getattr(m, d)[rows] for d in DISTINCT], axis=1)
    keys: dict[tuple[int, ...], list[int]] = {}
    for row, key in zip(rows.tolist(), map(tuple, table.tolist()), strict=True):
        keys.setdefault(key, []).append(row)
    return [np.array(own, dtype=np.int64) for key, own in keys.items() if key != winner]


def _alternative(f: Field, found: Found, rows: IntArray, best: Estimate) -> Alternative:
    priced = price_plan(f.problem, expand(f, found))
    gap = priced.step_time_s / best.step_time_s - 1
    least = f.bounds[rows].min()
    proven = bool(least >= found.candidate.step_s * (1 - 2 * EFFORT.tolerance))
    return Alternative(priced, gap, why_slower(priced, best), proven)


def why_slower(other: Estimate, best: Estimate) -> str:
    """Return the cause that grew most from the best plan to another."""
    grown = {cause: s - best.breakdown[cause] for cause, s in other.breakdown.items()}
    cause = max(grown, key=lambda c: grown[c])
    if grown[cause] <= 0:
        return "equally fast; ties are broken by recomputation, memory, evenness and tp"
    word = cause.replace("_", " ")
    return f"{word}: {s_to_text(other.breakdown[cause])} against {s_to_text(best.breakdown[cause])}"
