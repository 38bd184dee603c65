"""Which rows are fitted to, what is stored of a fit, and that what is stored is how rows are priced."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibrate import entries, file_text, report
from benchmarks.fit_constants import Constant
from benchmarks.fit_file import stored_shifts
from benchmarks.fit_left_out import price_under
from benchmarks.fit_observable import PEAK, STEP_TIME, Observable
from benchmarks.fit_rows import expressed, fit_rows, thinned
from benchmarks.fit_runs import ROOT, Runs
from benchmarks.fit_solve import Fit
from benchmarks.measured_prices import price_rows
from benchmarks.rows import BUILT_IN, Row, read_rows

GEMM = Constant("profiles", ROOT, "gemm_fraction")
LOOSE = Constant("profiles", ROOT, "fragmentation")


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    return tuple(read_rows(BUILT_IN))


@pytest.mark.parametrize("what", [STEP_TIME, PEAK], ids=lambda o: o.name)
def test_only_measured_runs_with_complete_settings_are_fitted_to(what: Observable) -> None:
    chosen = fit_rows(rows(), what)
    assert all(r.trusted and what.measured(r) is not None for r in chosen)
    able = [r for r in rows() if r.trusted and what.measured(r) is not None and r.outcome == "ok"]
    assert {r.family for r in chosen} == {r.family for r in able}


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
        assert a.row.id == b.row.id
        assert a.reason == b.reason
        assert a.step_time_s == (None if b.step_time_s is None else pytest.approx(b.step_time_s, rel=1e-3))
        assert a.peak_bytes == (None if b.peak_bytes is None else pytest.approx(b.peak_bytes, rel=1e-3))


def one_constant(what: Observable, constant: Constant) -> Fit:
    """Return a fit of one constant to some rows of one observable."""
    runs = Runs(expressed(fit_rows(rows(), what)[:12]), what)
    here = np.full(len(runs.runs), 0.1)
    return Fit(runs, {constant: 0.03}, here, {("profiles", constant.field): np.full(len(here), -0.7)})


def test_what_is_stored_of_a_fit_is_what_it_is() -> None:
    time, memory = one_constant(STEP_TIME, GEMM), one_constant(PEAK, LOOSE)
    (entry,) = entries(time)
    assert (entry.constant, entry.shift) == (GEMM, 0.03)
    assert 0 < entry.error <= GEMM.bounds.width
    import tomllib

    text = tomllib.loads(file_text(time, memory))
    assert (text["fit"]["rows"], text["fit"]["memory_rows"], text["fit"]["constants"]) == (12, 12, 2)
    assert text["fit"]["mean_over_families_and_kinds"] == pytest.approx(np.expm1(0.1), rel=1e-4)
    assert set(text["profiles"][ROOT]) == {"gemm_fraction", "fragmentation"}
    assert set(text["sample"].values()) == {0.1}
    assert "generic.gemm_fraction" in report(time)
