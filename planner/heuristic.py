"""First plans: evenly split stages with one recompute mode for all, priced in one call."""

from typing import TYPE_CHECKING

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.layer import MODES
from meshwright.costmodels.step import price
from meshwright.planner.cpsat.mesh_solver import Candidate
from meshwright.planner.graph import ModelGraph
from meshwright.planner.strategy import even_split

if TYPE_CHECKING:
    from meshwright.planner.search import Field, Found


def even_cuts(graph: ModelGraph, chunks: int) -> IntArray | None:
    """Return cut points (C + 1,) of an even split of blocks, or None if a chunk would be empty."""
    blocks = even_split(len(graph.block_layers), chunks)
    start = graph.block_layers[0]
    cuts = np.concatenate([[0], start + np.cumsum(blocks)])
    cuts[-1] = graph.num_layers
    return cuts if (np.diff(cuts) > 0).all() else None


def mode_counts(graph: ModelGraph, cuts: IntArray, mode: int) -> IntArray:
    """Return counts (C, K, M) with all blocks in one mode."""
    kinds = np.diff(graph.prefix_counts[cuts], axis=0)
    table = np.zeros((*kinds.shape, len(MODES)), dtype=np.int64)
    for k, kind in enumerate(graph.kinds):
        table[:, k, mode if kind.role == "block" else 0] = kinds[:, k]
    return table


def even_plans(f: "Field", rows: IntArray) -> "Found | None":
    """Return the fastest plan among rows x modes that fits, or None."""
    from meshwright.planner.search import Found

    graph = f.problem.model
    modes = np.flatnonzero(f.want.allowed[f.want.blocks].any(axis=0))
    tried: list[tuple[int, IntArray, IntArray]] = []
    for row in rows:
        cuts = even_cuts(graph, int(f.meshes.pp[row] * f.meshes.vpp[row]))
        if cuts is not None:
            tried += [(int(row), cuts, mode_counts(graph, cuts, int(m))) for m in modes]
    if not tried:
        return None
    widest = max(len(c) for _, _, c in tried)
    counts = np.zeros((len(tried), widest, len(graph.kinds), len(MODES)), dtype=np.int64)
    for i, (_, _, c) in enumerate(tried):
        counts[i, : len(c)] = c
    index = np.array([row for row, _, _ in tried])
    got = price(f.setting, f.meshes.take(index).strategies(), counts, f.tables.take(index))
    peaks = got.peak_bytes.max(axis=1)
    seconds = np.where(peaks <= f.usable, got.step_time_s, np.inf)
    i = int(seconds.argmin())
    if not np.isfinite(seconds[i]):
        return None
    row, cuts, own = tried[i]
    return Found(row, Candidate(own, cuts, float(seconds[i]), float(peaks[i])))
