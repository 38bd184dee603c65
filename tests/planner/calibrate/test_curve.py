"""Fitting a formula: what explains everything is found, within bounds, whatever one sample says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.calibrate.curve import fit

SIZES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3])
BOUNDS = {"start": (1e-3, 1e3), "rate": (1e-3, 1e3)}
GUESS = {"start": 1.0, "rate": 1.0}
positive = st.floats(0.05, 50.0)


def line(values):
    return values["start"] + SIZES / values["rate"]


@given(positive, positive)
def test_a_latency_and_a_rate_are_found(start, rate):
    truth = {"start": start, "rate": rate}
    got = fit(line, line(truth), GUESS, BOUNDS)
    assert np.abs(got.residual).max() < 1e-2
    assert got.values["rate"] == pytest.approx(rate, rel=0.02)


@given(positive, positive, st.integers(0, len(SIZES) - 1))
def test_one_spoiled_sample_moves_the_rest_little(start, rate, spoiled):
    seconds = line({"start": start, "rate": rate})
    seconds[spoiled] *= 20.0
    got = fit(line, seconds, GUESS, BOUNDS)
    assert np.sort(np.abs(got.residual))[:-2].max() < 0.25


@given(positive)
def test_constants_stay_within_their_bounds(rate):
    bounds = {"start": (1e-3, 1e3), "rate": (1.0, 2.0)}
    got = fit(line, line({"start": 1.0, "rate": rate}), GUESS, bounds)
    assert 1.0 - 1e-9 <= got.values["rate"] <= 2.0 + 1e-9
