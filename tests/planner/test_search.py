"""The search as a whole: more freedom is never slower, and the same input gives the same plan."""

from dataclasses import replace
from itertools import pairwise
from math import isinf
from typing import Any

import numpy as np
import pytest

from meshwright.planner.choice import Choice
from meshwright.planner.cpsat.mesh_solver import MeshSolver
from meshwright.planner.events import SearchEvent
from meshwright.planner.field import survey
from meshwright.planner.problem import Problem
from meshwright.planner.search import TOLERANCE, search
from meshwright.planner.solve import solve_problem
from tests.planner.small import SEEDS, known
from tests.referees.exhaustive import Everything, everything
from tests.referees.problems import random_problem, with_memory

SOME = SEEDS[:16]


def _step(problem: Problem) -> float:
    return search(survey(problem), lambda: False).incumbent_s


def _job(problem: Problem, **changes: Any) -> Problem:
    changed = Problem(problem.model, problem.cluster, replace(problem.job, **changes))
    changed.__dict__["profile"] = problem.profile
    return changed


def _pinned(problem: Problem, **choices: Choice) -> Problem:
    return _job(problem, choices={**problem.job.choices, **choices})


def _not_slower(fast: float, slow: float) -> None:
    assert fast <= slow / (1 - TOLERANCE) * (1 + 1e-9)


@pytest.mark.parametrize("seed", SOME)
def test_more_memory_is_never_slower(seed: int) -> None:
    sizes = sorted(known(seed)[1])
    steps = [_step(with_memory(random_problem(seed, 4, 4), usable)) for usable in sizes]
    for less, more in pairwise(steps):
        _not_slower(more, less)


@pytest.mark.parametrize("seed", SOME)
def test_pinning_is_never_faster_and_a_pin_of_the_best_changes_nothing(seed: int) -> None:
    problem = random_problem(seed, 4, 4)
    f = survey(problem)
    state = search(f, lambda: False)
    if state.best is None:
        return
    mesh = f.meshes.decisions(state.best.row)
    for name in ("tp", "pp", "zero_stage", "micro_batch_size"):
        same = _step(_pinned(problem, **{name: Choice(allowed=frozenset({mesh[name]}))}))
        _not_slower(same, state.incumbent_s)
        _not_slower(state.incumbent_s, same)
        _not_slower(
            state.incumbent_s, _step(_pinned(problem, **{name: Choice(forbidden=frozenset({mesh[name]}))}))
        )


@pytest.mark.parametrize("seed", SOME)
def test_idle_devices_allowed_are_never_slower(seed: int) -> None:
    problem = random_problem(seed, 3, 4)
    _not_slower(_step(_job(problem, allow_idle=True)), _step(_job(problem, allow_idle=False)))


@pytest.mark.parametrize("seed", SOME)
def test_a_wider_target_is_never_slower_on_the_same_stack(seed: int) -> None:
    problem = _job(random_problem(seed, 3, 4), choices={}, allow_idle=False)
    narrow, wide = _job(problem, target="fsdp"), _job(problem, target="deepspeed")
    narrow.__dict__["target"] = replace(wide.target, zero_stages=frozenset({2, 3}))
    _not_slower(_step(wide), _step(narrow))


@pytest.mark.parametrize("seed", SOME)
def test_two_runs_give_the_same_plan(seed: int) -> None:
    sizes = known(seed)[1]
    for usable in sizes[-1:]:
        one, two = (
            search(survey(with_memory(random_problem(seed, 4, 4), usable)), lambda: False) for _ in "ab"
        )
        assert (one.incumbent_s, one.bound, one.solved) == (two.incumbent_s, two.bound, two.solved)
        if one.best is not None and two.best is not None:
            assert one.best.row == two.best.row
            assert (one.best.candidate.counts == two.best.candidate.counts).all()


def _several(seed: int) -> Problem:
    """Return a problem whose search asks CP-SAT about several meshes."""
    return with_memory(random_problem(seed, 4, 4), known(seed)[1][-1])


def test_a_stop_by_the_clock_keeps_an_honest_bound() -> None:
    stopped = 0
    for seed in SOME:
        if not known(seed)[1]:
            continue
        problem = _several(seed)
        full = search(survey(problem), lambda: False)
        cut = search(survey(problem), lambda: True)
        if full.solved:
            stopped += 1
            assert cut.expired
            assert not cut.proven
            assert cut.bound <= full.incumbent_s * (1 + 1e-9)
            assert cut.solved == 0
    assert stopped >= 3


def test_events_count_up_and_their_incumbent_comes_down() -> None:
    events: list[SearchEvent] = []
    for seed in SOME:
        if known(seed)[1]:
            events.clear()
            state = search(survey(_several(seed)), lambda: False, events.append)
            assert [e.done for e in events] == list(range(1, state.solved + 1))
            steps = [e.incumbent_s for e in events if e.incumbent_s is not None]
            assert steps == sorted(steps, reverse=True)
            assert all(e.done <= e.total for e in events)


def _offloaded(problem: Problem) -> Everything:
    """Return all plans with states in host memory: what is searched where nothing fits without."""
    every = everything(_pinned(problem, offload=Choice(forbidden=frozenset({"none"}))))
    assert every is not None
    return every


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_solving_agrees_with_the_referee_from_end_to_end(seed: int) -> None:
    """Status, price, memory and ties: the recommended plan is an optimal one, the same in two runs."""
    every, sizes = known(seed)
    for usable in sizes:
        assert every is not None
        problem, best = with_memory(random_problem(seed, 4, 4), usable), every.optimum(usable)
        got, again = (solve_problem(problem, alternatives=2) for _ in range(2))
        assert (got.status, got.plan) == (again.status, again.plan)
        if isinf(best):
            best = _offloaded(problem).optimum(usable)
            assert any("offload" in note for note in got.notes) == (not isinf(best))
        if isinf(best):
            assert got.status == "INFEASIBLE"
            assert got.infeasibility is not None
            continue
        assert got.status == "OPTIMAL"
        assert got.estimate is not None
        assert got.estimate.fits
        assert got.objective_s is not None
        assert got.lower_bound_s <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= got.objective_s <= best * (1 + 2 * TOLERANCE)
        assert all(a.estimate.step_time_s >= got.objective_s * (1 - 2 * TOLERANCE) for a in got.alternatives)


@pytest.mark.parametrize("seed", SEEDS[:16])
def test_polishing_keeps_the_step_and_never_recomputes_more(seed: int) -> None:
    for usable in known(seed)[1]:
        f = survey(with_memory(random_problem(seed, 4, 4), usable))
        best = search(f, lambda: False).best
        if best is None:
            continue
        ceiling = best.candidate.step_s * (1 + 1e-4)
        better = MeshSolver(f.task(best.row), ceiling, 2.0).polish(best.candidate, ceiling)
        tables = f.tables.take(np.array([best.row]))
        extra = tables.backward_s[0] - tables.backward_s[0, :, :1]
        assert better.step_s <= ceiling
        assert better.peak_bytes <= usable
        assert (better.counts * extra).sum() <= (best.candidate.counts * extra).sum() * (1 + 1e-4) + 1e-12
