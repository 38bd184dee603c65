"""Reductions of the chunks of a rank: beside passes still to come, and never a reason to be slow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.completion import late_reduction
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.schedule import build
from tests.costmodels.cases import ROUNDING
from tests.strategies import seconds, timed_schedules

shares = st.floats(0, 1)


def drawn(data, schedule):
    """Return seconds that the gradients of each chunk take."""
    n = schedule.num_chunks
    return np.array(data.draw(st.lists(seconds(), min_size=n, max_size=n)))


def test_two_chunks_a_rank_by_hand():
    """Two micro-batches, passes of 1 s: each rank ends with B B of its later chunk and B B of its first.

    Reductions of 4 s each: the later chunk's begin 3 s before the end, and those of the first follow. If the
    later chunk's take 1 s, the first waits for its own alone.
    """
    schedule = build("interleaved", 2, 2, 2)
    times = simulate(schedule, 1, 1, 0)
    assert (times.end_s[:, None] - times.last_backward_start_s[schedule.completed]).tolist() == [[3, 1]] * 2
    late, chunk = late_reduction(schedule, np.full(4, 4.0), times, 1.0, 0.0)
    assert late.tolist() == [8 - 3] * 2
    assert chunk.tolist() == [2, 3]
    late, chunk = late_reduction(schedule, np.array([4.0, 4.0, 1.0, 1.0]), times, 1.0, 0.0)
    assert late.tolist() == [4 - 1] * 2
    assert chunk.tolist() == [0, 1]
    late, chunk = late_reduction(schedule, np.array([1.0, 1.0, 2.0, 2.0]), times, 1.0, 0.25)
    assert late.tolist() == [0.25 * 3] * 2
    assert chunk.tolist() == [-1] * 2


@given(timed_schedules(), st.data(), shares, shares)
def test_reductions_beside_later_passes_are_late_no_longer_than_behind_the_last_one(case, data, share, cost):
    schedule, times = case[0], simulate(*case)
    reduction_s = drawn(data, schedule)
    late, chunk = late_reduction(schedule, reduction_s, times, share, cost)
    total = reduction_s[schedule.chunks_of_rank].sum(axis=1)
    window = times.end_s - times.last_backward_start_s[schedule.completed[:, -1]]
    behind = exposed_time(total, share * window, cost)
    assert (late >= cost * total / ROUNDING).all()
    assert (late <= behind * ROUNDING).all()
    if schedule.vpp == 1:
        assert late.tolist() == behind.tolist()
    waited = chunk >= 0
    assert (schedule.rank_of_chunk[chunk[waited]] == np.flatnonzero(waited)).all()


@given(timed_schedules(), st.data(), shares, shares)
def test_no_rank_is_done_earlier_when_a_pass_takes_longer(case, data, share, cost):
    """A longer pass leaves more room to hide reductions, by no more than the rank ends later."""
    schedule, *times = case
    reduction_s, chunk = drawn(data, schedule), data.draw(st.integers(0, schedule.num_chunks - 1))
    which = data.draw(st.sampled_from((0, 1, 3) if schedule.split else (0, 1)))
    longer = [t.copy() if np.ndim(t) else t for t in times]
    longer[which][chunk] += data.draw(seconds())
    quick, slow = (simulate(schedule, *each) for each in (times, longer))
    now, then = (t.end_s + late_reduction(schedule, reduction_s, t, share, cost)[0] for t in (quick, slow))
    assert (then >= now / ROUNDING).all()


@given(timed_schedules(), st.data(), shares)
def test_where_nothing_overlaps_all_reductions_follow_the_end(case, data, cost):
    schedule, times = case[0], simulate(*case)
    reduction_s = drawn(data, schedule)
    late, _ = late_reduction(schedule, reduction_s, times, 0.0, cost)
    assert late == pytest.approx(reduction_s[schedule.chunks_of_rank].sum(axis=1))
