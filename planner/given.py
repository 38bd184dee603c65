"""Bounds for meshes whose stages are given (interleaved, equal chunks): only recomputation is open.

A chunk takes at least its time without recomputation, and each rank at least its fractional least
recomputation (:mod:`meshwright.planner.fill`) somewhere on its chunks. Any path through the schedule that
passes every chunk of a rank ``n`` times backwards therefore grows by ``n`` times that.
"""

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.paths import base_table
from meshwright.costmodels.pipeline_bounds import uniform_bound
from meshwright.costmodels.schedule import StaticSchedule
from meshwright.costmodels.step import gather_times
from meshwright.planner.bounds import SAFETY
from meshwright.planner.field import Field, Split


def spread_bound(f: Field, split: Split) -> float:
    """Return the quicker bound: passes of the slowest rank, and the schedule's closed form over all work."""
    layout, passes = split.layout, split.num_microbatches
    forward, backward, weight = _chunk_times(f, split)
    ranks = _by_rank(layout, forward + backward + weight) + split.filled.seconds
    share, transfer = f.forward_share[split.row], split.tables.transfer_s[0]
    apart = weight.sum() if layout.split else np.inf
    spread = uniform_bound(layout.name, layout.pp, layout.vpp, passes, ranks.sum(), share, transfer, apart)
    ready = _ready(f, split, forward)[layout.chunks_of_rank[:, 0]]
    through = max((passes * ranks + ready).max(), float(spread) + ready.min())
    return float(through + _update(f, split)) * SAFETY


def path_bound(f: Field, split: Split) -> float:
    """Return the stronger bound: the longest of the schedule's base paths, recomputation included."""
    schedule, tables = split.schedule, split.tables
    forward, backward, weight = _chunk_times(f, split)
    reduction = _by_rank(schedule, split.kinds @ tables.reduce_s[0])
    paths = base_table(schedule)
    passes = paths.backward_counts[:, schedule.chunks_of_rank].min(axis=2)
    ready = _ready(f, split, forward)
    own = ready[paths.origin] + paths.lengths(forward, backward, float(tables.transfer_s[0]), weight)
    ends = own + passes @ split.filled.seconds + f.setting.profile.overlap_cost * reduction[paths.rank]
    return float(ends.max() + _update(f, split)) * SAFETY


def _chunk_times(f: Field, split: Split) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return forward, least backward and weight-gradient seconds of each chunk, (C,).

    The last are zero, and part of the backward pass, where the schedule does not tell them apart.
    """
    tables = split.tables
    least: FloatArray = np.where(f.wanted(split.row).allowed, tables.backward_s[0], np.inf).min(axis=-1)
    each = float(tables.pass_s[0])
    forward = split.kinds @ tables.forward_s[0] + each
    weight = split.kinds @ tables.weight_s[0] * split.layout.split
    backward = split.kinds @ least + each - weight
    return forward, backward, weight


def _by_rank(schedule: StaticSchedule, values: FloatArray) -> FloatArray:
    """Return values of chunks summed on their ranks, (R,)."""
    return np.asarray(values[schedule.chunks_of_rank].sum(axis=1))


def _update(f: Field, split: Split) -> float:
    """Return what follows the barrier, which recomputation does not touch, and the step's fixed time."""
    update = _by_rank(split.layout, split.kinds @ split.tables.optimizer_s[0])
    return float(update.max() + f.setting.profile.step_fixed_s)


def _ready(f: Field, split: Split, forward: FloatArray) -> FloatArray:
    """Return when parameters are gathered for each chunk's first pass, (C,)."""
    rows = np.array([0])
    _, ready = gather_times(f.setting, split.layout, split.tables, rows, split.kinds[None], forward[None])
    return np.asarray(ready[0])


def equal_chunk_bounds(f: Field, rows: IntArray, strong: bool = False) -> FloatArray:
    """Return bounds of interleaved meshes, the least over the splits of each; infinite if none fits."""
    formula = path_bound if strong else spread_bound
    least = [min((formula(f, s) for s in f.even_splits(int(row)) if s.fits), default=np.inf) for row in rows]
    return np.asarray(np.maximum(least, f.bounds[rows]))
