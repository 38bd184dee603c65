"""First plans: evenly split stages with the least recomputation that fits, priced in one call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import settled
from meshwright.costmodels.step import price
from meshwright.costmodels.strategy import Strategies
from meshwright.planner.cpsat.mesh_solver import Candidate, candidates
from meshwright.planner.field import Field, Split
from meshwright.planner.fill import Filled

AT_ONCE = 20
"""Meshes that are weighed in one call where one that fits is enough."""


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
    priced = _priced(f, _tried(f, rows))
    priced += _priced(f, _at_home(f, priced))
    best: dict[int, Found] = {}
    for found in sorted(priced, key=lambda found: found.candidate.step_s):
        if found.candidate.fits(f.limits):
            best.setdefault(found.row, found)
    return list(best.values())


def any_fits(f: Field, rows: IntArray) -> bool:
    """Return whether one of the plans of :func:`even_plans` fits, without their times."""
    return any(_one_fits(f, rows[at : at + AT_ONCE]) for at in range(0, len(rows), AT_ONCE))


def _one_fits(f: Field, rows: IntArray) -> bool:
    held = weigh_splits(f, [_laid(s) for s in _tried(f, rows)])
    held += weigh_splits(f, [_laid(s) for s in _at_home(f, held)])
    return any(found.candidate.fits(f.limits) for found in held)


def _tried(f: Field, rows: IntArray) -> list[Split]:
    """Return the even splits of rows, with their least recomputation, that may fit."""
    tried = [s for row in rows for s in f.even_splits(int(row)) if s.fits]
    return [u for s in tried for u in _uniform(f, s)] if f.problem.target.recompute_uniform else tried


def _at_home(f: Field, priced: Sequence[Found]) -> list[Split]:
    """Return the splits without offloaded activations of rows that put too much into host memory."""
    crowded = {found.row for found in priced if found.candidate.host_bytes > f.limits.host}
    return [s for row in sorted(crowded) for s in f.splits_at_home(row) if s.fits]


Laid = tuple[int, IntArray, IntArray]
"""A split as it is priced: a row, layers (C, K, M) and cut points (C + 1,)."""


def _laid(s: Split) -> Laid:
    return s.row, s.filled.counts, s.cuts


def _priced(f: Field, splits: Sequence[Split]) -> list[Found]:
    return price_splits(f, [_laid(s) for s in splits])


def price_splits(f: Field, splits: Sequence[Laid]) -> list[Found]:
    """Return the prices of splits, in one call."""
    return _in_one_call(f, splits, f.meshes.take(_rows(splits)).strategies())


def weigh_splits(f: Field, splits: Sequence[Laid]) -> list[Found]:
    """Return splits with the bytes that they hold; their times are those of shorter steps.

    More micro-batches than fill a schedule change nothing that is held (:func:`settled`), and simulating
    thousands of them for a peak takes most of the time of an answer that nothing fits.
    """
    return _in_one_call(f, splits, _shortened(f.meshes.take(_rows(splits)).strategies()))


def _rows(splits: Sequence[Laid]) -> IntArray:
    return np.array([row for row, *_ in splits], dtype=np.int64)


def _shortened(s: Strategies) -> Strategies:
    """Return strategies with as few micro-batches as hold what theirs hold in flight."""
    columns = (s.pp.tolist(), s.vpp.tolist(), s.num_microbatches.tolist())
    few = [settled(*sizes) for sizes in zip(s.schedule, *columns, strict=True)]
    return replace(s, num_microbatches=np.array(few, dtype=np.int64))


def _in_one_call(f: Field, splits: Sequence[Laid], strategies: Strategies) -> list[Found]:
    if not splits:
        return []
    index, layers, cuts = (list(column) for column in zip(*splits, strict=True))
    counts = np.zeros((len(splits), max(map(len, layers)), *layers[0].shape[1:]), dtype=np.int64)
    for i, own in enumerate(layers):
        counts[i, : len(own)] = own
    got = price(f.setting, strategies, counts, f.tables.take(_rows(splits)), detail=False)
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
