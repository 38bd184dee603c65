"""Steps that wait for the network chunk by chunk: the integer model finds what enumeration finds."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.step import price
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
