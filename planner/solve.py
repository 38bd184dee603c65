"""Find the fastest plan that fits memory, and prove that none is faster."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.alternatives import alternatives as find_alternatives
from meshwright.planner.binding import binding
from meshwright.planner.events import SearchEvent
from meshwright.planner.expand import expand
from meshwright.planner.field import Field, survey
from meshwright.planner.infeasible import explain
from meshwright.planner.left_out import left_out
from meshwright.planner.lost import headroom_words, lost_to_headroom
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.result import Result, SearchRecord, Status
from meshwright.planner.search import State, search
from meshwright.planner.spill import SPILLED, spilled
from meshwright.planner.ties import break_ties

if TYPE_CHECKING:
    from meshwright.hardware.spec import Cluster
    from meshwright.planner.graph import ModelGraph
    from meshwright.planner.job import Job

PROOF_GAP = 1e-3
"""A plan is called optimal if no plan can be faster by more than this share."""


def solve(
    model: "ModelGraph | str | PathLike[str]",
    cluster: "Cluster | str | PathLike[str]",
    job: "Job | Mapping[str, Any]",
    *,
    time_limit_s: float | None = None,
    progress: Callable[[SearchEvent], None] | None = None,
    alternatives: int = 5,
) -> Result:
    """Return the fastest plan of a training job, with its proof.

    Parameters
    ----------
    model
        A preset's name, the path of a ``config.json`` (or its folder) or YAML file, or a graph.
    cluster
        A catalogue name such as ``dgx-h100:16``, the path of a YAML file, or a cluster.
    job
        A :class:`~meshwright.planner.job.Job`, or its fields by name.
    time_limit_s
        Stop by the clock after so many seconds, with the best plan so far and its true gap. Such a result
        need not be reproducible. Without it the same input gives the same plan.
    progress
        Called with a :class:`~meshwright.planner.events.SearchEvent` after each mesh.
    alternatives
        How many other meshes to bring to their own optimum; 0 for none.

    Raises
    ------
    MeshwrightError
        If the input is bad. That nothing fits is an answer (status ``INFEASIBLE``), not an error.
    """
    problem = Problem.load(model, cluster, job)
    return solve_problem(problem, time_limit_s=time_limit_s, progress=progress, alternatives=alternatives)


def solve_problem(
    problem: Problem,
    *,
    time_limit_s: float | None = None,
    progress: Callable[[SearchEvent], None] | None = None,
    alternatives: int = 5,
) -> Result:
    """Return the fastest plan of a loaded problem; see :func:`solve`."""
    started = time.perf_counter()
    _check_call(time_limit_s, alternatives)
    check_problem(problem)

    def expired() -> bool:
        """Return whether the time is over."""
        return time_limit_s is not None and time.perf_counter() - started > time_limit_s

    f = survey(problem)
    state = search(f, expired, progress)
    notes = problem.notes
    if state.best is None and not expired() and (widened := _spilled(f, state)) is not None:
        f, notes = widened, (*notes, SPILLED)
        state = search(f, expired, progress)
    found = break_ties(f, state)
    if found is None:
        return _without_plan(problem, f, state, started, expired)
    best = price_plan(problem, expand(f, found))
    bound = min(state.bound, best.step_time_s)
    lost = lost_to_headroom(f, found, best, expired)
    price_of_room = () if lost is None else (headroom_words(best, lost),)
    status: Status = "OPTIMAL" if bound >= best.step_time_s * (1 - PROOF_GAP) else "FEASIBLE"
    return Result(
        status=status,
        objective_s=best.step_time_s,
        lower_bound_s=bound,
        plan=best.plan,
        estimate=best,
        alternatives=find_alternatives(f, best, alternatives, expired) if alternatives else (),
        binding=(*binding(replace(f, problem=problem), best), *price_of_room),
        lost_to_headroom=lost,
        record=_record(problem, f, state),
        notes=notes,
        runtime_s=time.perf_counter() - started,
    )


def _spilled(f: Field, state: State) -> Field | None:
    """Return the meshes with states in host memory where it is proven that nothing fits without."""
    widened = spilled(f.problem) if state.proven and len(f.meshes) else None
    if widened is None or not len((found := survey(widened)).meshes):
        return None
    return replace(found, discarded={"nothing fits without offloading": len(f.meshes), **found.discarded})


def _check_call(time_limit_s: float | None, alternatives: int) -> None:
    """Refuse limits that are none."""
    number = isinstance(time_limit_s, int | float) and not isinstance(time_limit_s, bool)
    if time_limit_s is not None and not (number and time_limit_s > 0):
        raise MeshwrightError(f"time_limit_s: {time_limit_s!r} is not a positive number of seconds")
    if isinstance(alternatives, bool) or not isinstance(alternatives, int) or alternatives < 0:
        raise MeshwrightError(f"alternatives: {alternatives!r} is not a whole number of at least 0")


def _without_plan(
    problem: Problem, f: Field, state: State, started: float, expired: Callable[[], bool]
) -> Result:
    """Return that nothing fits, or that the limit came before a plan."""
    status: Status = "INFEASIBLE" if state.proven else "UNKNOWN"
    least = float(np.min(f.bounds, initial=np.inf))
    return Result(
        status=status,
        objective_s=None,
        lower_bound_s=least if np.isfinite(least) and status == "UNKNOWN" else None,
        plan=None,
        infeasibility=explain(replace(f, problem=problem), expired) if status == "INFEASIBLE" else None,
        record=_record(problem, f, state),
        notes=f.problem.notes,
        runtime_s=time.perf_counter() - started,
    )


def _record(problem: Problem, f: Field, state: State) -> SearchRecord:
    """Return the figures behind the proof."""
    from meshwright.planner.cpsat.scaling import RESOLUTION

    return SearchRecord(
        meshes=len(f.meshes),
        discarded={k: v for k, v in f.discarded.items() if v},
        solved=state.solved,
        cuts=state.cuts,
        integer_error=1 / RESOLUTION,
        reproducible=not state.expired,
        left_out=left_out(problem, f.problem),
    )
