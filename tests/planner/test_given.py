"""Given stages: every split holds the whole model, and what cannot fit has no bound."""

import numpy as np
import pytest

from meshwright.planner.field import survey
from meshwright.planner.given import equal_chunk_bounds, path_bound, spread_bound
from tests.planner.small import SEEDS, fields
from tests.referees.problems import with_memory


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
