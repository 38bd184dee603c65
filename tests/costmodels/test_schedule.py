"""Static schedules: complete, runnable, and holding as many micro-batches as the literature says."""

import time

import numpy as np
import pytest
from hypothesis import given

from meshwright.costmodels.schedule import BACKWARD, FORWARD, build, group_size, in_flight, legal, names
from meshwright.hardware.errors import MeshwrightError, UnknownNameError
from tests.strategies import schedules


def order_of(schedule, rank):
    """Operations of a rank as ("F" or "B", chunk, micro-batch), in running order."""
    mine = np.flatnonzero(schedule.rank == rank)
    columns = (schedule.kind[mine], schedule.chunk[mine], schedule.microbatch[mine])
    return [("FB"[kind], chunk, microbatch) for kind, chunk, microbatch in zip(*columns, strict=True)]


def text(schedule, rank):
    return " ".join(f"{kind}{microbatch}" for kind, _, microbatch in order_of(schedule, rank))


def test_1f1b_by_hand():
    schedule = build("1f1b", 3, 1, 4)
    assert text(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(schedule, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert text(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_by_hand():
    assert text(build("gpipe", 2, 1, 3), 0) == text(build("gpipe", 2, 1, 3), 1) == "F0 F1 F2 B0 B1 B2"


def test_interleaved_by_hand():
    """The last rank warms up with one group in its first chunk (Narayanan et al. 2021, figure 4)."""
    schedule = build("interleaved", 2, 2, 4)
    order = " ".join(f"{kind}{chunk}.{microbatch}" for kind, chunk, microbatch in order_of(schedule, 1))
    assert order == ("F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3")


def all_small():
    for name in names():
        for pp in range(1, 9):
            for vpp in range(1, 5):
                for microbatches in range(1, 18):
                    if legal(name, pp, vpp, microbatches) is None:
                        yield build(name, pp, vpp, microbatches)


def test_every_small_schedule_is_complete_and_free_of_deadlock():
    """Each operation once, and dependencies only on lower levels: running level by level never gets stuck."""
    count = 0
    for schedule in all_small():
        chunks, microbatches = schedule.num_chunks, schedule.num_microbatches
        seen = np.zeros((2, chunks, microbatches), dtype=int)
        np.add.at(seen, (schedule.kind, schedule.chunk, schedule.microbatch), 1)
        assert (seen == 1).all()
        level = np.repeat(np.arange(schedule.level_start.size - 1), np.diff(schedule.level_start))
        for dependency in (schedule.previous, schedule.data):
            has = dependency >= 0
            assert (level[dependency[has]] < level[has]).all()
        count += 1
    assert count > 8 * 17 * 2


@given(schedules())
def test_data_flow_follows_the_model(schedule):
    kind, chunk, data = schedule.kind, schedule.chunk, schedule.data
    assert (schedule.rank == schedule.rank_of_chunk[chunk]).all()
    source = (kind == FORWARD) & (chunk == 0)
    assert ((data < 0) == source).all()
    fed = np.flatnonzero(~source)
    assert (schedule.microbatch[data[fed]] == schedule.microbatch[fed]).all()
    turn = (kind[fed] == BACKWARD) & (chunk[fed] == schedule.num_chunks - 1)
    assert (kind[data[fed]] == np.where(turn, FORWARD, kind[fed])).all()
    step = np.where(turn, 0, np.where(kind[fed] == FORWARD, -1, 1))
    assert (chunk[data[fed]] - chunk[fed] == step).all()
    assert (schedule.crosses[fed] == (schedule.rank[data[fed]] != schedule.rank[fed])).all()
    assert not schedule.crosses[source].any()


@given(schedules())
def test_operations_of_a_rank_run_one_after_another(schedule):
    for rank in range(schedule.pp):
        mine = np.flatnonzero(schedule.rank == rank)
        assert schedule.previous[mine].tolist() == [-1, *mine[:-1].tolist()]


@given(schedules())
def test_in_flight_matches_the_published_counts(schedule):
    """1F1B: pp - rank; GPipe: all; interleaved: (vpp - 1) groups + 2 (pp - rank - 1) + 1 chunks.

    Sources: Narayanan et al. 2021 (PipeDream-Flush, interleaved); warm-up of Megatron-Core plus the one
    forward of the first pair.
    """
    pp, vpp, microbatches, group = schedule.pp, schedule.vpp, schedule.num_microbatches, schedule.group_size
    for rank, table in enumerate(in_flight(schedule)):
        expected = {
            "gpipe": microbatches,
            "1f1b": min(microbatches, pp - rank),
            "interleaved": min(microbatches * vpp, (vpp - 1) * group + 2 * (pp - rank - 1) + 1),
        }[schedule.name]
        assert table.sum(axis=1).max() == expected


@given(schedules())
def test_in_flight_is_the_peak_for_any_chunk_sizes(schedule):
    sizes = np.random.default_rng(schedule.num_microbatches).integers(0, 100, schedule.num_chunks)
    for rank, (table, chunks) in enumerate(zip(in_flight(schedule), schedule.chunks_of_rank, strict=True)):
        alive = peak = 0
        for kind, chunk, _ in order_of(schedule, rank):
            alive += sizes[chunk] if kind == "F" else -sizes[chunk]
            peak = max(peak, alive)
        assert alive == 0
        assert (table @ sizes[chunks]).max() == peak
        for row in table:
            assert np.all(table >= row, axis=1).sum() == 1, "a row that another covers is no peak"


def test_rank_0_of_an_interleaved_schedule_holds_more_than_1f1b():
    """Peak activations are p + (p - 1) / v stages (Narayanan et al. 2021, section 2.2; Megatron's paper)."""
    pp, vpp = 8, 4
    peak = in_flight(build("interleaved", pp, vpp, 64))[0].sum(axis=1).max() / vpp
    assert peak == pytest.approx(pp + (pp - 1) / vpp)


@pytest.mark.parametrize(
    ("microbatches", "group"), [(8, 4), (16, 4), (5, 5), (7, 7), (9, 5), (10, 5), (11, 6)]
)
def test_group_is_the_smallest_that_leaves_no_short_group(microbatches, group):
    assert group_size(4, 2, microbatches) == group
    assert group_size(4, 1, microbatches) == microbatches


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1b", 4, 2, 8), ["vpp = 2", "interleaved"]),
        (("gpipe", 4, 3, 8), ["vpp = 3"]),
        (("interleaved", 4, 1, 8), ["vpp = 1", "1f1b"]),
        (("interleaved", 1, 2, 8), ["pp = 1"]),
        (("interleaved", 4, 2, 3), ["num_microbatches = 3", "pp = 4"]),
        (("1f1b", 0, 1, 8), ["pp = 0", "at least 1"]),
        (("1f1b", 4, 0, 8), ["vpp = 0"]),
        (("gpipe", 4, 1, 0), ["num_microbatches = 0"]),
    ],
)
def test_refusals_name_the_field_and_the_limit(arguments, words):
    with pytest.raises(MeshwrightError) as error:
        build(*arguments)
    assert all(word in str(error.value) for word in words)
    assert legal(*arguments) in str(error.value)


def test_unknown_schedule_lists_near_names():
    with pytest.raises(UnknownNameError, match="interleaved"):
        build("interleave", 4, 2, 8)


def test_tables_are_shared_and_read_only():
    schedule = build("1f1b", 4, 1, 8)
    assert build("1f1b", 4, 1, 8) is schedule
    with pytest.raises(ValueError, match="read-only"):
        schedule.kind[0] = BACKWARD
    with pytest.raises(ValueError, match="read-only"):
        in_flight(schedule)[0][0, 0] = 0


def test_a_large_schedule_is_built_quickly():
    """0.15-0.5 s were seen; the limit leaves room for a busy machine, not for a Python loop."""
    began = time.process_time()
    assert build("interleaved", 128, 2, 1024).kind.size == 2 * 256 * 1024
    assert time.process_time() - began < 3


@pytest.mark.parametrize("pp", range(1, 7))
@pytest.mark.parametrize("vpp", range(1, 5))
def test_in_flight_settles_within_two_groups(pp, vpp):
    """What more micro-batches hold, counted afresh on the full schedule."""
    name = "1f1b" if vpp == 1 else "interleaved"
    for m in [pp * k for k in range(1, 6)] if vpp > 1 else range(1, 5 * pp):
        if legal(name, pp, vpp, m) is not None:
            continue
        full = build(name, pp, vpp, m)
        for rank, table in enumerate(in_flight(full)):
            alive = np.zeros(vpp, dtype=int)
            seen = set()
            for op in np.flatnonzero(full.rank == rank):
                place = list(full.chunks_of_rank[rank]).index(full.chunk[op])
                alive[place] += 1 if full.kind[op] == FORWARD else -1
                seen.add(tuple(alive))
            assert {tuple(row) for row in table} <= seen
            assert all(any((table >= row).all(axis=1)) for row in seen)
