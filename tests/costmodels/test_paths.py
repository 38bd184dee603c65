"""Paths through a schedule: bounds that are attained where they are critical."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.paths import (
    base_paths,
    base_table,
    critical_paths,
    path_length,
    slow_chunk_paths,
)
from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.schedule import build, names
from tests.costmodels.cases import ROUNDING, smallest_vpp
from tests.strategies import held_up_schedules, schedules, seconds, timed_schedules


@given(held_up_schedules(), st.data())
def test_a_path_that_is_critical_somewhere_is_a_bound_everywhere(case, data):
    schedule, *times = case
    n = schedule.num_chunks
    forward_s, backward_s, weight_s = (
        np.array(data.draw(st.lists(seconds(), min_size=n, max_size=n))) for _ in range(3)
    )
    transfer_s, weight_s = data.draw(seconds()), schedule.split * weight_s
    starts = {"weight_s": weight_s, "ready_s": data.draw(seconds()) * (np.arange(n) % 2)}
    end_s = simulate(schedule, *times).end_s
    for path in critical_paths(schedule, forward_s, backward_s, transfer_s, **starts):
        assert path_length(path, *times) <= end_s[path.rank] * ROUNDING


@given(held_up_schedules())
def test_base_paths_are_bounds_for_any_times(case):
    schedule, *times = case
    end_s = simulate(schedule, *times).end_s
    for path in base_paths(schedule):
        assert path_length(path, *times) <= end_s[path.rank] * ROUNDING


@given(schedules(), seconds())
def test_base_paths_are_few_and_exact_for_equal_chunks(schedule, unit):
    paths = base_paths(schedule)
    assert len(set(paths)) == len(paths) <= (7 if schedule.split else 5) * schedule.pp
    times = unit, unit * (1 if schedule.split else 2), unit / 100, unit * schedule.split
    end_s = simulate(schedule, *times).end_s
    for rank in range(schedule.pp):
        longest = max(path_length(p, *times) for p in paths if p.rank == rank)
        assert longest == pytest.approx(end_s[rank], rel=1e-12)


@given(timed_schedules())
def test_a_table_of_paths_has_their_lengths(case):
    schedule, *times = case
    paths = base_paths(schedule)
    table = base_table(schedule)
    forward, backward, weight = (np.broadcast_to(times[i], schedule.num_chunks) for i in (0, 1, 3))
    lengths = table.lengths(forward, backward, float(times[2]), weight)
    assert lengths == pytest.approx(np.array([float(path_length(path, *times)) for path in paths]), rel=1e-12)
    assert table.rank.tolist() == [path.rank for path in paths]
    assert set(table.origin.tolist()) == {0}  # of chunks that nothing holds up the first alone begins


@given(held_up_schedules())
def test_a_critical_path_is_as_long_as_its_rank_ends_late(case):
    schedule, *times = case
    passes, starts = times[:3], dict(zip(("weight_s", "ready_s"), times[3:], strict=True))
    together = critical_paths(schedule, *passes, **starts)
    end_s = simulate(schedule, *times).end_s
    assert [path.rank for path in together] == list(range(schedule.pp))
    for rank, path in enumerate(together):
        (alone,) = critical_paths(schedule, *passes, [rank], **starts)
        assert path == alone
        assert path_length(path, *times) == pytest.approx(end_s[rank], rel=1e-12)


@given(held_up_schedules(), st.data())
def test_a_path_to_the_last_pass_of_a_chunk_is_exact_where_it_is_critical_and_a_bound_elsewhere(case, data):
    schedule, *times = case
    chunks = range(schedule.num_chunks)
    start_s = simulate(schedule, *times).last_backward_start_s
    own = critical_paths(schedule, *times[:3], (), *times[3:], chunks=chunks)
    assert [path.chunk for path in own] == list(chunks)
    assert [path.rank for path in own] == schedule.rank_of_chunk.tolist()
    assert [float(path_length(path, *times)) for path in own] == pytest.approx(start_s, rel=1e-12)
    other = [
        data.draw(st.lists(seconds(), min_size=t.size, max_size=t.size).map(np.array)) for t in times[:2]
    ]
    for path in critical_paths(schedule, *other, *times[2:3], (), *times[3:], chunks=chunks):
        assert path_length(path, *times) <= start_s[path.chunk] * ROUNDING


@pytest.mark.parametrize("name", names())
def test_base_paths_come_within_three_percent_of_nearly_equal_chunks(name):
    """What makes them worth starting from: stages that a planner balances differ by some percent."""
    schedule = build(name, 8, smallest_vpp(name), 32)
    forward_s = 1 + 0.1 * np.random.default_rng(1).random((50, schedule.num_chunks))
    apart = 1.0 if schedule.split else 0.0
    times = forward_s, (2 - apart) * forward_s, 0.02, apart * forward_s
    end_s = simulate(schedule, *times).end_s
    for rank in {0, 7} if schedule.split else {0}:
        own = [path_length(p, *times) for p in base_paths(schedule) if p.rank == rank]
        assert (np.max(own, axis=0) >= (0.97 if name == "v_min" else 0.98) * end_s[:, rank]).all()


@given(held_up_schedules(), st.data())
def test_paths_of_slow_chunks_are_exact_where_one_is_and_bounds_everywhere(case, data):
    schedule, forward_s, backward_s, transfer_s, weight_s, ready_s = case
    n = schedule.num_chunks
    longer_s = np.array(data.draw(st.lists(st.just(0.0) | seconds(), min_size=n, max_size=n)))
    passes = forward_s, backward_s, transfer_s
    paths = slow_chunk_paths(schedule, passes, longer_s, weight_s, ready_s)
    slow = np.flatnonzero(longer_s)
    assert len(paths) == len(slow)
    end_s = simulate(schedule, *case[1:]).end_s
    for path, chunk in zip(paths, slow, strict=True):
        assert path_length(path, *case[1:]) <= end_s[path.rank] * ROUNDING
        times = forward_s, backward_s + longer_s * (np.arange(n) == chunk), transfer_s, weight_s, ready_s
        latest = simulate(schedule, *times).end_s.max()
        assert path_length(path, *times) == pytest.approx(latest)


def test_ranks_that_recompute_one_chunk_of_several_wait_for_it_where_a_step_is_one_wave():
    """With as many micro-batches as ranks later passes keep the beat of a slow one; no base path tells."""
    schedule = build("interleaved", 4, 4, 4)
    ones, transfer_s = np.ones(16), 0.01
    slow = slow_chunk_paths(schedule, (ones, 2 * ones, transfer_s), ones)
    for own in (1, 2):
        times = ones, 2 * ones + (np.arange(16) // 4 == own), transfer_s
        latest = float(simulate(schedule, *times).end_s.max())
        assert max(path_length(p, *times) for p in slow) == pytest.approx(latest)
        assert max(path_length(p, *times) for p in base_paths(schedule)) < latest - 2


def test_path_lengths_broadcast():
    path = base_paths(build("1f1b", 2, 1, 3))[0]
    batch = path_length(path, np.ones((5, 2)), 2.0 * np.ones((4, 1, 2)), np.zeros(5))
    assert batch.shape == (4, 5)
    assert (batch == path_length(path, 1, 2, 0)).all()
