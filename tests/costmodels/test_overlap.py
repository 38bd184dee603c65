"""Overlap by hand."""

import numpy as np

from meshwright.costmodels.overlap import exposed_time


def test_what_does_not_fit_the_window_is_late():
    """10 s beside 8 s of compute that slows by a fifth: 8 s of window hold 6.4 s."""
    assert exposed_time(10.0, 8.0, 0.2) == 10 - 0.8 * 8


def test_what_fits_costs_its_slowdown():
    assert exposed_time(2.0, 8.0, 0.25) == 0.5


def test_arrays_broadcast():
    got = exposed_time(np.array([[4.0], [8.0]]), np.array([0.0, 4.0, 100.0]), 0.5)
    assert got.tolist() == [[4, 2, 2], [8, 6, 4]]
