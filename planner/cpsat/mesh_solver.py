"""Solve one mesh: propose, simulate, cut, until nothing faster than the cutoff is left."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.completion import late_reduction
from meshwright.costmodels.paths import Path, base_paths, critical_paths, slow_chunk_paths
from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.schedule import StaticSchedule, build
from meshwright.costmodels.step import Price, chunk_times, gather_times, price
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables
from meshwright.planner.bounds import Demand
from meshwright.planner.cpsat.constraints import Constraints
from meshwright.planner.cpsat.mixes import StageMixes
from meshwright.planner.cpsat.objective import Objective
from meshwright.planner.cpsat.relaxation import Relaxation
from meshwright.planner.cpsat.scaling import Limits, Scaled, scale
from meshwright.planner.cpsat.variables import Expression, make_variables
from meshwright.planner.graph import ModelGraph

SEED = 7
RELATIVE_GAP = 1e-4
MAX_ROUNDS = 60
RELAXED_ROUNDS = 40
"""Times that the linear relaxation is cut at most, and for each deterministic second of a mesh's limit."""
RELAXED_CUTS = 3
"""Ranks that end last, to which each of these cuts leads."""
RELAXED_GAP = 1e-5
"""Share by which the relaxation may fall short of its own simulated time."""
MOST_LAYERS_MIXED = 512
"""Layers up to which the modes of every possible stage are decided beforehand; beyond, CP-SAT decides them.
Fronts of stacks of up to n layers hold some n² mixes: with 1,000 layers CP-SAT is twice as fast, with 10,000
the fronts fill gigabytes."""
POLISH_ROUNDS = 6
POLISH_LIMIT = 0.1
"""Deterministic CP-SAT seconds for each of the goals that break ties."""


@dataclass(frozen=True)
class Candidate:
    """A priced assignment of layers: counts (C, K, M), cut points (C + 1,), and what the price says.

    ``peak_bytes``, ``host_bytes`` and ``nvme_bytes`` are those of the fullest device and of the fullest share
    of a host's memory and drives.
    """

    counts: IntArray
    cuts: IntArray
    step_s: float
    peak_bytes: float
    host_bytes: float
    nvme_bytes: float
    critical_rank: int

    def fits(self, limits: Limits) -> bool:
        """Return whether it is within the limits of device, host memory and drives."""
        held = (self.peak_bytes, self.host_bytes, self.nvme_bytes)
        return all(n <= limit for n, limit in zip(held, limits.all, strict=True))


def candidates(got: Price, counts: Sequence[IntArray], cuts: Sequence[IntArray]) -> list[Candidate]:
    """Return the candidates of a batch of prices, in its order."""
    tables = (got.step_time_s, *(t.max(axis=1) for t in (got.peak_bytes, got.host_bytes, got.nvme_bytes)))
    steps, peaks, hosts, drives = (table.tolist() for table in tables)
    return [
        Candidate(n, c, steps[i], peaks[i], hosts[i], drives[i], int(got.critical_rank[i]))
        for i, (n, c) in enumerate(zip(counts, cuts, strict=True))
    ]


@dataclass(frozen=True)
class Outcome:
    """What solving a mesh found.

    Attributes
    ----------
    best
        The fastest plan found below the cutoff, or None.
    bound_s
        No plan of this mesh is faster than this.
    proven
        Whether the search ended by itself rather than at a limit.
    rounds
        Times CP-SAT was called.
    """

    best: Candidate | None
    bound_s: float
    proven: bool
    rounds: int


@dataclass(frozen=True)
class MeshTask:
    """Everything that the model of one mesh needs; batches hold one strategy."""

    setting: Setting
    graph: ModelGraph
    strategies: Strategies
    tables: Tables
    want: Demand
    limits: Limits
    recompute_uniform: bool
    uneven_chunks: bool = False


def schedule_of(task: MeshTask) -> StaticSchedule:
    """Return the schedule that a mesh runs."""
    s = task.strategies
    return build(s.schedule[0], int(s.pp[0]), int(s.vpp[0]), int(s.num_microbatches[0]))


def plan_paths(
    task: MeshTask, schedule: StaticSchedule, counts: IntArray, ranks: Iterable[int]
) -> list[Path]:
    """Return the critical paths of a plan, (C, K, M), to the ends of some ranks.

    Where a rank waits for the reductions of several chunks, also to the last pass of the first of them.
    """
    tables, rows = task.tables, np.array([0])
    forward, backward, weight = chunk_times(schedule, tables, rows, counts[None])
    _, ready = gather_times(task.setting, schedule, tables, rows, counts[None].sum(axis=-1), forward)
    passes = forward[0], backward[0], float(tables.transfer_s[0])
    reduction = counts.sum(axis=-1) @ tables.reduce_s[0]
    early, _ = early_chunks(task.setting, schedule, passes, weight[0], ready[0], reduction)
    chunks = [early[rank] for rank in ranks if early[rank] >= 0]
    return critical_paths(schedule, *passes, ranks, weight[0], ready[0], chunks)


def recomputing_paths(task: MeshTask, schedule: StaticSchedule, kinds: IntArray) -> list[Path]:
    """Return paths that are critical when one of the chunks, of layers (C, K), recomputes all it can."""
    tables, rows = task.tables, np.array([0])
    allowed, backward = task.want.allowed, tables.backward_s[0]
    least = np.where(allowed, backward, np.inf).min(axis=-1, initial=np.inf)
    longer = kinds @ np.where(allowed, backward - least[:, None], 0.0).max(axis=-1)
    counts = np.zeros((1, *kinds.shape, len(MODES)), dtype=np.int64)
    counts[0, :, np.arange(kinds.shape[1]), np.where(allowed, backward, np.inf).argmin(axis=-1)] = kinds.T
    forward, least_backward, weight = chunk_times(schedule, tables, rows, counts)
    _, ready = gather_times(task.setting, schedule, tables, rows, kinds[None], forward)
    passes = forward[0], least_backward[0], float(tables.transfer_s[0])
    return slow_chunk_paths(schedule, passes, longer, weight[0], ready[0])


def early_chunks(
    setting: Setting,
    schedule: StaticSchedule,
    passes: tuple[FloatArray, FloatArray, float],
    weight: FloatArray | float,
    ready: FloatArray,
    reduction: FloatArray,
) -> tuple[list[int], FloatArray]:
    """Return the chunk from which on ranks wait for reductions, -1 if none or the last, and until when, (R,).

    Times are those of the chunks, (C,), in any unit.
    """
    times, profile = simulate(schedule, *passes, weight, ready), setting.profile
    late, awaited = late_reduction(
        schedule, reduction, times, profile.overlap_gradients, profile.overlap_cost
    )
    early = np.where(awaited == schedule.completed[:, -1], -1, awaited)
    return early.tolist(), times.end_s + late


def stage_mixes(
    task: MeshTask, schedule: StaticSchedule, scaled: Scaled, cutoff_s: float
) -> StageMixes | None:
    """Return the fastest modes of a mesh's stages; None where they do not follow from the layers alone."""
    if schedule.vpp > 1 or task.recompute_uniform or task.graph.num_layers > MOST_LAYERS_MIXED:
        return None
    return StageMixes.below(cutoff_s, scaled, task.want, schedule)


class MeshSolver:
    """The CP-SAT model of one mesh with its lazy cuts."""

    def __init__(self, task: MeshTask, cutoff_s: float, limit: float) -> None:
        self.task, self.limit = task, limit
        s = task.strategies
        self.schedule = schedule_of(task)
        self.scaled: Scaled = scale(task.setting, s, task.tables, task.want, task.limits)
        self.model = cp_model.CpModel()
        mixes = stage_mixes(task, self.schedule, self.scaled, cutoff_s)
        free = self.schedule.vpp == 1 or task.uneven_chunks
        self.variables = make_variables(self.model, self.schedule, task.graph, task.want, mixes, free)
        self.constraints = Constraints(self.variables, self.scaled, task.recompute_uniform)
        self.constraints.add_all()
        self.objective = Objective(self.variables, self.scaled, self.scaled.floor_time(cutoff_s))
        self.objective.cut(base_paths(self.schedule))

    def solve(
        self,
        cutoff_s: float,
        tolerance: float,
        start: Candidate | None = None,
        paths: Sequence[Path] = (),
    ) -> Outcome:
        """Return the best plan faster than ``cutoff_s``, within ``tolerance``.

        It begins from the plan ``start``, and from cuts along ``paths`` beside the schedule's own.
        """
        best: Candidate | None = None
        bound, spent, rounds = 0.0, 0.0, 0
        self.objective.cut(paths)
        if start is not None:
            self._cut_at(start)
            self.variables.hint(start.counts)
        self.objective.minimise()
        relaxed = self.variables.by_rank and start is not None  # else the answer may be that none fits
        if relaxed:
            self._cut_relaxed()
        while True:
            solver = self._run(self.limit - spent)
            status, rounds = solver.status, rounds + 1
            spent += solver.deterministic_s
            if status == cp_model.INFEASIBLE:
                return Outcome(best, max(bound, cutoff_s), True, rounds)
            bound = max(bound, min(cutoff_s, solver.bound * self.scaled.unit_s))
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                return Outcome(best, bound, False, rounds)
            found = self.priced(solver.counts, solver.cuts)
            if found.step_s < cutoff_s:
                best, cutoff_s = found, found.step_s * (1 - tolerance)
                self.model.add(self.objective.total <= self.scaled.floor_time(cutoff_s))
            if solver.bound * self.scaled.unit_s >= cutoff_s:
                return Outcome(best, cutoff_s, True, rounds)
            if spent >= self.limit or rounds >= MAX_ROUNDS:
                return Outcome(best, bound, False, rounds)
            if rounds == 1 and self.schedule.vpp > 1:
                self.objective.cut(recomputing_paths(self.task, self.schedule, found.counts.sum(axis=-1)))
            if rounds == 1 and not relaxed:
                self._cut_relaxed()
            self._cut_at(found)
            self.variables.hint(found.counts)

    def polish(self, best: Candidate, ceiling_s: float) -> Candidate:
        """Return the plan within ``ceiling_s`` with least recomputation, then peak, then unevenness."""
        for goal in (self._recomputation(), self.constraints.peak, self._unevenness()):
            best, value = self._least(goal, best, ceiling_s)
            if value is not None:
                self.model.add(goal <= value)
        return best

    def _least(self, goal: Expression, best: Candidate, ceiling_s: float) -> tuple[Candidate, int | None]:
        """Minimise a goal under the ceiling, cutting off proposals whose price exceeds it."""
        self.model.minimize(goal)
        for _ in range(POLISH_ROUNDS):
            self.variables.hint(best.counts)
            answer = self._run(POLISH_LIMIT)
            if answer.status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                return best, None
            found = self.priced(answer.counts, answer.cuts)
            if found.step_s <= ceiling_s:
                return found, answer.goal
            self._cut_at(found)
        return best, None

    def lightest(self) -> Candidate | None:
        """Return the plan with the lowest peak memory, whatever its time."""
        self.model.minimize(self.constraints.peak)
        answer = self._run(self.limit)
        return self.priced(answer.counts, answer.cuts) if len(answer.counts) else None

    def _recomputation(self) -> Expression:
        """Return the recomputation of all chunks in units of time."""
        base = self.scaled.backward[:, 0]
        rows = self.variables.counts
        terms = [int(self.scaled.backward[k, m] - base[k]) * n for row in rows for (k, m), n in row.items()]
        return cp_model.LinearExpr.sum(terms)

    def _unevenness(self) -> Expression:
        """Return the largest minus the smallest number of blocks in a chunk."""
        v = self.variables
        blocks = [
            cp_model.LinearExpr.sum([n for (k, _), n in row.items() if v.want.blocks[k]] or [0])
            for row in v.counts
        ]
        most = int(v.want.layers[v.want.blocks].sum())
        high, low = v.model.new_int_var(0, most, "high"), v.model.new_int_var(0, most, "low")
        for block in blocks:
            v.model.add(high >= block)
            v.model.add(low <= block)
        return high - low

    def _run(self, limit: float) -> "_Answer":
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = SEED
        parameters.max_deterministic_time = max(limit, 0.01)
        parameters.relative_gap_limit = RELATIVE_GAP
        parameters.cp_model_probing_level = 0  # costs more than it gives on models this small
        parameters.symmetry_level = 0
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            known = solver.best_objective_bound if status == cp_model.UNKNOWN else 0.0
            return _Answer(status, known, solver.deterministic_time, np.empty(0, int), np.empty(0, int), 0)
        counts, cuts = self._read(solver.value)
        known, goal = solver.best_objective_bound, round(solver.objective_value)
        return _Answer(status, known, solver.deterministic_time, counts, cuts, goal)

    def _read(self, value: Callable[..., int]) -> tuple[IntArray, IntArray]:
        """Return counts (C, K, M) and cut points (C + 1,) of the solution."""
        v = self.variables
        counts = np.zeros((len(v.counts), len(v.graph.kinds), len(MODES)), dtype=np.int64)
        for c, row in enumerate(v.counts):
            for (k, m), n in row.items():
                counts[c, k, m] = n if isinstance(n, int) else value(n)
        cuts = np.concatenate([[0], counts.sum(axis=(1, 2)).cumsum()])
        return counts, cuts

    def priced(self, counts: IntArray, cuts: IntArray) -> Candidate:
        """Return the floating-point price of an assignment."""
        task = self.task
        got = price(task.setting, task.strategies, counts[None], task.tables, detail=False)
        return candidates(got, [counts], [cuts])[0]

    def _cut_relaxed(self) -> None:
        """Cut at the optimum of the linear relaxation until its bound is its simulated time."""
        goals, relaxed = self.objective, Relaxation(self.model)
        transfer = float(self.task.tables.transfer_s[0])
        for _ in range(round(RELAXED_ROUNDS * min(1.0, self.limit))):
            if not relaxed.solve():  # nothing is left below the cutoff, which CP-SAT will find as well
                return
            forward, backward = relaxed.values(goals.forward), relaxed.values(goals.backward)
            weight = relaxed.values(goals.weight) if self.schedule.split else 0.0
            moved = transfer / self.scaled.unit_s
            times = forward, backward, moved
            ready, reduction = relaxed.values(goals.ready), np.zeros(self.schedule.num_chunks)
            if self.schedule.vpp > 1:
                reduction = relaxed.values(goals.reduction)
            early, ends = early_chunks(self.task.setting, self.schedule, times, weight, ready, reduction)
            if max(ends) <= relaxed.values([goals.finish])[0] * (1 + RELAXED_GAP):
                return
            latest = np.argsort(ends)[-RELAXED_CUTS:].tolist()
            chunks = [early[rank] for rank in latest if early[rank] >= 0]
            goals.cut(critical_paths(self.schedule, *times, latest, weight, ready, chunks))

    def _cut_at(self, found: Candidate) -> None:
        """Cut with the critical paths of a plan, to the end of every rank that could be last."""
        ranks = {0, self.schedule.pp - 1, found.critical_rank}
        self.objective.cut(plan_paths(self.task, self.schedule, found.counts, ranks))


@dataclass(frozen=True)
class _Answer:
    """One CP-SAT call."""

    status: cp_model.CpSolverStatus
    bound: float
    deterministic_s: float
    counts: IntArray
    cuts: IntArray
    goal: int
