"""Given stages: every split holds the whole model, and what cannot fit has no bound."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.step import price
from meshwright.planner.field import survey
from meshwright.planner.given import equal_chunk_bounds, path_bound, spread_bound
from tests.planner.small import SEEDS, fields
from tests.referees.problems import random_problem, with_memory


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_splits_hold_every_layer_and_their_bounds_grow_with_recomputation(seed: int) -> None:
    for f, _, usable in fields(seed):
        roomy = survey(with_memory(f.problem, 1e15))
        for row in np.flatnonzero(f.meshes.vpp > 1)[:4].tolist():
            for tight, free in zip(f.even_splits(row), roomy.even_splits(row), strict=True):
                assert tight.kinds.sum(axis=0).tolist() == f.problem.model.kind_counts.tolist()
                assert (free.filled.seconds == 0).all()
                assert (tight.filled.seconds >= 0).all()
                if tight.fits:
                    assert spread_bound(f, tight) >= spread_bound(roomy, free)
                    assert path_bound(f, tight) >= path_bound(roomy, free)
        assert usable > 0


def test_what_cannot_fit_has_an_infinite_bound() -> None:
    f = next(item[0] for seed in SEEDS for item in fields(seed) if (item[0].meshes.vpp > 1).any())
    tiny = survey(with_memory(f.problem, 1e6))
    rows = np.flatnonzero(tiny.meshes.vpp > 1)
    assert np.isinf(equal_chunk_bounds(tiny, rows)).all()
    assert np.isfinite(equal_chunk_bounds(survey(with_memory(f.problem, 1e15)), rows)).all()


def test_bounds_hold_where_chunks_wait_for_their_parameters() -> None:
    """Gathering a layer takes up to ten of its forward passes, more for some layers than for others."""
    held = later = 0
    for seed in SEEDS[:12]:
        rng = np.random.default_rng(seed)
        problem = random_problem(seed, 4, 4, {"pp": ">=2", "schedule": "interleaved"})
        f = survey(with_memory(problem, 1e15))
        for row in range(min(4, len(f.meshes))):
            s = f.meshes.take(np.array([row])).strategies()
            for split in f.even_splits(row):
                gather_s = 10 * split.tables.forward_s * rng.uniform(0, 1, split.tables.gather_s.shape)
                late = replace(split, tables=replace(split.tables, gather_s=gather_s))
                step = price(f.setting, s, split.filled.counts[None], late.tables)
                bounds = spread_bound(f, late), path_bound(f, late)
                assert max(bounds) <= step.step_time_s[0]
                held += bounds[0] > spread_bound(f, split)
                later += bounds[1] > path_bound(f, split)
    assert held
    assert later
