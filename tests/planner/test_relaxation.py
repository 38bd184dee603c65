"""The relaxation bounds the model that it relaxes, and finds the paths that several plans share."""

import numpy as np
import pytest
from ortools.sat.python import cp_model

from meshwright.planner.cpsat import mesh_solver
from meshwright.planner.cpsat.mesh_solver import MeshSolver
from meshwright.planner.cpsat.relaxation import Relaxation
from meshwright.planner.field import Field, survey
from meshwright.planner.problem import Problem

PRIZES, WEIGHTS, ROOM = (60, 100, 120), (10, 20, 30), 50


def _knapsack() -> tuple[cp_model.CpModel, list[cp_model.IntVar], cp_model.IntVar]:
    model = cp_model.CpModel()
    taken = [model.new_bool_var(f"x{i}") for i in range(3)]
    missed = model.new_int_var(0, sum(PRIZES), "missed")
    model.add(sum(w * x for w, x in zip(WEIGHTS, taken, strict=True)) <= ROOM)
    model.add(missed == sum(PRIZES) - sum(p * x for p, x in zip(PRIZES, taken, strict=True)))
    model.minimize(missed)
    return model, taken, missed


def test_the_relaxation_of_a_knapsack_is_its_fractional_optimum() -> None:
    model, taken, missed = _knapsack()
    relaxed = Relaxation(model)
    assert relaxed.solve()
    assert relaxed.values(taken) == pytest.approx([1, 1, 2 / 3])
    assert relaxed.values([missed])[0] == pytest.approx(40)


def test_constraints_that_join_later_count() -> None:
    model, taken, missed = _knapsack()
    relaxed = Relaxation(model)
    assert relaxed.solve()
    model.add_exactly_one(taken)
    assert relaxed.solve()
    assert relaxed.values([missed])[0] == pytest.approx(sum(PRIZES) - max(PRIZES))
    model.add(sum(taken) >= 2)
    assert not relaxed.solve()


def _crowded() -> tuple[Field, int]:
    """Return an interleaved mesh whose stages are given and whose memory asks for recomputation."""
    pins = {"tp": 8, "pp": 4, "vpp": 5, "micro_batch_size": 1, "zero_stage": 0}
    job = {"global_batch_size": 16, "sequence_length": 16384, "pins": pins}
    f = survey(Problem.load("llama-3.1-70b", "dgx-h100:4", job))
    return f, int(f.order[0])


def test_cuts_of_the_relaxation_raise_the_bound_and_leave_the_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f, row = _crowded()
    best = MeshSolver(f.task(row), 1e3, 20.0).solve(1e3, 1e-4).best
    assert best is not None
    assert best.counts[:, :, 1:].any()
    made = MeshSolver(f.task(row), best.step_s * 1.01, 20.0)
    made.objective.minimise()
    relaxed, known = Relaxation(made.model), len(made.objective.known)
    assert relaxed.solve()
    before = relaxed.values([made.objective.finish])[0]
    made._cut_relaxed()
    assert len(made.objective.known) > known
    assert relaxed.solve()
    after = relaxed.values([made.objective.finish])[0]
    assert before < after <= best.step_s / made.scaled.unit_s * (1 + 1e-6)
    monkeypatch.setattr(mesh_solver, "RELAXED_ROUNDS", 0)
    plain = MeshSolver(f.task(row), best.step_s * 1.01, 20.0).solve(best.step_s * 1.01, 1e-4)
    again = made.solve(best.step_s * 1.01, 1e-4)
    assert again.best is not None
    assert plain.best is not None
    assert np.isclose(again.best.step_s, plain.best.step_s, rtol=3e-4)
    assert again.rounds <= plain.rounds
