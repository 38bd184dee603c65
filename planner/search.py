"""The search: bounds discard, CP-SAT settles what could still win, best bound first, until none is left."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.strategy import Setting
from meshwright.costmodels.tables import Tables, build_tables
from meshwright.planner.bounds import Demand, demand, memory_floor, quick_bounds, stage_bounds
from meshwright.planner.cpsat.mesh_solver import Candidate, MeshSolver, MeshTask, Outcome
from meshwright.planner.events import SearchEvent
from meshwright.planner.heuristic import even_plans
from meshwright.planner.meshes import Meshes
from meshwright.planner.pricing import setting, usable_bytes
from meshwright.planner.problem import Problem
from meshwright.planner.space import space

TOLERANCE = 3e-4
"""CP-SAT refutes every mesh at (1 - TOLERANCE) of the best plan: the proof's own gap."""
MESH_LIMIT = 1.5
"""Deterministic CP-SAT seconds for one mesh."""
BATCH = 128
"""Meshes whose stage bounds are computed together."""


@dataclass
class Field:
    """All meshes of a problem with their bounds: what the search works through.

    Attributes
    ----------
    bounds
        Lower bound on each mesh's step, (B,); infinite where no plan fits.
    order
        Rows by rising bound, those that may fit only.
    """

    problem: Problem
    meshes: Meshes
    setting: Setting
    tables: Tables
    want: Demand
    usable: float
    bounds: FloatArray
    order: IntArray
    discarded: dict[str, int]
    refined: set[int] = field(default_factory=set)

    def task(self, row: int) -> MeshTask:
        """Return the CP-SAT task of one mesh."""
        return MeshTask(
            self.setting,
            self.problem.model,
            self.meshes.take([row]).strategies(),
            self.tables.take(np.array([row])),
            self.want,
            self.usable,
            self.problem.target.recompute_uniform,
        )


def survey(problem: Problem) -> Field:
    """Return all legal meshes with their quick bounds; those that cannot fit are marked infinite."""
    meshes, discarded = space(problem)
    common, want, usable = setting(problem), demand(problem), usable_bytes(problem)
    if not len(meshes):
        none = np.empty(0)
        return Field(problem, meshes, common, None, want, usable, none, none.astype(int), discarded)  # type: ignore[arg-type]
    strategies = meshes.strategies()
    tables = build_tables(common, strategies)
    bounds = quick_bounds(common, strategies, tables, want)
    floor = memory_floor(common, strategies, tables, want)
    bounds = np.where(floor <= usable, bounds, np.inf)
    discarded = discarded | {"memory floor": int((floor > usable).sum())}
    order = np.argsort(bounds, kind="stable")
    return Field(
        problem, meshes, common, tables, want, usable, bounds, order[np.isfinite(bounds[order])], discarded
    )


@dataclass
class Found:
    """The best plan of a mesh."""

    row: int
    candidate: Candidate


@dataclass
class State:
    """Progress of a search."""

    best: Found | None = None
    solved: int = 0
    cuts: int = 0
    proven: bool = True
    bound: float = np.inf

    @property
    def incumbent_s(self) -> float:
        """Seconds of the best plan so far, infinite without one."""
        return np.inf if self.best is None else self.best.candidate.step_s


def first_plan(f: Field, count: int = 400) -> Found | None:
    """Return the fastest evenly split plan that fits among the meshes of best bound."""
    rows = f.order[:count]
    return even_plans(f, rows) if len(rows) else None


def refine(f: Field, rows: IntArray, ceiling: float) -> None:
    """Replace the bounds of rows by stage bounds."""
    rows = np.array([r for r in rows if int(r) not in f.refined], dtype=np.int64)
    if not len(rows):
        return
    s = f.meshes.take(rows).strategies()
    f.bounds[rows] = stage_bounds(
        f.setting, s, f.tables.take(rows), f.want, f.usable, f.bounds[rows], ceiling
    )
    f.refined.update(rows.tolist())


def best_first(f: Field, state: State) -> Iterator[int]:
    """Yield rows by rising stage bound, as long as one could beat the incumbent."""
    waiting = f.order.copy()
    while len(waiting):
        cutoff = state.incumbent_s * (1 - TOLERANCE)
        waiting = waiting[f.bounds[waiting] < cutoff]
        waiting = waiting[np.argsort(f.bounds[waiting], kind="stable")]
        fresh = [r for r in waiting[:BATCH] if int(r) not in f.refined]
        if fresh:
            refine(f, np.array(fresh), state.incumbent_s)
            continue
        if not len(waiting):
            return
        row, waiting = int(waiting[0]), waiting[1:]
        yield row


def solve_mesh(f: Field, row: int, cutoff_s: float, limit: float = MESH_LIMIT) -> Outcome:
    """Return the best plan of one mesh below a cutoff."""
    return MeshSolver(f.task(row), cutoff_s, limit).solve(cutoff_s, TOLERANCE)


def search(
    f: Field, expired: Callable[[], bool], report: Callable[[SearchEvent], None] | None = None
) -> State:
    """Return the best plan over all meshes with the bound that proves it.

    Parameters
    ----------
    expired
        Whether the clock has run out; checked between meshes.
    report
        Called after each mesh.
    """
    state = State(best=first_plan(f))
    for row in best_first(f, state):
        if expired():
            state.proven = False
            state.bound = min(state.bound, float(f.bounds[row]))
            break
        start = min(state.incumbent_s * (1 - TOLERANCE), 1e7)
        outcome = solve_mesh(f, row, start)
        state.solved, state.cuts = state.solved + 1, state.cuts + outcome.rounds
        f.bounds[row] = max(f.bounds[row], outcome.bound_s)
        if outcome.best is not None and outcome.best.step_s < state.incumbent_s:
            state.best = Found(row, outcome.best)
        if not outcome.proven:
            state.proven = False
            state.bound = min(state.bound, float(f.bounds[row]))
        if report is not None:
            report(_event(f, state, row))
    if state.best is not None:
        state.bound = min(state.bound, state.incumbent_s * (1 - TOLERANCE))
    return state


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
