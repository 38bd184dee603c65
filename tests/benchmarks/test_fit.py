"""The solver of the calibration, on problems whose answers are known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fit import BEND, Linearised, huber, huber_weight, solve_in_box, standard_errors

SEEDS = st.integers(0, 10_000)


def problem(seed: int = 0, rows: int = 40, width: float = 10.0) -> tuple[Linearised, np.ndarray]:
    """Return runs that two constants explain exactly, and the change that does."""
    rng = np.random.default_rng(seed)
    slopes, change = rng.normal(size=(rows, 2)), np.array([0.3, -0.2])
    zero, wide = np.zeros(2), np.full(2, 5.0)
    at = Linearised(-slopes @ change, slopes, np.ones(rows), zero, np.full(2, width), -wide, wide)
    return at, change


@given(SEEDS)
def test_what_explains_every_run_is_found(seed: int) -> None:
    at, change = problem(seed)
    assert at.solved() == pytest.approx(change, abs=1e-3)


@given(SEEDS, st.floats(1.0, 100.0))
def test_an_outlier_has_no_more_say_however_far_it_is(seed: int, far: float) -> None:
    at, _ = problem(seed)
    near, away = at.residual.copy(), at.residual.copy()
    near[0], away[0] = 10.0, 10.0 + far
    there = [replace(at, residual=r).solved() for r in (near, away)]
    assert there[0] == pytest.approx(there[1], abs=1e-2)


@given(SEEDS)
def test_a_constant_stays_in_its_bounds_and_others_make_up(seed: int) -> None:
    at, change = problem(seed)
    held = replace(at, high=np.array([0.1, 5.0]))
    got = held.solved()
    assert -5 <= got[0] <= 0.1 + 1e-12
    # reweighting ends within a ten-thousandth of the least
    assert held.objective(got) <= held.objective(np.array([0.1, change[1]])) * (1 + 1e-4)


@given(SEEDS)
def test_no_change_in_the_box_is_better(seed: int) -> None:
    at, _ = problem(seed, width=0.2)
    narrow = replace(at, low=np.full(2, -0.15), high=np.full(2, 0.25))
    best = narrow.objective(narrow.solved())
    rng = np.random.default_rng(seed)
    for other in rng.uniform(-0.15, 0.25, size=(50, 2)):
        assert best <= narrow.objective(other) + 1e-6


def test_a_constant_that_no_run_tells_about_goes_back_to_its_sources() -> None:
    at, _ = problem()
    blind = replace(at, slopes=at.slopes * np.array([1.0, 0.0]), shift=np.array([0.0, 0.4]))
    assert blind.solved()[1] == pytest.approx(-0.4, abs=1e-6)


@given(SEEDS)
def test_a_narrower_prior_holds_constants_closer(seed: int) -> None:
    at, _ = problem(seed)
    sizes = [np.abs(replace(at, width=np.full(2, w)).solved()).sum() for w in (10.0, 0.01, 0.001)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_more_runs_make_a_constant_surer() -> None:
    few, many = (standard_errors(problem(rows=rows)[0]) for rows in (10, 1000))
    assert (many < few / 5).all()


@given(st.floats(-3, 3))
def test_the_loss_bends_from_a_parabola_to_a_line(residual: float) -> None:
    loss = huber(np.array([residual]))[0]
    within = abs(residual) <= BEND
    assert loss == pytest.approx((residual / BEND) ** 2) if within else loss < (residual / BEND) ** 2
    slope = 2 * huber_weight(np.array([residual]))[0] * abs(residual) / BEND
    assert slope == pytest.approx(2 * min(abs(residual) / BEND, 1))


def test_the_box_holds_a_quadratic_at_its_edge() -> None:
    matrix, linear = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([4.0, 1.0])
    free = solve_in_box(matrix, linear, np.full(2, -9.0), np.full(2, 9.0))
    assert free == pytest.approx(np.linalg.solve(matrix, linear))
    edge = solve_in_box(matrix, linear, np.full(2, -9.0), np.array([1.0, 9.0]))
    assert edge == pytest.approx([1.0, 0.5])
