"""The second referee: exact dynamic programming over (stage, first layer) for one 1F1B mesh at full size.

The closed form of 1F1B is a maximum over ranks: the first micro-batch through all stages and back to rank r,
all that r has left to do, and the last micro-batch back to stage 0,

``total + (m - 1) work_r - (min(m, pp - r) - 1) forward_r``,

behind what rank 0 waits for before it starts.

It never exceeds the simulated step, and nearly attains it where transfers take no time and micro-batches
are many. Given its layers, a stage is best with the least recomputation that fits: everything else is the
same or grows with it. So a partial plan is a few numbers (work so far, largest excess, largest update), and
carrying the undominated vectors makes the programme exact for the closed form: a lower bound on every plan of
the mesh. The plan that attains it, simulated, is an upper bound; its critical path can join the vector in
another round. No solver, no integers, no hints: only the prices are shared.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.paths import Path, critical_paths
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.schedule import build
from meshwright.costmodels.step import chunk_times, fixed_bytes, gather_times, price
from meshwright.planner.cpsat.mesh_solver import MeshTask

GRAIN = 2e-5
"""Triples that differ by less than this share of the step count as equal; the lower bound allows for it."""


@dataclass(frozen=True)
class Sandwich:
    """The optimum of one mesh lies between ``lower_s`` and ``upper_s``, the price of ``counts`` (C, K, M)."""

    lower_s: float
    upper_s: float
    peak_bytes: float
    counts: IntArray


@dataclass(frozen=True)
class _Stage:
    """One stage with its least recomputation: terms of the closed form, and counts (K, M)."""

    forward_s: float
    backward_s: float
    ready_s: float
    late_s: float
    excess_s: float
    update_s: float
    counts: IntArray


def _deals(layers: int, modes: IntArray) -> IntArray:
    """Return all ways to deal equal layers to modes, (N, M)."""
    grid = np.array(list(product(range(layers + 1), repeat=len(modes) - 1)), dtype=np.int64)
    grid = grid[grid.sum(axis=1) <= layers]
    table = np.zeros((len(grid), len(MODES)), dtype=np.int64)
    table[:, modes[1:]] = grid
    table[:, modes[0]] = layers - grid.sum(axis=1)
    return table


def _all_deals(task: MeshTask, kinds: tuple[int, ...]) -> IntArray:
    """Return all recomputations of a stage, (N, K, M)."""
    options = np.zeros((1, 0, len(MODES)), dtype=np.int64)
    for k, n in enumerate(kinds):
        own = _deals(n, np.flatnonzero(task.want.allowed[k]))
        left = np.repeat(options, len(own), axis=0)
        options = np.concatenate([left, np.tile(own, (len(options), 1))[:, None]], axis=1)
    return options


def _peaks(task: MeshTask, options: IntArray, live: int) -> FloatArray:
    """Return the bytes of a rank for each recomputation, (N,)."""
    t, growth = task.tables, 1 + task.setting.profile.fragmentation
    present = options > 0
    saved = live * (options * t.saved_bytes[0]).sum(axis=(1, 2))
    working = np.where(present, t.working_bytes[0], 0.0).max(axis=(1, 2))
    states = (options.sum(axis=2) * t.state_bytes[0]).sum(axis=1)
    fixed = sum(float(v[0]) for v in fixed_bytes(task.setting, task.strategies).values())
    return np.asarray(states + growth * (saved + working) + fixed)


class Programme:
    """The dynamic programme of one mesh; ``layers`` counts embedding and head."""

    def __init__(self, task: MeshTask, ceiling_s: float) -> None:
        s = task.strategies
        self.task, self.ceiling_s = task, ceiling_s
        self.pp, self.microbatches = int(s.pp[0]), int(s.num_microbatches[0])
        self.layers = task.graph.num_layers
        self.stage = cache(self._stage)

    def _stage(self, rank: int, kinds: tuple[int, ...]) -> _Stage | None:
        """Return the best stage with these layers, or None if it is too long or does not fit."""
        task, t, profile = self.task, self.task.tables, self.task.setting.profile
        m, behind = self.microbatches, min(self.microbatches, self.pp - rank)
        layers, each, lost = np.array(kinds), float(t.pass_s[0]), profile.overlap_cost
        forward = float(layers @ t.forward_s[0]) + each
        if m * forward > self.ceiling_s:
            return None
        options = _all_deals(task, kinds)
        options = options[_peaks(task, options, behind) <= task.limits.usable]
        if not len(options):
            return None
        seconds = (options * t.backward_s[0]).sum(axis=(1, 2))
        backward = float(seconds.min()) + each
        late = exposed_time(layers @ t.reduce_s[0], profile.overlap_gradients * backward, lost)
        gather = exposed_time(layers @ t.gather_s[0], profile.overlap_parameters * forward, lost)
        return _Stage(
            forward_s=forward,
            backward_s=backward,
            ready_s=float(gather),
            late_s=float(late),
            excess_s=(m - 1) * (forward + backward) - (behind - 1) * forward,
            update_s=float(layers @ t.optimizer_s[0]),
            counts=options[seconds.argmin()],
        )

    def table(self, rank: int, paths: list[Path]) -> FloatArray:
        """Return (excess, update, work, paths ...) of a rank by first layer and stop, (L+1, L+1, P+3)."""
        prefix, last = self.task.graph.prefix_counts, self.layers - (self.pp - 1 - rank)
        found = np.full((self.layers + 1, self.layers + 1, 3 + len(paths)), np.inf)
        ways = [(1, 1, rank == 0, rank == 0)] + [
            (p.forward_counts[rank], p.backward_counts[rank], p.origin == rank, p.rank == rank) for p in paths
        ]
        weights = np.array(ways, dtype=np.float64)
        for start in range(rank, last) if rank else [0]:
            for stop in range(last if rank == self.pp - 1 else start + 1, last + 1):
                own = self.stage(rank, tuple((prefix[stop] - prefix[start]).tolist()))
                if own is not None:
                    found[start, stop, :2] = own.excess_s, own.update_s
                    times = own.forward_s, own.backward_s, own.ready_s, own.late_s
                    found[start, stop, 2:] = weights @ times
        return found

    def run(self, paths: list[Path]) -> tuple[float, IntArray] | None:
        """Return the least of the longest path over all plans with the plan that attains it, (C, K, M)."""
        task, grain = self.task, GRAIN * self.ceiling_s / self.pp
        hops = [2 * (self.pp - 1), *(p.transfers for p in paths)]
        moved = np.array(hops) * float(task.tables.transfer_s[0]) + float(task.setting.profile.step_fixed_s)
        tables = [self.table(rank, paths) for rank in range(self.pp)]
        rest = [np.where(np.arange(self.layers + 1) == self.layers, 0.0, np.inf)[:, None] + 0 * moved]
        for table in reversed(tables):
            rest.insert(0, (table[..., 2:] + rest[0]).min(axis=1))

        def length(points: FloatArray, more: FloatArray) -> FloatArray:
            ways = points[:, 2:] + more
            ways[:, 0] += points[:, 0]
            return np.asarray(ways.max(axis=1) + points[:, 1])

        fronts = {0: (np.zeros((1, 3 + len(paths))), np.zeros((1, 1), dtype=np.int64))}
        for rank, table in enumerate(tables):
            found: dict[int, list[tuple[FloatArray, IntArray]]] = {}
            for start, (points, cuts) in fronts.items():
                for stop in np.flatnonzero(np.isfinite(table[start, :, 0])).tolist():
                    grown = np.maximum(points, table[start, stop])
                    grown[:, 2:] = points[:, 2:] + table[start, stop, 2:]
                    alive = length(grown, rest[rank + 1][stop] + moved) <= self.ceiling_s
                    if alive.any():
                        ways = np.column_stack([cuts[alive], np.full(alive.sum(), stop)])
                        found.setdefault(stop, []).append((grown[alive], ways))
            fronts = {stop: _undominated(items, grain) for stop, items in found.items()}
        if self.layers not in fronts:
            return None
        points, cuts = fronts[self.layers]
        lengths = length(points, moved)
        best = int(lengths.argmin())
        return float(lengths[best]) - GRAIN * self.ceiling_s, self.counts(cuts[best])

    def critical(self, counts: IntArray) -> list[Path]:
        """Return the longest paths of a plan to the end of its first and of its critical rank."""
        task, s, rows = self.task, self.task.strategies, np.array([0])
        schedule = build(s.schedule[0], self.pp, 1, self.microbatches)
        forward, backward, _ = chunk_times(schedule, task.tables, rows, counts[None])
        kinds = counts[None].sum(axis=-1)  # a chunk a rank
        _, ready = gather_times(task.setting, schedule, task.tables, rows, kinds, forward)
        last = int(price(task.setting, s, counts[None], task.tables).critical_rank[0])
        times = forward[0], backward[0], float(task.tables.transfer_s[0])
        return critical_paths(schedule, *times, sorted({0, last}), ready_s=ready[0])

    def counts(self, cuts: IntArray) -> IntArray:
        """Return the best counts of given cut points, (C, K, M)."""
        kinds = np.diff(self.task.graph.prefix_counts[cuts], axis=0).tolist()
        stages = [self.stage(rank, tuple(row)) for rank, row in enumerate(kinds)]
        return np.array([own.counts for own in stages if own is not None])


def _undominated(items: list[tuple[FloatArray, IntArray]], grain: float) -> tuple[FloatArray, IntArray]:
    """Return the vectors that no other one beats everywhere by less than a grain."""
    points, cuts = (np.concatenate(part) for part in zip(*items, strict=True))
    order = np.argsort(points.sum(axis=1), kind="stable")
    kept: list[int] = []
    while len(order):
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[~(points[best] <= points[order] + grain).all(axis=1)]
    return points[kept], cuts[kept]


def dynamic(task: MeshTask, ceiling_s: float, gap: float = 1e-3, rounds: int = 12) -> Sandwich | None:
    """Return bounds on the optimum of a 1F1B mesh, at most ``gap`` apart if ``rounds`` suffice.

    None if no plan takes less than the ceiling.
    """
    programme, paths = Programme(task, ceiling_s), list[Path]()
    lower, best = 0.0, None
    for _ in range(rounds):
        found = programme.run(paths)
        if found is None:
            return best
        lower, counts = max(lower, found[0]), found[1]
        got = price(task.setting, task.strategies, counts[None], task.tables)
        step = float(got.step_time_s[0])
        if best is None or step < best.upper_s:
            best = Sandwich(lower, step, float(got.peak_bytes.max()), counts)
        best = replace(best, lower_s=lower)
        if lower >= best.upper_s * (1 - gap):
            return best
        paths = list(dict.fromkeys([*paths, *programme.critical(counts)]))
    return best
