"""Bounds for meshes whose stages are given (interleaved, equal chunks): only recomputation is open.

A chunk takes at least its time without recomputation, and each rank at least its fractional least
recomputation (:mod:`meshwright.planner.fill`) somewhere on its chunks. Any path through the schedule that
passes every chunk of a rank ``n`` times backwards therefore grows by ``n`` times that.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.pipeline import base_paths, uniform_bound
from meshwright.costmodels.schedule import StaticSchedule, build
from meshwright.costmodels.tables import Tables
from meshwright.planner.bounds import SAFETY
from meshwright.planner.chunking import chunk_cuts
from meshwright.planner.field import Field
from meshwright.planner.fill import Filled, fill


@dataclass(frozen=True)
class Split:
    """One way to cut a mesh: cut points (C + 1,), and the least recomputation that makes it fit."""

    row: int
    schedule: StaticSchedule
    tables: Tables
    cuts: IntArray
    filled: Filled

    @property
    def kinds(self) -> IntArray:
        """Layers per chunk and kind, (C, K)."""
        return np.asarray(self.filled.counts.sum(axis=2))

    @property
    def fits(self) -> bool:
        """Whether some recomputation makes every rank fit."""
        return bool(np.isfinite(self.filled.seconds).all())


def splits(f: Field, row: int) -> list[Split]:
    """Return the equal (or even) splits of one mesh with their least recomputation."""
    m, graph = f.meshes, f.problem.model
    s, tables = m.take([row]).strategies(), f.tables.take(np.array([row]))
    schedule = build(s.schedule[0], int(m.pp[row]), int(m.vpp[row]), int(m.num_microbatches[row]))
    found = []
    for cuts in chunk_cuts(graph, schedule.num_chunks, schedule.vpp > 1):
        kinds = np.diff(graph.prefix_counts[cuts], axis=0)
        filled = fill(f.setting, s, tables, f.want, f.usable, schedule, kinds)
        found.append(Split(row, schedule, tables, cuts, filled))
    return found


def spread_bound(f: Field, split: Split) -> float:
    """Return the quicker bound: passes of the slowest rank, and the schedule's closed form over all work."""
    schedule, tables = split.schedule, split.tables
    forward, backward = _chunk_times(f, split)
    ranks = _by_rank(schedule, forward + backward) + split.filled.seconds
    share = f.forward_share[split.row]
    passes = schedule.num_microbatches
    spread = uniform_bound(
        schedule.name, schedule.pp, schedule.vpp, passes, ranks.sum(), share, tables.transfer_s[0]
    )
    return float(max(passes * ranks.max(), float(spread)) + _update(f, split)) * SAFETY


def path_bound(f: Field, split: Split) -> float:
    """Return the stronger bound: the longest of the schedule's base paths, recomputation included."""
    schedule, tables, profile = split.schedule, split.tables, f.setting.profile
    forward, backward = _chunk_times(f, split)
    reduction = _by_rank(schedule, split.kinds @ tables.reduce_s[0])
    longest = 0.0
    for path in base_paths(schedule):
        if path.event != "end":
            continue
        passes = np.array(path.backward_counts)
        least = passes[schedule.chunks_of_rank].min(axis=1)
        length = forward @ np.array(path.forward_counts) + backward @ passes
        length += path.transfers * float(tables.transfer_s[0]) + least @ split.filled.seconds
        longest = max(longest, float(length) + profile.overlap_cost * reduction[path.rank])
    return (longest + _update(f, split)) * SAFETY


def _chunk_times(f: Field, split: Split) -> tuple[FloatArray, FloatArray]:
    """Return forward and least backward seconds of each chunk, (C,)."""
    tables = split.tables
    least: FloatArray = np.where(f.want.allowed, tables.backward_s[0], np.inf).min(axis=-1)
    each = float(tables.pass_s[0])
    forward = split.kinds @ tables.forward_s[0] + each
    backward = split.kinds @ least + each
    return np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64)


def _by_rank(schedule: StaticSchedule, values: FloatArray) -> FloatArray:
    """Return values of chunks summed on their ranks, (R,)."""
    return np.asarray(values[schedule.chunks_of_rank].sum(axis=1))


def _update(f: Field, split: Split) -> float:
    """Return what follows the barrier, which recomputation does not touch, and the step's fixed time."""
    profile, tables, schedule = f.setting.profile, split.tables, split.schedule
    own = _by_rank(schedule, split.kinds @ tables.optimizer_s[0])
    gather = _by_rank(schedule, split.kinds @ tables.gather_s[0])
    forward, _ = _chunk_times(f, split)
    window = profile.overlap_parameters * forward[schedule.chunks_of_rank[:, 0]]
    update = own + exposed_time(gather, window, profile.overlap_cost)
    return float(update.max() + profile.step_fixed_s)


def equal_chunk_bounds(f: Field, rows: IntArray, strong: bool = False) -> FloatArray:
    """Return bounds of interleaved meshes, the least over the splits of each; infinite if none fits."""
    formula = path_bound if strong else spread_bound
    least = [min((formula(f, s) for s in splits(f, int(row)) if s.fits), default=np.inf) for row in rows]
    return np.asarray(np.maximum(least, f.bounds[rows]))
