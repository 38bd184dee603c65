"""The stored calibration: physical, supported, and still what the cost models say."""

from functools import lru_cache

import numpy as np
import pytest

from benchmarks.fit_constants import MEMORY, ROWS_EACH
from benchmarks.fit_file import Entry, stored
from benchmarks.fit_rows import expressed
from benchmarks.fit_runs import Runs
from benchmarks.measured_prices import price_rows
from benchmarks.rows import BUILT_IN, Row, read_rows
from meshwright.costmodels.calibration import calibration


@lru_cache(maxsize=1)
def rows() -> dict[str, Row]:
    return {row.id: row for row in read_rows(BUILT_IN)}


@lru_cache(maxsize=1)
def sample() -> Runs:
    return Runs(expressed(rows()[name] for name in calibration()["sample"]))


def test_constants_are_stored() -> None:
    assert len(stored()) == calibration()["fit"]["constants"] > 0


@pytest.mark.parametrize("entry", stored(), ids=lambda e: str(e.constant))
def test_no_constant_sits_on_its_bound(entry: Entry) -> None:
    assert not entry.on_bound, "a mechanism is missing: bounds are what physics allows"


@pytest.mark.parametrize("entry", stored(), ids=lambda e: str(e.constant))
def test_the_file_tells_the_bounds_of_today(entry: Entry) -> None:
    told, c = calibration(), entry.constant
    own = told[c.kind][c.place][c.field]
    assert (own["low"], own["high"]) == (c.bounds.low, c.bounds.high)


@pytest.mark.parametrize("entry", stored(), ids=lambda e: str(e.constant))
def test_each_constant_has_runs_enough(entry: Entry) -> None:
    assert entry.rows >= ROWS_EACH
    assert entry.error <= entry.constant.bounds.width * 1.001  # runs told more than its sources


@pytest.mark.parametrize("entry", stored(), ids=lambda e: str(e.constant))
def test_each_constant_is_told_from_what_it_inherits(entry: Entry) -> None:
    assert abs(entry.shift) > entry.error


def test_there_are_ten_runs_for_each_constant() -> None:
    memory = [e for e in stored() if e.constant.field in MEMORY]
    told = calibration()["fit"]
    assert told["rows"] >= ROWS_EACH * (len(stored()) - len(memory))
    assert told["memory_rows"] >= ROWS_EACH * len(memory)


def test_a_sample_is_priced_as_it_was_when_the_constants_were_fitted() -> None:
    told = calibration()["sample"]
    priced = price_rows(rows()[name] for name in told)
    now = [np.log((p.step_time_s or np.nan) / (p.row.step_time_s or np.nan)) for p in priced]
    assert now == pytest.approx(list(told.values()), abs=2e-3), "run python -m benchmarks.calibrate --write"


def test_residuals_of_families_are_recorded() -> None:
    residuals = calibration()["residuals"]
    families = {rows()[name].family for name in calibration()["sample"]}
    assert families <= {name.rsplit(" ", 1)[0] for name in residuals}
    assert sum(each["rows"] for each in residuals.values()) == calibration()["fit"]["rows"]
    assert all(abs(each["bias"]) <= each["mape"] + 1e-9 for each in residuals.values())


def test_the_fit_is_better_than_the_sources_alone() -> None:
    told = np.abs(list(calibration()["sample"].values()))
    sourced = np.abs(sample().log_ratio({}))
    assert told.mean() < sourced.mean()
