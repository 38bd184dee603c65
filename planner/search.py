"""The search: bounds discard, CP-SAT settles what could still win, best bound first, until none is left."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.cpsat.listing import WALKS, list_plans
from meshwright.planner.cpsat.mesh_solver import MeshSolver, Outcome
from meshwright.planner.events import SearchEvent
from meshwright.planner.field import Field
from meshwright.planner.given import equal_chunk_bounds
from meshwright.planner.heuristic import Found, even_plans
from meshwright.planner.stage_bounds import stage_bounds

TOLERANCE = 3e-4
"""CP-SAT refutes every mesh at (1 - TOLERANCE) of the best plan: the proof's own gap."""
MESH_LIMIT = 1.5
"""Deterministic CP-SAT seconds for one mesh."""


@dataclass(frozen=True)
class Effort:
    """How hard a search tries.

    Attributes
    ----------
    tolerance
        Meshes are refuted at (1 - tolerance) of the best plan.
    mesh_limit
        Deterministic CP-SAT seconds for one mesh.
    retries
        Rounds for meshes that reached their limit, each with :data:`PATIENCE` times the limit before.
    """

    tolerance: float = TOLERANCE
    mesh_limit: float = MESH_LIMIT
    retries: int = 0


PROOF = Effort(mesh_limit=0.1, retries=3)
"""Little for each mesh at first: what one finds cuts off the others, where long work on one is often in vain
(Megatron's plans of 70B on 64 devices, whose chunks may be unequal, prove in less than half the time)."""
PATIENCE = 6
BATCH = 24
"""Meshes whose stage bounds are computed together."""


@dataclass
class State:
    """Progress of a search."""

    best: Found | None = None
    solved: int = 0
    cuts: int = 0
    proven: bool = True
    expired: bool = False
    bound: float = np.inf
    starts: dict[int, Found] = field(default_factory=dict)
    finds: dict[int, Found] = field(default_factory=dict)

    @property
    def incumbent_s(self) -> float:
        """Seconds of the best plan so far, infinite without one."""
        return np.inf if self.best is None else self.best.candidate.step_s


def refine(f: Field, rows: IntArray, ceiling: float) -> None:
    """Raise the bounds of rows by looking at their stages."""
    several = f.meshes.vpp[rows] > 1
    for part, want in ((rows[~several], f.want), (rows[several], f.want_several)):
        if len(part):
            s, tables, floor = f.meshes.take(part).strategies(), f.tables.take(part), f.bounds[part]
            f.bounds[part] = stage_bounds(f.setting, s, tables, want, f.usable, floor, ceiling)
    given = rows[f.given(rows) & (f.bounds[rows] < ceiling)]
    f.bounds[given] = equal_chunk_bounds(f, given)
    f.refined.update(rows.tolist())


def best_first(f: Field, state: State, tolerance: float, expired: Callable[[], bool]) -> Iterator[int]:
    """Yield rows by rising bound, as long as one could beat the incumbent; first plans come on the way.

    Once the clock has run out no more bounds are raised: rows come with the bounds that they have.
    """
    waiting = f.order.copy()
    while len(waiting):
        waiting = waiting[f.bounds[waiting] < state.incumbent_s * (1 - tolerance)]
        waiting = waiting[np.argsort(f.bounds[waiting], kind="stable")]
        fresh = np.array([r for r in waiting[:BATCH] if int(r) not in f.refined], dtype=np.int64)
        if len(fresh) and not (expired() and state.best is not None):
            refine(f, fresh, state.incumbent_s)
            _try_even(f, fresh, state)
        elif len(waiting) and f.given(waiting[:1])[0] and int(waiting[0]) not in f.pathed:
            f.bounds[waiting[:1]] = equal_chunk_bounds(f, waiting[:1], strong=True)
            f.pathed.add(int(waiting[0]))
        elif len(waiting):
            row, waiting = int(waiting[0]), waiting[1:]
            yield row


def _try_even(f: Field, rows: IntArray, state: State) -> None:
    """Take the best evenly split plan of rows as incumbent if it is faster."""
    promising = rows[f.bounds[rows] < state.incumbent_s]
    for found in even_plans(f, promising):
        state.starts[found.row] = found
        if found.candidate.step_s < state.incumbent_s:
            state.best = found


def solve_mesh(f: Field, row: int, cutoff_s: float, start: Found | None, effort: Effort) -> Outcome:
    """Return the best plan of one mesh below a cutoff; ``start`` is a plan of it to begin from.

    The plans are listed where they are few (:mod:`meshwright.planner.cpsat.listing`); else CP-SAT decides.
    """
    task, known = f.task(row), None if start is None else start.candidate
    listed = list_plans(task, cutoff_s, WALKS if effort.mesh_limit >= MESH_LIMIT else 1)
    if listed is None:
        return MeshSolver(task, cutoff_s, effort.mesh_limit).solve(cutoff_s, effort.tolerance, known)
    best = listed.best
    if listed.complete:
        return Outcome(best, cutoff_s if best is None else best.step_s, True, 0)
    if best is not None:
        cutoff_s = best.step_s * (1 - effort.tolerance)
    solver = MeshSolver(task, cutoff_s, effort.mesh_limit)
    outcome = solver.solve(cutoff_s, effort.tolerance, best or known, listed.paths)
    return replace(outcome, best=outcome.best or best)


def search(
    f: Field,
    expired: Callable[[], bool],
    report: Callable[[SearchEvent], None] | None = None,
    effort: Effort = PROOF,
) -> State:
    """Return the best plan over all meshes with the bound that proves it.

    Parameters
    ----------
    expired
        Whether the clock has run out; checked between meshes.
    report
        Called after each mesh.
    effort
        Tolerance and limits.
    """
    state = State()
    for attempt in range(effort.retries + 1):
        patient = replace(effort, mesh_limit=effort.mesh_limit * PATIENCE**attempt)
        state.proven = _round(f, state, patient, expired, report)
        if state.proven or state.expired:
            break
    state.bound = min(state.incumbent_s, float(f.bounds[f.order].min(initial=np.inf)))
    return state


def _round(
    f: Field,
    state: State,
    effort: Effort,
    expired: Callable[[], bool],
    report: Callable[[SearchEvent], None] | None,
) -> bool:
    """Settle every mesh that could still win; return whether all were settled within their limits."""
    settled = True
    for row in best_first(f, state, effort.tolerance, expired):
        if expired():
            state.expired = True
            return False
        cutoff = min(state.incumbent_s * (1 - effort.tolerance), 1e7)
        outcome = solve_mesh(f, row, cutoff, state.starts.get(row), effort)
        state.solved, state.cuts = state.solved + 1, state.cuts + outcome.rounds
        f.bounds[row] = max(f.bounds[row], outcome.bound_s)
        settled &= outcome.proven
        if outcome.best is not None:
            state.finds[row] = Found(row, outcome.best)
            if outcome.best.step_s < state.incumbent_s:
                state.best = state.finds[row]
        if report is not None:
            report(_event(f, state, row))
    return settled


def _event(f: Field, state: State, row: int) -> SearchEvent:
    cutoff = state.incumbent_s * (1 - TOLERANCE)
    return SearchEvent(
        "search",
        state.solved,
        state.solved + int((f.bounds[f.order] < cutoff).sum()),
        None if state.best is None else state.incumbent_s,
        float(f.bounds[row]),
        f.meshes.describe(row),
    )
