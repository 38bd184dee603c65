"""What may be fitted, what is pruned, and how far a constant moves."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fit_choice import free_constants, inside, of_constants, pruned
from benchmarks.fit_constants import ROWS_EACH, TABLES, Constant
from benchmarks.fit_rows import expressed
from benchmarks.fit_runs import ROOT, Runs, moved, value_of
from benchmarks.fit_solve import Fit, linearised, room
from benchmarks.rows import BUILT_IN, read_rows

GEMM = Constant("profiles", ROOT, "gemm_fraction")
OWN = Constant("profiles", "fsdp1", "attention_fraction")


@lru_cache(maxsize=1)
def two_families() -> Runs:
    """Return runs of two families, one of which alone runs FSDP1."""
    timed = [r for r in read_rows(BUILT_IN) if r.trusted and r.step_time_s is not None]
    own = [[r for r in timed if r.family == f][:25] for f in ("llm-foundry", "megatron-moe")]
    return Runs(expressed(own[0] + own[1]))


def slopes(runs: Runs, gemm: float = -0.7, attention: float = -0.2) -> dict[tuple[str, str], np.ndarray]:
    """Return slopes of every field: those of two told, all others none."""
    none = {(tree, field): np.zeros(len(runs.runs)) for tree, table in TABLES.items() for field in table}
    told = {"gemm_fraction": gemm, "attention_fraction": attention}
    return none | {("profiles", field): np.full(len(runs.runs), slope) for field, slope in told.items()}


def hand_made(residual: float = 0.1) -> Fit:
    """Return a fit in which every run is slower than predicted by one share, and constants that say so."""
    runs = two_families()
    return Fit(runs, {GEMM: 0.02, OWN: 0.05}, np.full(len(runs.runs), residual), slopes(runs))


def test_slower_runs_than_predicted_make_products_slower_or_faster_as_they_ask() -> None:
    at = hand_made(0.1).at, hand_made(-0.1).at
    assert at[0].solved()[0] > 0 > at[1].solved()[0]  # a higher rate shortens what is predicted too long


def test_constants_that_say_nothing_are_pruned() -> None:
    fit = hand_made()
    silent = linearised(fit.runs, fit.residual, slopes(fit.runs, attention=0.0), fit.constants, {})
    kept, at = pruned(fit.constants, silent)
    assert kept == (GEMM,)
    assert at.slopes.shape == (len(fit.runs.runs), 1)


def test_constants_that_leave_go_back_to_what_they_inherit() -> None:
    at = hand_made().at
    rest = of_constants(at, np.array([0]))
    assert rest.residual == pytest.approx(at.residual - 0.05 * at.slopes[:, 1])
    assert rest.shift.tolist() == [0.02]


def test_a_constant_that_runs_push_onto_its_bound_is_left_out() -> None:
    fit = hand_made(-5.0)
    wide = linearised(fit.runs, fit.residual, slopes(fit.runs, -0.05), (GEMM,), fit.shifts)
    stretched = type(wide)(**{**vars(wide), "low": np.array([-9.0]), "width": np.array([9.0])})
    kept, _, stuck = inside((GEMM,), stretched, fit.shifts)
    assert (kept, stuck) == ((), [GEMM])


@given(st.floats(-9, 9))
def test_values_are_kept_in_their_bounds(change: float) -> None:
    for constant in (GEMM, OWN, Constant("profiles", ROOT, "overlap_cost")):
        there = moved([constant], {}, np.array([change]))
        low, high = constant.bounds.low, constant.bounds.high
        assert low - 1e-9 <= value_of(constant, there) <= high + 1e-9


def test_a_constant_on_its_bound_has_room_on_one_side_only() -> None:
    bounds = GEMM.bounds
    at_top = {GEMM: bounds.shift(1.0, bounds.high)}
    low, high = room(GEMM, at_top)
    assert high == pytest.approx(0.0, abs=1e-9)
    assert low < 0


@pytest.mark.parametrize(("others", "kind"), [(ROWS_EACH - 1, "architectures"), (ROWS_EACH, "accelerators")])
def test_an_accelerator_has_a_constant_of_its_own_beside_another_of_its_architecture(
    others: int, kind: str
) -> None:
    timed = [r for r in read_rows(BUILT_IN) if r.trusted and r.step_time_s is not None]
    row = next(r for r in timed if r.accelerator == "a100-sxm-80gb" and r.family == "llm-foundry")
    boards = ["a100-sxm-80gb"] * 2 * ROWS_EACH + ["a100-sxm-40gb"] * others
    runs = Runs(expressed([replace(row, id=str(n), accelerator=b) for n, b in enumerate(boards)]))
    every = {key: np.ones(len(runs.runs)) for key in slopes(runs)}
    places = {(c.kind, c.place) for c in free_constants(runs, every) if c.kind != "profiles"}
    assert ("architectures", "ampere") in places
    assert (("accelerators", "a100-80gb-sxm") in places) == (kind == "accelerators")


def test_a_place_has_one_constant_for_each_ten_runs() -> None:
    runs = two_families()
    every = {key: np.ones(len(runs.runs)) for key in slopes(runs)}
    free = free_constants(runs, every)
    assert free
    for kind, place in {(c.kind, c.place) for c in free}:
        own = [c for c in free if (c.kind, c.place) == (kind, place)]
        assert len(own) * ROWS_EACH <= max(runs.reached(c).sum() for c in own)
