"""First plans: evenly split stages with the least recomputation that fits, priced in one call."""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.step import price
from meshwright.planner.cpsat.mesh_solver import Candidate, candidates
from meshwright.planner.field import Field, Split
from meshwright.planner.fill import Filled


@dataclass(frozen=True)
class Found:
    """A plan of a mesh: its row in the field and its assignment."""

    row: int
    candidate: Candidate


def even_plans(f: Field, rows: IntArray) -> list[Found]:
    """Return for each row its fastest evenly split plan that fits, fastest first."""
    tried = [s for row in rows for s in f.even_splits(int(row)) if s.fits]
    if f.problem.target.recompute_uniform:
        tried = [u for s in tried for u in _uniform(f, s)]
    if not tried:
        return []
    widest = max(s.layout.num_chunks for s in tried)
    counts = np.zeros((len(tried), widest, len(f.problem.model.kinds), len(MODES)), dtype=np.int64)
    for i, s in enumerate(tried):
        counts[i, : s.layout.num_chunks] = s.filled.counts
    index = np.array([s.row for s in tried])
    got = price(f.setting, f.meshes.take(index).strategies(), counts, f.tables.take(index), detail=False)
    priced = candidates(got, [s.filled.counts for s in tried], [s.cuts for s in tried])
    best: dict[int, Found] = {}
    for i in np.argsort(got.step_time_s, kind="stable"):
        if priced[i].fits(f.limits) and tried[i].row not in best:
            best[tried[i].row] = Found(tried[i].row, priced[i])
    return list(best.values())


def _uniform(f: Field, s: Split) -> list[Split]:
    """Return one split for each mode that all blocks may share."""
    found = []
    for m in np.flatnonzero(f.want.allowed[f.want.blocks].all(axis=0)):
        counts = np.zeros_like(s.filled.counts)
        for k, block in enumerate(f.want.blocks):
            counts[:, k, m if block else 0] = s.kinds[:, k]
        found.append(replace(s, filled=Filled(s.filled.seconds, counts)))
    return found
