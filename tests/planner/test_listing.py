"""Plans that are listed are all that a cutoff leaves: the best of them is the mesh's own optimum."""

from collections.abc import Iterator

import numpy as np
import pytest

from meshwright.planner.cpsat import listing, mesh_solver
from meshwright.planner.cpsat.listing import list_plans
from meshwright.planner.cpsat.mesh_solver import MeshSolver
from meshwright.planner.field import Field, survey
from meshwright.planner.problem import Problem
from meshwright.planner.search import PROOF, Effort, solve_mesh
from tests.planner.small import SEEDS, fields

UNIT = 1e-5
"""Modes of a stage are chosen by whole units of time."""


def _meshes(seed: int) -> Iterator[tuple[Field, int, float]]:
    """Yield fields, meshes of them with one chunk a rank, and the least step that the referee found.

    Targets whose layers share one mode are left out: there modes do not follow from a stage's layers.
    """
    for f, every, usable in fields(seed):
        if f.problem.target.recompute_uniform:
            continue
        least = every.least_step(usable)
        for row in np.flatnonzero(f.meshes.vpp == 1)[:: max(1, len(least) // 6)].tolist():
            yield f, row, float(least[row])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_listed_plan_is_the_optimum_of_its_mesh(seed: int) -> None:
    for f, row, least in _meshes(seed):
        got = list_plans(f.task(row), 1e3)
        assert got is not None
        assert got.complete
        if got.best is None:
            assert np.isinf(least)
        else:
            assert got.best.step_s == pytest.approx(least, rel=UNIT)
            assert got.best.fits(f.limits)


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_a_cutoff_above_the_optimum_keeps_it_and_one_below_leaves_nothing(seed: int) -> None:
    for f, row, least in _meshes(seed):
        if np.isfinite(least):
            above, below = (list_plans(f.task(row), least * by) for by in (1 + 2 * UNIT, 1 - 1e-8))
            assert above is not None
            assert above.best is not None
            assert below is not None
            assert below.complete
            assert below.best is None


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_where_plans_are_many_the_list_is_no_proof_and_the_solver_goes_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST", 2)
    monkeypatch.setattr(listing, "BEAM", 1)
    for f, row, least in _meshes(seed):
        got = list_plans(f.task(row), 1e3)
        assert got is not None
        if got.best is not None:
            assert got.best.step_s >= least * (1 - 1e-9)
        outcome = solve_mesh(f, row, 1e3, None, Effort())
        assert outcome.proven
        assert outcome.bound_s <= least * (1 + 1e-9)
        if np.isfinite(least):
            assert outcome.best is not None
            assert outcome.best.step_s <= least / (1 - PROOF.tolerance) * (1 + UNIT)


@pytest.mark.parametrize(("model", "tp"), [("llama-3.1-70b", 4), ("gemma-2-9b", 2)])
def test_list_and_solver_agree_at_full_size(model: str, tp: int) -> None:
    pins = {"tp": tp, "pp": 4, "schedule": "1f1b", "micro_batch_size": 1, "zero_stage": 1}
    job = {"global_batch_size": 64, "sequence_length": 4096, "pins": pins}
    f = survey(Problem.load(model, "dgx-h100:4", job))
    row = int(f.order[0])
    solved = MeshSolver(f.task(row), 1e3, 5.0).solve(1e3, PROOF.tolerance)
    assert solved.best is not None
    listed = list_plans(f.task(row), solved.best.step_s * (1 + 1e-4))
    assert listed is not None
    assert listed.complete
    assert listed.best is not None
    assert solved.bound_s * (1 - 1e-9) <= listed.best.step_s <= solved.best.step_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_a_model_of_too_many_layers_to_list_has_the_same_optimum(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fronts of stages would fill the memory, CP-SAT decides the modes: no other plan is best."""
    monkeypatch.setattr(mesh_solver, "MOST_LAYERS_MIXED", 0)
    for f, row, least in _meshes(seed):
        assert list_plans(f.task(row), 1e3) is None
        got = solve_mesh(f, row, 1e3, None, Effort())
        assert got.proven
        assert (got.best is None) == np.isinf(least)
        if got.best is not None:
            assert got.best.step_s == pytest.approx(least, rel=1e-3)
            assert got.best.fits(f.limits)
