"""The least recomputation of given stages: cheaper than any that fits, and rounded so that it fits."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.schedule import build, in_flight
from meshwright.costmodels.step import price
from meshwright.planner.field import Field
from meshwright.planner.fill import fill, hull
from tests.planner.small import SEEDS, fields
from tests.referees.exhaustive import assignments


def _pipeline(f: Field, row: int):
    s = f.meshes.take([row]).strategies()
    return s, build(s.schedule[0], int(s.pp[0]), int(s.vpp[0]), int(s.num_microbatches[0]))


@pytest.mark.parametrize("seed", SEEDS)
def test_seconds_are_below_every_assignment_that_fits(seed: int) -> None:
    for f, _, usable in fields(seed):
        if f.problem.target.recompute_uniform:
            continue
        for row in np.random.default_rng(seed).permutation(len(f.meshes))[:4]:
            s, schedule = _pipeline(f, int(row))
            tables = f.tables.take(np.array([row]))
            plans = assignments(f.problem, schedule.num_chunks, schedule.vpp > 1)
            same = np.full(len(plans), row)
            got = price(f.setting, f.meshes.take(same).strategies(), plans, f.tables.take(same))
            kinds = plans[0].sum(axis=2)
            alike = (plans.sum(axis=3) == kinds).all(axis=(1, 2))
            fits = alike & (got.peak_bytes.max(axis=1) <= usable)
            filled = fill(f.setting, s, tables, f.want, f.usable, schedule, kinds)
            assert (filled.counts.sum(axis=2) == kinds).all()
            cheapest = np.where(f.want.allowed, tables.backward_s[0], np.inf).min(axis=1)
            extra = (plans * (tables.backward_s[0] - cheapest[:, None])).sum(axis=(2, 3))
            spent = extra[:, schedule.chunks_of_rank].sum(axis=2)
            if fits.any():
                assert (filled.seconds <= spent[fits].min(axis=0) * (1 + 1e-9) + 1e-15).all()


def test_the_hull_leaves_out_modes_that_cost_more_and_free_less() -> None:
    seconds, kept = np.array([0.0, 2.0, 3.0]), np.array([10.0, 8.0, 1.0])
    assert hull(seconds, kept, np.arange(3)) == [0, 2]
    assert hull(np.array([0.0, 1.0, 3.0]), np.array([10.0, 4.0, 1.0]), np.arange(3)) == [0, 1, 2]
    assert hull(seconds, np.array([10.0, 10.0, 12.0]), np.arange(3)) == [0]
    assert hull(seconds, kept, np.array([1, 2])) == [1, 2]


def test_a_need_met_exactly_is_no_infeasibility() -> None:
    """Tens of GB freed to the last byte: rounding of the sums must not declare that nothing fits."""
    f, _, _ = next(item for seed in SEEDS for item in fields(seed) if (item[0].meshes.pp == 1).any())
    row = int(np.flatnonzero(f.meshes.pp == 1)[0])
    s, schedule = _pipeline(f, row)
    big = f.tables.take(np.array([row]))
    big = replace(big, saved_bytes=big.saved_bytes * 1e4, working_bytes=0 * big.working_bytes)
    kinds = f.problem.model.kind_counts[None]
    rng, missed = np.random.default_rng(0), 0
    least = np.where(f.want.allowed, big.saved_bytes[0], np.inf).min(axis=1) @ f.problem.model.kind_counts
    most = np.where(f.want.allowed, big.saved_bytes[0], 0).max(axis=1) @ f.problem.model.kind_counts
    other = 4 * float((big.state_bytes[0] * f.problem.model.kind_counts).sum()) + 1e7
    for part in rng.uniform(0.01, 0.99, 300):
        usable = other + (1 + f.setting.profile.fragmentation) * (least + part * (most - least))
        filled = fill(f.setting, s, big, f.want, usable, schedule, kinds)
        missed += not np.isfinite(filled.seconds).all()
    assert len(in_flight(schedule)) == 1
    assert missed == 0
