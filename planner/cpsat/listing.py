"""List every plan of a mesh that could beat a cutoff, and price them all, where these are few.

With one chunk a rank only the cuts are open, and close to the optimum few of them are left: stages must be
nearly equal, and layers are not many more than ranks. A walk over the ranks keeps the beginnings of plans
whose longest path, completed in the shortest way for each path alone, stays below the cutoff. Where more are
left than are worth pricing, it goes on with the most promising; the plans it ends at are good ones, their
critical paths tell beginnings apart better, and it is tried again. What CP-SAT needs many rounds of cuts for
takes a fraction of a second; where plans stay many, CP-SAT goes on from the paths and the plan found here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.paths import Path, base_paths
from meshwright.costmodels.schedule import StaticSchedule
from meshwright.costmodels.step import price
from meshwright.planner.bounds import SAFETY
from meshwright.planner.cpsat.mesh_solver import (
    Candidate,
    MeshTask,
    candidates,
    plan_paths,
    schedule_of,
    stage_mixes,
)
from meshwright.planner.cpsat.scaling import scale
from meshwright.planner.cpsat.stages import Stages, possible_runs, stages_of

MOST = 8_000
"""Beginnings that are kept at a rank, and plans that are listed."""
BEAM = 200
"""Beginnings that are kept instead where there are more."""
WALKS = 3
"""Times that the walk is tried where plans are many."""
TOGETHER = 32
"""Plans that are priced in one call."""
CUT_AT = 4
"""Plans of each call whose critical paths are taken."""


@dataclass(frozen=True)
class Listed:
    """What a listing found.

    Attributes
    ----------
    best
        The fastest plan below the cutoff, or None.
    complete
        Whether every plan below the cutoff was listed: then ``best`` is the mesh's own optimum.
    paths
        Paths that told plans apart.
    """

    best: Candidate | None
    complete: bool
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class _Lengths:
    """What runs add to paths, and how every plan may go on at least.

    Attributes
    ----------
    own
        For each rank the share of each run in each path, (E, P).
    rest
        Least length of each path from a rank's first layer to the end, (C + 1, L + 1, P); infinite where
        there is no way.
    update
        Least of the longest update from there, (C + 1, L + 1).
    """

    own: list[FloatArray]
    rest: FloatArray
    update: FloatArray


def _lengths(stages: Sequence[Stages], paths: Sequence[Path], num_layers: int) -> _Lengths:
    own = [stage.along(rank, paths) for rank, stage in enumerate(stages)]
    rest = np.full((len(stages) + 1, num_layers + 1, len(paths)), np.inf)
    update = np.full(rest.shape[:2], np.inf)
    rest[-1, -1], update[-1, -1] = 0.0, 0.0
    for c in range(len(stages) - 1, -1, -1):
        run = stages[c]
        np.minimum.at(rest[c], run.start, own[c] + rest[c + 1, run.stop])
        np.minimum.at(update[c], run.start, np.maximum(run.update_s, update[c + 1, run.stop]))
    return _Lengths(own, rest, update)


@dataclass(frozen=True)
class _Chains:
    """Beginnings of N plans: the runs of their stages (N, C), their lengths (N, P), and bounds (N,)."""

    runs: IntArray
    lengths: FloatArray
    update_s: FloatArray
    bound_s: FloatArray
    complete: bool = True

    def __len__(self) -> int:
        return len(self.runs)

    def take(self, rows: IntArray, complete: bool | None = None) -> "_Chains":
        """Return some of the chains."""
        every = self.complete if complete is None else complete
        return _Chains(self.runs[rows], self.lengths[rows], self.update_s[rows], self.bound_s[rows], every)


class Listing:
    """The plans of one mesh below a cutoff."""

    def __init__(self, task: MeshTask, schedule: StaticSchedule, stages: list[Stages]) -> None:
        self.task, self.schedule, self.stages = task, schedule, stages
        self.paths: list[Path] = list(base_paths(schedule))
        self.transfer_s = float(task.tables.transfer_s[0])
        self.fixed_s = float(task.setting.profile.step_fixed_s)

    def below(self, cutoff_s: float, walks: int) -> Listed:
        """Return what is found below a cutoff."""
        best: Candidate | None = None
        for _ in range(walks):
            chains = self._walk(cutoff_s)
            found = self._priced(chains, cutoff_s)
            if found is not None:
                best, cutoff_s = found, found.step_s
            if chains.complete:
                return Listed(best, True, tuple(self.paths))
        return Listed(best, False, tuple(self.paths))

    def _hops(self, paths: Sequence[Path]) -> FloatArray:
        """Return what no stage changes of each path, (P,)."""
        return np.array([p.transfers for p in paths]) * self.transfer_s + self.fixed_s

    def _walk(self, cutoff_s: float) -> _Chains:
        """Return all plans whose bound is below the cutoff, or the most promising where they are many."""
        known = _lengths(self.stages, self.paths, self.task.graph.num_layers)
        start = self._hops(self.paths)[None]
        chains = _Chains(np.zeros((1, 0), dtype=np.int64), start, np.zeros(1), np.zeros(1))
        at = np.zeros(1, dtype=np.int64)
        for rank, stage in enumerate(self.stages):
            chains = self._grown(chains, at, rank, known, cutoff_s)
            if len(chains) > MOST:
                promising = np.argsort(chains.bound_s, kind="stable")[:BEAM]
                chains = chains.take(promising, complete=False)
            at = stage.stop[chains.runs[:, rank]]
        return chains

    def _grown(self, chains: _Chains, at: IntArray, rank: int, known: _Lengths, cutoff_s: float) -> _Chains:
        """Return the chains with every run that may follow, as far as they stay below the cutoff."""
        stage = self.stages[rank]
        first, after = np.searchsorted(stage.start, at), np.searchsorted(stage.start, at, side="right")
        ways = after - first
        before = np.repeat(np.arange(len(at)), ways)
        run = np.arange(len(before)) + np.repeat(first - (np.cumsum(ways) - ways), ways)
        found: list[_Chains] = []
        for portion in range(0, len(before), MOST):
            old, new = before[portion : portion + MOST], run[portion : portion + MOST]
            lengths = chains.lengths[old] + known.own[rank][new]
            update = np.maximum(chains.update_s[old], stage.update_s[new])
            to = stage.stop[new]
            bound = (lengths + known.rest[rank + 1, to]).max(axis=1)
            bound = (bound + np.maximum(update, known.update[rank + 1, to])) * SAFETY
            runs = np.column_stack([chains.runs[old], new])
            grown = _Chains(runs, lengths, update, bound, chains.complete)
            found.append(grown.take(np.flatnonzero(bound < cutoff_s)))
        return _joined(found, rank + 1, len(self.paths), chains.complete)

    def _priced(self, chains: _Chains, cutoff_s: float) -> Candidate | None:
        """Return the fastest plan below the cutoff; the critical path of each call rules out more of them."""
        best: Candidate | None = None
        left = chains.take(np.argsort(chains.bound_s, kind="stable"))
        while len(left):
            counts = self._counts(left.runs[:TOGETHER])
            got = self._prices(counts)
            for found in got:
                if found.step_s < cutoff_s and found.fits(self.task.limits):
                    best, cutoff_s = found, found.step_s
            fresh = self._critical(got[:CUT_AT])
            self.paths += fresh
            left = self._ruled_out(left.take(np.arange(TOGETHER, len(left))), fresh, cutoff_s)
        return best

    def _counts(self, runs: IntArray) -> IntArray:
        """Return layers by kind and mode of whole chains, (N, C, K, M)."""
        return np.stack([stage.counts[runs[:, c]] for c, stage in enumerate(self.stages)], axis=1)

    def _prices(self, counts: IntArray) -> list[Candidate]:
        task, rows = self.task, np.zeros(len(counts), dtype=np.int64)
        got = price(task.setting, task.strategies.take(rows), counts, task.tables.take(rows), detail=False)
        cuts = np.pad(counts.sum(axis=(2, 3)).cumsum(axis=1), ((0, 0), (1, 0)))
        return candidates(got, list(counts), list(cuts))

    def _critical(self, plans: Sequence[Candidate]) -> list[Path]:
        """Return the critical paths of plans that are not known yet."""
        fresh: dict[Path, None] = {}
        for plan in plans:
            ranks = sorted({0, plan.critical_rank})
            fresh |= dict.fromkeys(plan_paths(self.task, self.schedule, plan.counts, ranks))
        return [path for path in fresh if path not in set(self.paths)]

    def _ruled_out(self, chains: _Chains, paths: Sequence[Path], cutoff_s: float) -> _Chains:
        """Return the whole chains that stay below the cutoff along more paths, by rising bound."""
        bound = chains.bound_s
        if paths and len(chains):
            lengths = self._hops(paths) + sum(
                stage.along(rank, paths)[chains.runs[:, rank]] for rank, stage in enumerate(self.stages)
            )
            bound = np.maximum(bound, (lengths.max(axis=1) + chains.update_s) * SAFETY)
        kept = np.flatnonzero(bound < cutoff_s)
        kept = kept[np.argsort(bound[kept], kind="stable")]
        return _Chains(
            chains.runs[kept], chains.lengths[kept], chains.update_s[kept], bound[kept], chains.complete
        )


def _joined(parts: Sequence[_Chains], ranks: int, paths: int, complete: bool) -> _Chains:
    """Return several batches of chains as one."""
    if not parts:
        none = np.zeros(0)
        return _Chains(np.zeros((0, ranks), dtype=np.int64), np.zeros((0, paths)), none, none, complete)
    return _Chains(
        np.concatenate([p.runs for p in parts]),
        np.concatenate([p.lengths for p in parts]),
        np.concatenate([p.update_s for p in parts]),
        np.concatenate([p.bound_s for p in parts]),
        complete,
    )


def list_plans(task: MeshTask, cutoff_s: float, walks: int = WALKS) -> Listed | None:
    """Return the plans of a mesh below a cutoff; None where modes do not follow from a stage's layers."""
    schedule = schedule_of(task)
    scaled = scale(task.setting, task.strategies, task.tables, task.want, task.limits)
    mixes = stage_mixes(task, schedule, scaled, cutoff_s)
    if mixes is None:
        return None
    runs = possible_runs(task.graph, schedule.num_chunks, mixes)
    if not all(runs):
        return Listed(None, True, ())
    stages = [stages_of(task.setting, task.tables, schedule, own) for own in runs]
    return Listing(task, schedule, stages).below(cutoff_s, walks)
