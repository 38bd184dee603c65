"""Static schedules: complete, runnable, and holding as many micro-batches as the literature says."""

import time

import numpy as np
import pytest
from hypothesis import given

from meshwright.costmodels.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    build,
    group_size,
    in_flight,
    legal,
    names,
    rank_of_chunk,
    settled,
    splits_backward,
)
from meshwright.hardware.errors import MeshwrightError, UnknownNameError
from tests.strategies import schedules


def order_of(schedule, rank):
    """Operations of a rank as ("F", "B" or "W", chunk, micro-batch), in running order."""
    mine = np.flatnonzero(schedule.rank == rank)
    columns = (schedule.kind[mine], schedule.chunk[mine], schedule.microbatch[mine])
    return [("FBW"[kind], chunk, microbatch) for kind, chunk, microbatch in zip(*columns, strict=True)]


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
        seen = np.zeros((3 if schedule.split else 2, chunks, microbatches), dtype=int)
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
    """F needs F of the chunk before; B needs B of the chunk after (W after a whole backward), or the turn."""
    kind, chunk, data = schedule.kind, schedule.chunk, schedule.data
    assert (schedule.rank == schedule.rank_of_chunk[chunk]).all()
    source = (kind == FORWARD) & (chunk == 0)
    assert ((data < 0) == source).all()
    fed = np.flatnonzero(~source)
    assert (schedule.microbatch[data[fed]] == schedule.microbatch[fed]).all()
    turn = (kind[fed] == BACKWARD) & (chunk[fed] == schedule.num_chunks - 1)
    wanted = np.where(turn, FORWARD, np.where(kind[fed] == WEIGHT, BACKWARD, kind[fed]))
    given_by = kind[data[fed]]
    after_whole = (given_by == WEIGHT) & (kind[fed] == BACKWARD) & (schedule.name == "dualpipev")
    assert ((given_by == wanted) | after_whole).all()
    step = np.where(turn | (kind[fed] == WEIGHT), 0, np.where(kind[fed] == FORWARD, -1, 1))
    assert (chunk[data[fed]] - chunk[fed] == step).all()
    assert (schedule.crosses[fed] == (schedule.rank[data[fed]] != schedule.rank[fed])).all()
    assert not schedule.crosses[source].any()


@given(schedules())
def test_operations_of_a_rank_run_one_after_another(schedule):
    for rank in range(schedule.pp):
        mine = np.flatnonzero(schedule.rank == rank)
        assert schedule.previous[mine].tolist() == [-1 - rank, *mine[:-1].tolist()]


@given(schedules())
def test_in_flight_matches_the_published_counts(schedule):
    """In chunks. 1F1B: pp - rank; GPipe: all; interleaved: (vpp - 1) groups + 2 (pp - rank - 1) + 1.

    1F1B with a forward ahead: one more than 1F1B on all ranks but the last.

    ZB-H1 pp on every rank, ZB-H2 2 pp - 1, interleaved zero bubble (vpp - 1) groups + pp, ZB-V 2 pp,
    DualPipe-V 2 pp + 1. Sources: Narayanan et al. 2021 (PipeDream-Flush, interleaved), warm-up of
    Megatron-Core plus the one forward of the first pair; Qi et al. 2023; DeepSeek's DualPipe repository.
    """
    name, pp, m = schedule.name, schedule.pp, schedule.num_microbatches
    loops = "interleaved" in name
    groups = (schedule.vpp - 1) * group_size(pp, schedule.vpp, m) if loops else 0
    for rank, table in enumerate(in_flight(schedule)):
        most = {
            "gpipe": m,
            "1f1b": pp - rank,
            "1f1b_ahead": pp - rank + (rank < pp - 1),
            "interleaved": groups + 2 * (pp - rank - 1) + 1,
            "zb1p": pp,
            "zb2p": 2 * pp - 1,
            "interleaved_zb": groups + pp,
            "zbv": 2 * pp,
            "v_half": pp + 3,
            "v_min": (2 * pp + 8) // 3,
            "dualpipev": 2 * pp + 1,
        }[name]
        expected, peak = min(m * schedule.vpp, most), table.sum(axis=1).max()
        bound_only = name.startswith("v_") or (name == "zbv" and m < 2 * pp)
        assert peak <= expected if bound_only else peak == expected


@pytest.mark.parametrize("pp", [4, 8, 16, 32])
def test_controlled_memory_is_half_and_a_third(pp):
    """V-half and V-min hold half and a third of 1F1B's 2 pp chunks, and a constant (Qi et al. 2024)."""
    half, third = (
        max(table.sum(axis=1).max() for table in in_flight(build(name, pp, 2, 3 * pp)))
        for name in ("v_half", "v_min")
    )
    assert pp <= half <= pp + 3
    assert 2 * pp / 3 <= third <= (2 * pp + 8) / 3


@given(schedules())
def test_in_flight_is_the_peak_for_any_chunk_sizes(schedule):
    sizes = np.random.default_rng(schedule.num_microbatches).integers(0, 100, schedule.num_chunks)
    for rank, (table, chunks) in enumerate(zip(in_flight(schedule), schedule.chunks_of_rank, strict=True)):
        alive = peak = 0
        for kind, chunk, _ in order_of(schedule, rank):
            alive += sizes[chunk] * ((kind == "F") - (kind == ("W" if schedule.split else "B")))
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
        (("zb1p", 4, 2, 8), ["vpp = 2", "interleaved_zb"]),
        (("interleaved_zb", 4, 1, 8), ["vpp = 1", "zb1p"]),
        (("interleaved_zb", 4, 2, 11), ["num_microbatches = 11", "multiple", "10 or 12"]),
        (("zbv", 4, 1, 8), ["vpp = 1", "exactly 2"]),
        (("v_half", 1, 2, 8), ["pp = 1", "at least 2"]),
        (("dualpipev", 4, 2, 7), ["num_microbatches = 7", "at least 2 pp = 8"]),
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


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("pp", range(1, 7))
@pytest.mark.parametrize("vpp", range(1, 4))
def test_in_flight_settles_within_two_groups(name, pp, vpp):
    """What more micro-batches hold, counted afresh on the full schedule."""
    for m in range(1, 5 * pp + 1):
        if legal(name, pp, vpp, m) is not None or settled(name, pp, vpp, m) == m:
            continue
        full = build(name, pp, vpp, m)
        for rank, table in enumerate(in_flight(full)):
            alive = np.zeros(vpp, dtype=int)
            seen = set()
            for op in np.flatnonzero(full.rank == rank):
                place = list(full.chunks_of_rank[rank]).index(full.chunk[op])
                alive[place] += int(full.kind[op] == FORWARD) - int(full.kind[op] == full.last_kind)
                seen.add(tuple(alive))
            assert {tuple(row) for row in table} <= seen
            assert all(any((table >= row).all(axis=1)) for row in seen)


def test_chunks_live_in_loops_or_down_and_up_the_ranks():
    assert rank_of_chunk("interleaved", 3, 2).tolist() == [0, 1, 2, 0, 1, 2]
    assert rank_of_chunk("zbv", 3, 2).tolist() == [0, 1, 2, 2, 1, 0]
    with pytest.raises(UnknownNameError, match="zbv"):
        rank_of_chunk("zb-v", 3, 2)


@given(schedules())
def test_cheap_questions_agree_with_the_built_schedule(schedule):
    lives = rank_of_chunk(schedule.name, schedule.pp, schedule.vpp)
    assert lives.tolist() == schedule.rank_of_chunk.tolist()
    assert splits_backward(schedule.name) == schedule.split == (WEIGHT in schedule.kind)


def test_zero_bubble_by_hand():
    """ZB-H1 and ZB-H2 of three ranks (Qi et al. 2023, figure 3): one and two forwards more for each rank."""
    assert text(build("zb1p", 3, 1, 4), 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert text(build("zb1p", 3, 1, 4), 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    assert text(build("zb2p", 3, 1, 6), 0) == "F0 F1 F2 F3 F4 B0 W0 F5 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5"
    assert text(build("zb2p", 3, 1, 6), 2) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 F5 B5 W1 W2 W3 W4 W5"
