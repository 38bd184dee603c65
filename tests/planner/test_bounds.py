"""What discards a mesh is never above the exact price of any plan of that mesh that fits."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.tables import build_tables
from meshwright.planner.bounds import look, quick_bounds
from meshwright.planner.field import survey
from meshwright.planner.given import equal_chunk_bounds
from meshwright.planner.job import Job
from meshwright.planner.pins import read_pins
from meshwright.planner.problem import Problem
from meshwright.planner.stage_bounds import in_flight_floor, stage_bounds
from tests.planner.emit.cases import case, cluster, model
from tests.planner.small import SEEDS, fields, known


@pytest.mark.parametrize("seed", SEEDS)
def test_the_memory_floor_is_below_every_peak(seed: int) -> None:
    for f, every, _ in fields(seed):
        tables = f.tables.take(np.arange(len(f.meshes)))
        floor = look(f.setting, f.meshes.strategies(), tables, f.want).floor_bytes
        assert (floor <= every.least_peak()).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_quick_bounds_are_below_every_price(seed: int) -> None:
    for f, every, _ in fields(seed):
        s, tables = f.meshes.strategies(), f.tables.take(np.arange(len(f.meshes)))
        quick = quick_bounds(s, look(f.setting, s, tables, f.want))
        assert (quick <= every.least_step(np.inf)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_field_marks_only_what_cannot_fit(seed: int) -> None:
    for f, every, usable in fields(seed):
        assert (f.bounds <= every.least_step(usable)).all()
        assert set(np.flatnonzero(np.isfinite(f.bounds))) == set(f.order.tolist())
        assert (np.diff(f.bounds[f.order]) >= 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_stage_bounds_are_above_quick_bounds_and_below_every_price(seed: int) -> None:
    for f, every, usable in fields(seed):
        rows = np.flatnonzero((f.meshes.vpp == 1) & np.isfinite(f.bounds))
        if len(rows):
            s, tables, least = f.meshes.take(rows).strategies(), f.tables.take(rows), every.least_step(usable)
            for ceiling in (np.inf, float(np.median(least[rows]))):
                bound = stage_bounds(f.setting, s, tables, f.want, f.usable, f.bounds[rows], ceiling)
                assert (bound >= f.bounds[rows]).all()
                within = least[rows] <= ceiling
                assert (bound[within] <= least[rows][within]).all()


def test_stage_bounds_count_whole_layers_of_a_single_kind() -> None:
    """Some rank holds at least its share of the layers, rounded up, and runs them for every micro-batch."""
    raised = 0
    for f, _, usable in (item for seed in SEEDS for item in fields(seed)):
        rows = np.flatnonzero((f.meshes.pp > 1) & np.isfinite(f.bounds))
        if usable < 1e15 or np.count_nonzero(f.want.movable) != 1 or not len(rows):
            continue
        s, tables, floor = f.meshes.take(rows).strategies(), f.tables.take(rows), f.bounds[rows]
        kind = int(f.want.movable.argmax())
        each = tables.forward_s[:, kind] + tables.backward_s[:, kind, f.want.allowed[kind]].min(axis=1)
        least = s.num_microbatches * -(-f.want.movable[kind] // s.pp) * each
        bound = stage_bounds(f.setting, s, tables, f.want, f.usable, floor, 4 * float(floor.max()))
        assert (bound >= least * (1 - 1e-4)).all()
        raised += int((least > floor).sum())
    assert raised > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_of_equal_chunks_are_below_every_price(seed: int) -> None:
    for f, every, usable in fields(seed):
        rows = np.flatnonzero(f.meshes.vpp > 1)
        least = every.least_step(usable)[rows]
        weak, strong = equal_chunk_bounds(f, rows), equal_chunk_bounds(f, rows, strong=True)
        assert (weak <= least).all()
        assert (strong <= least).all()


def test_the_samples_hold_what_the_bounds_are_about() -> None:
    several = [known(seed) for seed in SEEDS]
    meshes = [every.meshes for every, _ in several if every is not None]
    assert len(meshes) >= 0.7 * len(SEEDS)
    assert sum((m.vpp > 1).any() for m in meshes) >= 3
    assert sum((m.pp > 1).any() for m in meshes) >= 8


def test_a_rank_of_1f1b_holds_a_micro_batch_for_each_rank_behind_it() -> None:
    f, _, _ = next(item for seed in SEEDS for item in fields(seed) if ((item[0].meshes.pp == 3).any()))
    s = f.meshes.strategies()
    floor = in_flight_floor(s)
    for row in np.flatnonzero((s.pp == 3) & (s.vpp == 1) & (np.array(s.schedule) == "1f1b")):
        assert floor[row, :3].tolist() == np.minimum(s.num_microbatches[row], [3, 2, 1]).tolist()


def test_states_that_host_memory_cannot_hold_are_set_aside() -> None:
    """Llama-3.1-8B's moments and masters are 12 bytes a parameter: 96 GB over a node, ZeRO or not."""
    _, plan = case(machines="dgx-h100:1")
    job = Job(plan.global_batch_size, plan.sequence_length, choices=read_pins({"offload": "optimizer"}))
    small = replace(cluster("dgx-h100:1"), host_memory_bytes=50e9)
    tight, roomy = survey(Problem(model(), small, job)), survey(Problem(model(), cluster("dgx-h100:1"), job))
    assert len(tight.meshes) == len(roomy.meshes) > 0
    assert not np.isfinite(tight.bounds).any()
    assert tight.discarded["host memory floor"] > 0
    assert np.isfinite(roomy.bounds).any()


def test_meshes_share_tables_only_where_their_stages_wait_alike() -> None:
    """Megatron's plain pipeline waits for its transfers, its interleaved one does not."""
    problem, _ = case(tp=4, pp=2, job={"profile": "megatron-core", "choices": read_pins({"pp": 2, "tp": 4})})
    field = survey(problem)
    schedules = set(field.meshes.schedule)
    assert {"1f1b", "interleaved"} <= schedules
    rows = np.arange(len(field.meshes))
    got = field.tables.take(rows)
    own = build_tables(field.setting, field.meshes.strategies())
    assert np.array_equal(got.transfer_s, own.transfer_s)
    assert np.array_equal(got.pass_s, own.pass_s)
    assert len({bool(t > 0) for t in got.transfer_s}) == 2
