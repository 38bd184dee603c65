"""What may be fitted, what is pruned, and what becomes of constants when a family leaves."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import calibrate
from benchmarks.calibrate import (
    Fit,
    expressed,
    fit_rows,
    linearised,
    moved,
    price_under,
    pruned,
    room,
    thinned,
    without,
)
from benchmarks.fit_constants import ROWS_EACH, Constant
from benchmarks.fit_file import stored_shifts
from benchmarks.fit_runs import ROOT, Runs, value_of
from benchmarks.measured_prices import price_rows
from benchmarks.rows import BUILT_IN, Row, read_rows

GEMM = Constant("profiles", ROOT, "gemm_fraction")
OWN = Constant("profiles", "fsdp1", "attention_fraction")


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    return tuple(read_rows(BUILT_IN))


@lru_cache(maxsize=1)
def two_families() -> Runs:
    """Return runs of two families, one of which alone runs FSDP1."""
    timed = [r for r in rows() if r.trusted and r.step_time_s is not None]
    own = [[r for r in timed if r.family == f][:25] for f in ("llm-foundry", "megatron-moe")]
    return Runs(expressed(own[0] + own[1]))


def hand_made(residual: float = 0.1) -> Fit:
    """Return a fit in which every run is slower than predicted by one share, and constants that say so."""
    runs = two_families()
    here = np.full(len(runs.runs), residual)
    constants = (GEMM, OWN)
    slopes = np.stack([-0.7 * runs.reached(GEMM), -0.2 * runs.reached(OWN)], axis=-1)
    shifts = {GEMM: 0.02, OWN: 0.05}
    return Fit(runs, constants, shifts, linearised(runs, here, slopes, constants, shifts))


def test_what_a_family_alone_supported_falls_back_when_it_leaves() -> None:
    left = without(hand_made(), "llm-foundry")
    assert left[OWN] == pytest.approx(0.0, abs=1e-9)
    assert left[GEMM] != 0
    assert without(hand_made(), "megatron-moe")[OWN] != 0


def test_a_family_that_leaves_has_no_say() -> None:
    fit = hand_made()
    loud = fit.at.residual.copy()
    loud[[r.row.family == "megatron-moe" for r in fit.runs.runs]] = 9.0
    other = linearised(fit.runs, loud, fit.at.slopes, fit.constants, fit.shifts)
    changed = Fit(fit.runs, fit.constants, fit.shifts, other)
    for constant, shift in without(changed, "megatron-moe").items():
        assert shift == pytest.approx(without(fit, "megatron-moe")[constant], abs=1e-9)


def test_slower_runs_than_predicted_make_products_faster_or_slower_as_they_ask() -> None:
    slow, fast = (without(hand_made(residual), "none")[GEMM] for residual in (-0.1, 0.1))
    assert slow < hand_made().shifts[GEMM] < fast


def test_constants_that_say_nothing_are_pruned() -> None:
    fit = hand_made()
    silent = linearised(fit.runs, fit.at.residual, fit.at.slopes * [1.0, 0.0], fit.constants, {})
    kept, at = pruned(fit.constants, silent)
    assert kept == (GEMM,)
    assert at.slopes.shape == (len(fit.runs.runs), 1)


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


def test_only_timed_runs_with_complete_settings_are_fitted_to() -> None:
    chosen = fit_rows(rows())
    assert all(r.trusted and r.step_time_s is not None for r in chosen)
    families = {r.family for r in rows() if r.trusted and r.step_time_s is not None and r.outcome == "ok"}
    assert {r.family for r in chosen} == families


@given(st.integers(1, 300), st.integers(2, 50))
def test_thinning_keeps_the_ends_and_the_order(size: int, most: int) -> None:
    kept = thinned(range(size), most)
    assert len(kept) == min(size, most)
    assert kept[0] == 0
    assert kept[-1] == size - 1
    assert kept == sorted(set(kept))


def test_the_stored_constants_price_rows_as_they_are_priced() -> None:
    some = list(rows())[::149]
    ours, theirs = price_under(some, stored_shifts()), price_rows(some)
    for a, b in zip(ours, theirs, strict=True):
        assert a.row is b.row
        assert a.reason == b.reason
        assert a.step_time_s == (None if b.step_time_s is None else pytest.approx(b.step_time_s, rel=1e-3))


def test_a_place_has_one_constant_for_each_ten_runs() -> None:
    runs = two_families()
    slopes = {
        (table, field): np.ones(len(runs.runs))
        for table, fields in calibrate.TABLES.items()
        for field in fields
    }
    free = calibrate.free_constants(runs, slopes)
    for kind, place in {(c.kind, c.place) for c in free}:
        own = [c for c in free if (c.kind, c.place) == (kind, place)]
        assert len(own) * ROWS_EACH <= max(runs.reached(c).sum() for c in own)
