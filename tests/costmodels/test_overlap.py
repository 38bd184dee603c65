"""Overlap by hand."""

import numpy as np

from meshwright.costmodels.overlap import exposed_in_turn, exposed_time, ready_in_turn


def test_what_does_not_fit_the_window_is_late():
    """10 s beside 8 s of compute that slows by a fifth: 8 s of window hold 6.4 s."""
    assert exposed_time(10.0, 8.0, 0.2) == 10 - 0.8 * 8


def test_what_fits_costs_its_slowdown():
    assert exposed_time(2.0, 8.0, 0.25) == 0.5


def test_parts_wait_for_each_other():
    """Parts of 6, 2 and 3 s, ready 7, 5 and 1 s before the end: sent without a break, until 4 s behind it.

    Had the first taken 9 s, all would be 3 s later.
    """
    windows = np.array([7.0, 5.0, 1.0])
    late, part = exposed_in_turn(np.array([[6.0, 2.0, 3.0], [9.0, 2.0, 3.0], [1.0, 1.0, 1.0]]), windows, 0.0)
    assert late.tolist() == [4, 7, 0]
    assert part.tolist() == [0, 0, -1]
    late, part = exposed_in_turn(np.array([1.0, 1.0, 3.0]), windows, 0.5)
    assert (late, part) == (0.5 * 2 + 3 - 0.5 * 1, 2)


def test_what_is_needed_later_hides_until_then():
    """Parts of 4 and 6 s; a first pass of 1 s hides a second more. Hiding may cost a quarter."""
    parts, passes = np.array([4.0, 6.0]), np.ones(2)
    assert ready_in_turn(parts, passes, 1.0, 0.0).tolist() == [4 - 1, 10 - 1]
    assert ready_in_turn(parts, passes, 1.0, 0.25).tolist() == [4 + 0.25 * 6 - 0.75, 10 - 0.75]
    assert ready_in_turn(parts, passes, 0.5, 0.0).tolist() == [4 + 0.5 * 6 - 0.5, 10 - 0.5]
    assert ready_in_turn(parts, 100 * passes, 1.0, 0.25).tolist() == [0.25 * 10, 0]
    assert ready_in_turn(parts, passes, 0.0, 0.25).tolist() == [10, 10]


def test_hiding_what_is_still_to_come_costs_those_that_wait_before_it():
    """Behind the second of three parts 8 s are still to come, of which a quarter is lost before it starts."""
    parts, passes = np.array([4.0, 6.0, 8.0]), np.array([1.0, 2.0, 4.0])
    got = ready_in_turn(parts, passes, 1.0, 0.25).tolist()
    assert got == [4 + 0.25 * 14 - 0.75, 10 + 0.25 * 8 - 1.5, 18 - 3]


def test_arrays_broadcast():
    got = exposed_time(np.array([[4.0], [8.0]]), np.array([0.0, 4.0, 100.0]), 0.5)
    assert got.tolist() == [[4, 2, 2], [8, 6, 4]]
