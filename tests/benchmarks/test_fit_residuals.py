"""Residuals by group: which runs are in one, and what their quantiles are."""

import tomllib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy_validated import validated_figures, validated_text
from benchmarks.fit_residuals import (
    MEMORY_GROUPS,
    TIME_GROUPS,
    Residual,
    grouped,
    memory_residuals,
    quantiles,
    residual_text,
    time_residuals,
    unseen,
)
from benchmarks.measured_prices import price_rows
from benchmarks.rows import BUILT_IN, read_rows
from meshwright.costmodels.residuals import UNSEEN, measured_accelerators
from meshwright.hardware.catalogue import accelerator_names

VALUES = st.lists(st.floats(-1, 3), min_size=1, max_size=20)


def one(error: float, family: str = "a", accelerator: str = "x", **fields: str) -> Residual:
    named = {
        "profile": "p",
        "accelerator": accelerator,
        "architecture": "g",
        "kind": "dense",
        "counter": "reserved",
    }
    return Residual(error, family, named | fields)


@given(VALUES, st.floats(0.01, 9), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_rise_stay_inside_and_do_not_depend_on_the_scale_of_weights(
    values: list[float], scale: float, shares: list[float]
) -> None:
    found = quantiles(np.array(values), np.ones(len(values)), sorted(shares))
    assert found == sorted(found)
    assert min(values) <= found[0] <= found[-1] <= max(values)
    assert quantiles(np.array(values), np.full(len(values), scale), sorted(shares)) == pytest.approx(found)


def test_the_median_of_equal_weights_is_the_median() -> None:
    assert quantiles(np.array([3.0, 1.0, 2.0]), np.ones(3), (0.5,)) == pytest.approx([2.0])


def test_a_large_family_has_one_vote_in_a_group() -> None:
    runs = [*(one(0.01, "large") for _ in range(500)), *(one(0.3, "small") for _ in range(5))]
    (every,) = grouped(runs, {"all": ()})
    low, high = quantiles(every.errors, every.weights, (0.3, 0.7))
    assert (low, high) == pytest.approx((0.01, 0.3), abs=1e-3)
    assert (every.runs, every.families) == (505, 2)


def test_groups_hold_the_runs_that_share_their_fields() -> None:
    runs = [one(0.1), one(0.2, accelerator="y"), one(0.3, profile="q")]
    sizes = {group.of: group.runs for group in grouped(runs, TIME_GROUPS)}
    assert sizes[()] == sizes[("kind", "dense"),] == 3
    assert sizes[("accelerator", "x"), ("kind", "dense")] == 2
    assert sizes[("profile", "p"), ("accelerator", "x"), ("kind", "dense")] == 1
    assert max(Counter(g.of for g in grouped(runs, MEMORY_GROUPS)).values()) == 1


def test_runs_of_a_family_alone_on_its_accelerator_are_unseen() -> None:
    runs = [one(0.1, "a"), one(0.2, "b"), one(0.3, "b", accelerator="y")]
    (only,) = unseen(runs)
    assert (only.error, only.fields["accelerator"]) == (0.3, UNSEEN)


def test_errors_are_measured_over_predicted_and_the_file_holds_them_without_their_mean() -> None:
    rows = [r for r in read_rows(BUILT_IN) if r.trusted and r.peak_memory_gib and r.memory_metric]
    priced = price_rows(rows[:30])
    times, peaks = time_residuals(priced), memory_residuals(priced)
    error = next(p.error for p in priced if p.error is not None and p.row.step_time_s)
    assert (1 + times[0].error) * (1 + error) == pytest.approx(1)
    read = tomllib.loads(residual_text(priced, priced))
    every = next(g for g in read["memory"]["groups"] if not g["of"])
    assert every["runs"] == len(peaks)
    assert every["bias"] == pytest.approx(np.mean([p.error for p in peaks]), rel=1e-4)
    assert every["errors"][0] == pytest.approx(min(p.error for p in peaks) - every["bias"], abs=1e-4)
    assert next(g for g in read["step_time"]["groups"] if not g["of"])["runs"] == len(times)


def test_what_was_validated_names_every_accelerator_once_as_measured_or_not() -> None:
    found = validated_figures()
    measured = {f["of"]["accelerator"] for f in found["accelerators"]} - {UNSEEN}
    assert measured == measured_accelerators()
    assert measured | set(found["unmeasured"]) == set(accelerator_names())
    text = validated_text(found)
    for name in accelerator_names():
        assert name in text
