"""The stages of a pipeline with one chunk a rank: which runs of layers each rank may hold, and their times.

Stages join end to end, so the plans of a mesh are the chains through a graph whose nodes are the places
between layers and whose edges are the runs of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.paths import Path
from meshwright.costmodels.schedule import StaticSchedule
from meshwright.costmodels.step import chunk_times
from meshwright.costmodels.strategy import Setting
from meshwright.costmodels.tables import Tables
from meshwright.planner.cpsat.mixes import StageMixes
from meshwright.planner.graph import ModelGraph

Runs: TypeAlias = dict[tuple[int, int], IntArray]
"""(first layer, stop) of the runs that a stage may hold, with the layers of each kind and mode, (K, M)."""


def possible_runs(graph: ModelGraph, chunks: int, mixes: StageMixes) -> list[Runs]:
    """Return the runs of each chunk that are part of some chain from the first layer to the last."""
    first, last = _reach(graph, chunks, mixes)
    prefix = graph.prefix_counts
    found: list[Runs] = []
    starts = {0}
    for c in range(chunks):
        runs: Runs = {}
        for start in sorted(starts):
            for stop in range(max(start + 1, first[c + 1]), last[c + 1] + 1):
                modes = mixes.fastest(c, tuple((prefix[stop] - prefix[start]).tolist()))
                if modes is None:  # a longer run takes more time and memory
                    break
                runs[start, stop] = modes
        found.append(runs)
        starts = {stop for _, stop in runs}
    goals = {graph.num_layers}
    for c in range(chunks - 1, -1, -1):
        found[c] = {run: modes for run, modes in found[c].items() if run[1] in goals}
        goals = {start for start, _ in found[c]}
    return found


def _reach(graph: ModelGraph, chunks: int, mixes: StageMixes) -> tuple[list[int], list[int]]:
    """Return the least and the most layers that may lie before each chunk, (C + 1,), going by time alone."""
    used = mixes.least_units(graph.prefix_counts)
    total, first, last = graph.num_layers, [graph.num_layers], [0]
    for c in range(chunks):
        before = int(np.searchsorted(used, used[first[-1]] - mixes.most))
        first.append(max(before, chunks - 1 - c))
        after = int(np.searchsorted(used, used[last[-1]] + mixes.most, side="right")) - 1
        last.append(min(after, total - (chunks - 1 - c)))
    return first[::-1], last


@dataclass(frozen=True)
class Stages:
    """The runs that one rank may hold, by rising first layer; E of them.

    Attributes
    ----------
    start, stop
        First layer and the one after the last, (E,).
    forward_s, backward_s, weight_s
        Seconds of a pass, (E,).
    ready_s, late_s, update_s
        Exposed gather before the first pass and gradient reduction behind the last, and optimizer, (E,).
    counts
        Layers by kind and mode, (E, K, M).
    """

    start: IntArray
    stop: IntArray
    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    ready_s: FloatArray
    late_s: FloatArray
    update_s: FloatArray
    counts: IntArray

    def along(self, rank: int, paths: Sequence[Path]) -> FloatArray:
        """Return what each run adds to each path as the stage of a rank, (E, P)."""
        times = [
            (
                p.forward_counts[rank],
                p.backward_counts[rank],
                p.weight_counts[rank],
                p.origin == rank,
                p.rank == rank,
            )
            for p in paths
        ]
        passes = (self.forward_s, self.backward_s, self.weight_s)
        seconds = np.stack([*passes, self.ready_s, self.late_s], axis=1)
        return np.asarray(seconds @ np.array(times, dtype=np.float64).T)


def stages_of(setting: Setting, tables: Tables, schedule: StaticSchedule, runs: Runs) -> Stages:
    """Return the runs of one rank with their times; ``tables`` hold one mesh, and a rank one chunk."""
    profile, places = setting.profile, sorted(runs)
    counts = np.array([runs[place] for place in places])
    rows = np.zeros(len(counts), dtype=np.int64)
    forward, backward, weight = (of[:, 0] for of in chunk_times(schedule, tables, rows, counts[:, None]))
    layers, lost = counts.sum(axis=2), profile.overlap_cost
    window = profile.overlap_gradients * (weight if schedule.split else backward)
    first = profile.overlap_parameters * forward
    start, stop = np.array(places, dtype=np.int64).T
    return Stages(
        start=start,
        stop=stop,
        forward_s=forward,
        backward_s=backward,
        weight_s=weight,
        ready_s=exposed_time(layers @ tables.gather_s[0], first, lost),
        late_s=exposed_time(layers @ tables.reduce_s[0], window, lost),
        update_s=layers @ tables.optimizer_s[0],
        counts=counts,
    )
