"""First plans: evenly split stages with the least recomputation that fits, priced in one call."""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.layer import MODES
from meshwright.costmodels.pipeline import uniform_bound
from meshwright.costmodels.schedule import build
from meshwright.costmodels.step import price
from meshwright.planner.bounds import SAFETY
from meshwright.planner.chunking import chunk_cuts
from meshwright.planner.cpsat.mesh_solver import Candidate
from meshwright.planner.field import Field
from meshwright.planner.fill import Filled, fill


@dataclass(frozen=True)
class Found:
    """A plan of a mesh: its row in the field and its assignment."""

    row: int
    candidate: Candidate


@dataclass(frozen=True)
class _Try:
    row: int
    cuts: IntArray
    filled: Filled


def _tries(f: Field, row: int) -> list[_Try]:
    """Return the even splits of one mesh with their least recomputation."""
    m, graph = f.meshes, f.problem.model
    s, tables = m.take([row]).strategies(), f.tables.take(np.array([row]))
    schedule = build(s.schedule[0], int(m.pp[row]), int(m.vpp[row]), int(m.num_microbatches[row]))
    splits = chunk_cuts(graph, schedule.num_chunks, schedule.vpp > 1)
    kinds = [np.diff(graph.prefix_counts[cuts], axis=0) for cuts in splits]
    return [
        _Try(row, cuts, fill(f.setting, s, tables, f.want, f.usable, schedule, own))
        for cuts, own in zip(splits, kinds, strict=True)
    ]


def even_plans(f: Field, rows: IntArray) -> list[Found]:
    """Return for each row its fastest evenly split plan that fits, if there is one."""
    tried = [t for row in rows for t in _tries(f, int(row)) if np.isfinite(t.filled.seconds).all()]
    if f.problem.target.recompute_uniform:
        tried = [u for t in tried for u in _uniform(f, t)]
    if not tried:
        return []
    widest = max(len(t.filled.counts) for t in tried)
    counts = np.zeros((len(tried), widest, len(f.problem.model.kinds), len(MODES)), dtype=np.int64)
    for i, t in enumerate(tried):
        counts[i, : len(t.filled.counts)] = t.filled.counts
    index = np.array([t.row for t in tried])
    got = price(f.setting, f.meshes.take(index).strategies(), counts, f.tables.take(index))
    peaks = got.peak_bytes.max(axis=1)
    best: dict[int, Found] = {}
    for i in np.argsort(got.step_time_s, kind="stable"):
        t = tried[i]
        if peaks[i] <= f.usable and t.row not in best:
            candidate = Candidate(t.filled.counts, t.cuts, float(got.step_time_s[i]), float(peaks[i]))
            best[t.row] = Found(t.row, candidate)
    return list(best.values())


def _uniform(f: Field, t: _Try) -> list[_Try]:
    """Return one try for each mode that all blocks may share."""
    kinds = t.filled.counts.sum(axis=2)
    found = []
    for m in np.flatnonzero(f.want.allowed[f.want.blocks].all(axis=0)):
        counts = np.zeros_like(t.filled.counts)
        for k, block in enumerate(f.want.blocks):
            counts[:, k, m if block else 0] = kinds[:, k]
        found.append(_Try(t.row, t.cuts, Filled(t.filled.seconds, counts)))
    return found


def equal_chunk_bounds(f: Field, rows: IntArray) -> FloatArray:
    """Return lower bounds on interleaved meshes, whose stages are given: each rank's least recomputation.

    ``m`` passes of the slowest rank, and the closed form of the schedule over all work, recomputation
    included; the least over the splits that a mesh allows.
    """
    bounds = np.full(len(rows), np.inf)
    for i, row in enumerate(rows):
        for t in _tries(f, int(row)):
            if np.isfinite(t.filled.seconds).all():
                bounds[i] = min(bounds[i], _split_bound(f, int(row), t))
    return np.maximum(bounds, f.bounds[rows])


def _split_bound(f: Field, row: int, t: _Try) -> float:
    """Return the bound of one split of an interleaved mesh."""
    m, tables = f.meshes, f.tables.take(np.array([row]))
    pp, vpp, passes = int(m.pp[row]), int(m.vpp[row]), int(m.num_microbatches[row])
    kinds = t.filled.counts.sum(axis=2)
    least = np.where(f.want.allowed, tables.backward_s[0], np.inf).min(axis=-1)
    own = kinds @ (tables.forward_s[0] + least) + 2 * float(tables.pass_s[0])
    ranks = own.reshape(vpp, pp).sum(axis=0) + t.filled.seconds
    share = f.forward_share[row]
    spread = uniform_bound("interleaved", pp, vpp, passes, ranks.sum(), share, tables.transfer_s[0])
    tail = float((tables.optimizer_s[0] * f.want.layers).sum()) / pp + f.setting.profile.step_fixed_s
    return float(max(passes * ranks.max(), float(spread)) + tail) * SAFETY
