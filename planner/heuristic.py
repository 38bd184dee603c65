"""First plans: evenly split stages with the least recomputation that fits, priced in one call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
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
    """Return for each row its fastest evenly split plan that fits, fastest first.

    The least recomputation that fits the device may put more into host memory than goes there: such a split
    is tried again without offloading activations.
    """
    tried = [s for row in rows for s in f.even_splits(int(row)) if s.fits]
    if f.problem.target.recompute_uniform:
        tried = [u for s in tried for u in _uniform(f, s)]
    priced = _priced(f, tried)
    crowded = {found.row for found in priced if found.candidate.host_bytes > f.limits.host}
    priced += _priced(f, [s for row in sorted(crowded) for s in f.splits_at_home(row) if s.fits])
    best: dict[int, Found] = {}
    for found in sorted(priced, key=lambda found: found.candidate.step_s):
        if found.candidate.fits(f.limits):
            best.setdefault(found.row, found)
    return list(best.values())


def _priced(f: Field, splits: Sequence[Split]) -> list[Found]:
    return price_splits(f, [(s.row, s.filled.counts, s.cuts) for s in splits]) if splits else []


def price_splits(f: Field, splits: Sequence[tuple[int, IntArray, IntArray]]) -> list[Found]:
    """Return the prices, in one call, of splits: a row, layers (C, K, M) and cut points (C + 1,) each."""
    index, layers, cuts = (list(column) for column in zip(*splits, strict=True))
    counts = np.zeros((len(splits), max(map(len, layers)), *layers[0].shape[1:]), dtype=np.int64)
    for i, own in enumerate(layers):
        counts[i, : len(own)] = own
    rows = np.array(index)
    got = price(f.setting, f.meshes.take(rows).strategies(), counts, f.tables.take(rows), detail=False)
    return [Found(row, c) for row, c in zip(index, candidates(got, layers, cuts), strict=True)]


def _uniform(f: Field, s: Split) -> list[Split]:
    """Return one split for each mode that all blocks may share."""
    found, want = [], f.wanted(s.row)
    for m in np.flatnonzero(want.allowed[want.blocks].all(axis=0)):
        counts = np.zeros_like(s.filled.counts)
        for k, block in enumerate(want.blocks):
            counts[:, k, m if block else 0] = s.kinds[:, k]
        found.append(replace(s, filled=Filled(s.filled.seconds, counts)))
    return found
