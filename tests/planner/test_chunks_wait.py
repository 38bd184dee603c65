"""Steps that wait for the network chunk by chunk: the integer model finds what enumeration finds."""

from dataclasses import replace

import numpy as np
import pytest
from ortools.sat.python import cp_model

from meshwright.costmodels.step import gather_times, price
from meshwright.planner.cpsat.mesh_solver import MeshSolver, MeshTask
from meshwright.planner.field import survey
from meshwright.planner.search import TOLERANCE
from tests.referees.exhaustive import assignments
from tests.referees.problems import random_problem, with_profile, with_uneven_chunks

SCHEDULES = ("interleaved", "interleaved_zb", "zbv", "v_half", "dualpipev")
CUTOFF_S = 1e3
SLOWER = (0.5, 1.0, 2.0)
"""A layer's reduction in units of all its backward passes: chunks are late from the last or first on.

Gathering its parameters takes as many units of its forward pass, divided by ten."""


def _late(task: MeshTask, slower: float, rng: np.random.Generator) -> MeshTask:
    """Return the task on a network so slow that layers are reduced as long as they run, or so."""
    passes = int(task.strategies.num_microbatches[0]) * task.tables.backward_s[..., 0]
    reduce_s = slower * passes * rng.uniform(0.5, 1.5, passes.shape)
    gather_s = 10 * slower * task.tables.forward_s * rng.uniform(0.5, 1.5, passes.shape)
    return replace(task, tables=replace(task.tables, reduce_s=reduce_s, gather_s=gather_s))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_best_plan_is_found_where_chunks_wait_for_their_network(schedule: str) -> None:
    solved = early = held = 0
    for seed in range(900, 912):
        rng = np.random.default_rng(seed)
        problem = with_uneven_chunks(random_problem(seed, 4, 4, {"pp": ">=2", "schedule": schedule}))
        shares = rng.choice((0.5, 0.9, 1.0), 2).tolist()
        problem = with_profile(problem, overlap_gradients=shares[0], overlap_parameters=shares[1])
        f = survey(problem)
        for row in rng.permutation(len(f.meshes))[:1].tolist():
            plans = assignments(problem, int(f.meshes.pp[row] * f.meshes.vpp[row]), False, True)
            same = np.zeros(len(plans), dtype=np.int64)
            for task in (_late(f.task(row), slower, rng) for slower in SLOWER):
                alike = task.strategies.take(same), plans, task.tables.take(same)
                best = price(f.setting, *alike).step_time_s.min()
                solver = MeshSolver(task, CUTOFF_S, 5.0)
                got = solver.solve(CUTOFF_S, TOLERANCE)
                assert got.proven
                assert got.best is not None
                assert got.bound_s <= best * (1 + 1e-9)
                assert best * (1 - 1e-9) <= got.best.step_s <= best / (1 - TOLERANCE) * (1 + 1e-9)
                cuts = solver.objective.known
                solved, early = solved + 1, early + any(len(cut) > 1 for cut in cuts)
                held += any(path.origin >= solver.schedule.pp for cut in cuts for path in cut)
    assert solved >= 6
    assert early
    assert held


@pytest.mark.parametrize("cost", [0.0, 0.25])
@pytest.mark.parametrize("slower", [0.01, 0.3, 2.0])
def test_chunks_of_the_integer_model_start_when_they_are_gathered_for(cost: float, slower: float) -> None:
    """Of the plan that waits least for three chunks a rank, within a few units of its resolution."""
    problem = random_problem(927, 6, 2, {"pp": "2", "vpp": "3", "schedule": "interleaved"})
    problem = with_profile(with_uneven_chunks(problem), overlap_parameters=0.9, overlap_cost=cost)
    f, rng = survey(problem), np.random.default_rng(0)
    task = _late(f.task(0), slower, rng)
    solver = MeshSolver(task, CUTOFF_S, 5.0)
    ready = solver.objective.ready
    solver.model.minimize(cp_model.LinearExpr.sum(ready))
    answer = cp_model.CpSolver()
    assert answer.solve(solver.model) == cp_model.OPTIMAL
    counts = np.zeros((1, len(ready), task.tables.gather_s.shape[-1]), dtype=np.int64)
    for chunk, row in enumerate(solver.variables.counts):
        for (kind, _), number in row.items():
            counts[0, chunk, kind] += answer.value(number)
    assert counts.sum() == problem.model.num_layers
    forward = counts @ task.tables.forward_s[0] + task.tables.pass_s[0]
    _, starts = gather_times(task.setting, solver.schedule, task.tables, np.array([0]), counts, forward)
    units = [answer.value(r) * solver.scaled.unit_s for r in ready]
    assert units == pytest.approx(starts[0], abs=20 * solver.scaled.unit_s)
