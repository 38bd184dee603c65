"""The integer model of a mesh: below the price, above the memory, and exact where it has been cut."""

import numpy as np
import pytest
from ortools.sat.python import cp_model

from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.step import price
from meshwright.planner.cpsat.mesh_solver import MeshSolver
from meshwright.planner.cpsat.scaling import MEMORY_UNIT_BYTES, RESOLUTION, Limits, scale
from meshwright.planner.cpsat.variables import is_uniform
from meshwright.planner.field import survey
from meshwright.planner.heuristic import even_plans
from meshwright.planner.problem import Problem
from meshwright.planner.search import search
from tests.planner.small import SEEDS, fields
from tests.referees.exhaustive import assignments
from tests.referees.problems import random_problem, tiny_model, with_memory

CUTOFF_S = 1e3


@pytest.mark.parametrize("seed", SEEDS)
def test_given_stages_are_solved_to_their_best_recomputation(seed: int) -> None:
    """The integer objective stays below the price, its memory above: the bound proves, the plan fits."""
    rng = np.random.default_rng(seed)
    for f, every, usable in fields(seed):
        for row in rng.permutation(len(f.meshes))[:3].tolist():
            chunks = int(f.meshes.pp[row] * f.meshes.vpp[row])
            plans = assignments(f.problem, chunks, f.meshes.vpp[row] > 1)
            kinds = plans[rng.integers(len(plans))].sum(axis=2)
            made = MeshSolver(f.task(row), CUTOFF_S, 5.0)
            for c, cells in enumerate(made.variables.counts):
                for kind in {k for k, _ in cells}:
                    held = cp_model.LinearExpr.sum([n for (k, _), n in cells.items() if k == kind])
                    made.model.add(held == int(kinds[c, kind]))
            got = made.solve(CUTOFF_S, 3e-4)
            alike = plans[(plans.sum(axis=3) == kinds).all(axis=(1, 2))]
            same = np.full(len(alike), row)
            priced = price(f.setting, f.meshes.take(same).strategies(), alike, f.tables.take(same))
            steps, peaks = priced.step_time_s, priced.peak_bytes.max(axis=1)
            best = steps[peaks <= usable].min(initial=np.inf)
            safe = steps[peaks <= usable - every.slack_bytes].min(initial=np.inf)
            assert got.bound_s <= safe * (1 + 1e-9)
            if got.best is None:
                assert np.isinf(safe)
            else:
                assert got.best.peak_bytes <= usable
                assert best * (1 - 1e-9) <= got.best.step_s <= safe / (1 - 3e-4) * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_rounding_is_below_a_unit_a_layer(seed: int) -> None:
    for f, _, usable in fields(seed):
        one = f.tables.take(np.array([0]))
        s = scale(f.setting, f.meshes.take([0]).strategies(), one, f.want, Limits(usable))
        blocks = f.want.blocks
        assert s.forward[blocks].min() in (RESOLUTION - 1, RESOLUTION)
        for exact, whole in ((one.forward_s, s.forward), (one.backward_s, s.backward)):
            lost = exact[0] / s.unit_s - whole
            assert ((lost >= 0) & (lost < 1)).all()
        added = s.saved - (1 + f.setting.profile.fragmentation) * one.saved_bytes[0] / MEMORY_UNIT_BYTES
        assert ((added >= 0) & (added < 1)).all()
        assert s.floor_time(3.5 * s.unit_s) == 3


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_no_plan_takes_longer_than_one_layer_after_another(seed: int) -> None:
    for f, every, usable in fields(seed):
        slowest = np.zeros(len(f.meshes))
        np.maximum.at(slowest, every.row, every.step_s)
        for row in range(len(f.meshes)):
            task = f.task(row)
            s = scale(f.setting, task.strategies, task.tables, task.want, Limits(usable))
            chunks, m = int(task.strategies.chunks[0]), int(task.strategies.num_microbatches[0])
            assert slowest[row] <= s.longest(task.want.layers, chunks, m) * s.unit_s * (1 + 1e-3)


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_a_mesh_is_solved_to_its_own_optimum(seed: int) -> None:
    for f, every, usable in fields(seed):
        least = every.least_step(usable)
        for row in np.random.default_rng(seed).permutation(len(f.meshes))[:3].tolist():
            got = MeshSolver(f.task(row), CUTOFF_S, 5.0).solve(CUTOFF_S, 3e-4)
            assert got.proven
            assert got.bound_s <= least[row] * (1 + 1e-9)
            if np.isinf(least[row]):
                assert got.best is None
            else:
                assert got.best is not None
                assert least[row] * (1 - 1e-9) <= got.best.step_s <= least[row] / (1 - 3e-4) * (1 + 1e-9)
                assert got.best.cuts[-1] == f.problem.model.num_layers
                assert got.best.counts.shape[1:] == (len(f.problem.model.kinds), len(MODES))


def test_nothing_is_faster_than_a_cutoff_below_the_optimum() -> None:
    for f, every, usable in fields(SEEDS[1]):
        least = every.least_step(usable)
        for row in np.flatnonzero(np.isfinite(least))[:5].tolist():
            got = MeshSolver(f.task(row), least[row] * 0.999, 5.0).solve(least[row] * 0.999, 3e-4)
            assert got.best is None
            assert got.proven


def test_a_stack_is_uniform_and_a_pattern_of_windows_is_not() -> None:
    rng = np.random.default_rng(0)
    assert is_uniform(tiny_model(rng, even=True))
    patterned = [tiny_model(np.random.default_rng(i)) for i in range(20)]
    assert {is_uniform(g) for g in patterned if len(g.kinds) > 3} == {False}


def test_a_middle_stage_may_hold_all_blocks_between_bare_ends() -> None:
    """Embedding and head so large that they fill their ranks: the exhaustive referee's problem 115."""
    problem = with_memory(random_problem(115, 2, 8), 2_826_850.0)
    f = survey(problem)
    best = search(f, lambda: False).best
    assert best is not None
    assert best.candidate.counts[:, f.want.blocks].sum(axis=(1, 2)).tolist() == [0, 2, 0]


def test_ranks_that_must_recompute_some_of_their_chunks_are_refuted_where_a_step_is_one_wave() -> None:
    """As many micro-batches as ranks, eight one-layer chunks each: layers are whole, and one is waited for.

    The bound of layers in parts lies some 5 % below what CP-SAT has to refute.
    """
    pins = {"tp": "4", "cp": "2", "pp": "16", "vpp": "8", "zero_stage": "1", "micro_batch_size": "1"}
    job = {"sequence_length": 8192, "global_batch_size": 2048, "pins": pins}
    f = survey(Problem.load("llama-3.1-405b", "dgx-h100:2048", job))
    row = int(f.order[np.argsort(f.bounds[f.order], kind="stable")][0])
    start = even_plans(f, np.array([row]))[0].candidate
    cutoff = 0.945 * start.step_s
    got = MeshSolver(f.task(row), cutoff, 4.0).solve(cutoff, 3e-4, start)
    assert got.proven
    assert got.best is None
