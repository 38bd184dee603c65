"""Published runs priced by the planner's own cost models, in batches of runs that share a setting."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from benchmarks import row_settings as settings
from benchmarks.row_cluster import cluster_of
from benchmarks.row_model import graph_of, predicts_ahead
from benchmarks.row_strategy import sequences_of, write
from benchmarks.rows import Row
from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.memory import ITEMS
from meshwright.costmodels.schedule import rank_of_chunk
from meshwright.costmodels.step import Price, price
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.job import Job
from meshwright.planner.meshes import Meshes, mesh_of
from meshwright.planner.plan import Plan
from meshwright.planner.pricing import counts, setting
from meshwright.planner.problem import Problem
from meshwright.planner.rules import rules
from meshwright.planner.strategy import chunks_from, plan_from

OUTSIDE_ALLOCATOR = ("communicators", "context")
"""Items that no framework's allocator sees."""


@dataclass(frozen=True)
class Expressed:
    """A run as a problem and a plan, with what was assumed where its row is silent."""

    row: Row
    problem: Problem
    plan: Plan
    assumptions: tuple[str, ...]

    @cached_property
    def broken_rules(self) -> tuple[str, ...]:
        """Names of the planner's rules that this run breaks; it took place all the same."""
        mesh = mesh_of(self.plan)
        return tuple(rule.name for rule in rules(self.problem) if not rule.allows(mesh)[0])


@dataclass(frozen=True)
class Priced:
    """A run and its price, or the reason why it has none.

    Attributes
    ----------
    expressed
        None if the row cannot be written as a problem and a plan.
    reason
        Why it is not priced; None if it is.
    step_time_s
        Predicted.
    breakdown
        Seconds by cause.
    memory
        Bytes by item on the fullest rank.
    """

    row: Row
    expressed: Expressed | None = None
    reason: str | None = None
    step_time_s: float | None = None
    breakdown: Mapping[str, float] | None = None
    memory: Mapping[str, float] | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, minus one."""
        if self.step_time_s is None or self.row.step_time_s is None:
            return None
        return self.step_time_s / self.row.step_time_s - 1

    @property
    def peak_bytes(self) -> float | None:
        """Everything on the fullest rank."""
        return None if self.memory is None else sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank stays within the device's memory."""
        if self.peak_bytes is None or self.expressed is None:
            return None
        return bool(self.peak_bytes <= self.expressed.problem.cluster.accelerator.memory_bytes)

    @property
    def comparable_bytes(self) -> float | None:
        """What the row's own metric sees of the peak: allocated, reserved, or all of the device."""
        if self.memory is None:
            return None
        metric = (self.row.memory_metric or "").lower()
        hidden = () if "nvidia-smi" in metric else OUTSIDE_ALLOCATOR
        if "allocated" in metric or "active" in metric:
            hidden = (*hidden, "fragmentation")
        return sum(v for item, v in self.memory.items() if item not in hidden)


def express(row: Row) -> Expressed:
    """Return a row as a problem and a plan.

    Raises
    ------
    MeshwrightError
        With the reason if that is impossible.
    """
    graph, about_model = graph_of(row)
    cluster, about_cluster = cluster_of(row)
    batch, length, about_batch = sequences_of(row)
    precision, about_precision = settings.precision_of(row)
    tuning, about_tuning = settings.tuning_of(row)
    optimizer, about_optimizer = settings.optimizer_of(row)
    job = Job(
        batch,
        length,
        precision=precision,
        optimizer=optimizer,
        profile=settings.profile_of(row),
        headroom=0.0,
        tuning=tuning,
        mtp=predicts_ahead(row),
    )
    problem = Problem(graph, cluster, job)
    written = write(row, problem)
    d = written.decisions
    chunks = chunks_from(problem, rank_of_chunk(d["schedule"], d["pp"], d["vpp"]), written.layers_per_stage)
    modes = ["none"] * graph.num_layers
    for layer, mode in zip(graph.block_layers, written.recompute, strict=True):
        modes[layer] = mode
    plan = plan_from(problem, d, chunks, tuple(modes))
    about = (about_model, about_cluster, about_batch, about_precision, about_optimizer, about_tuning)
    notes = tuple(note for each in (*about, written.assumptions) for note in each)
    return Expressed(row, problem, plan, notes)


def price_rows(rows: Iterable[Row], detail: bool = False) -> list[Priced]:
    """Return the prices of rows in their order.

    Parameters
    ----------
    detail
        Whether waiting for transfers is told apart from the pipeline's bubble (twice the time).
    """
    every = tuple(rows)
    answers: dict[str, Priced] = {}
    groups: dict[tuple[object, ...], list[Expressed]] = defaultdict(list)
    for row in every:
        try:
            run = express(row)
        except MeshwrightError as error:
            answers[row.id] = Priced(row, reason=str(error))
        else:
            groups[_shared(run)].append(run)
    for runs in groups.values():
        answers |= {priced.row.id: priced for priced in _price_group(runs, detail)}
    return [answers[row.id] for row in every]


def _shared(run: Expressed) -> tuple[object, ...]:
    """Return what makes runs share a setting: all but the number of blocks that the outermost tier joins.

    A group's time follows from the blocks that it joins, not from those of the whole cluster, so the
    largest cluster of a group prices the others exactly (rings and tori, which wrap around, excepted).
    """
    problem, job = run.problem, run.problem.job
    cluster = problem.cluster
    fabric: object = id(cluster)
    if cluster.tiers[-1].kind not in ("ring", "torus", "line"):
        outermost = replace(cluster.tiers[-1], fan_out=1)
        fabric = (id(cluster.accelerator), cluster.tiers[:-1], outermost, cluster.devices_per_host)
    names = (job.sequence_length, job.precision, job.optimizer, job.profile, job.loss, job.tuning)
    return (id(problem.base), fabric, *names)


def _price_group(runs: Sequence[Expressed], detail: bool) -> list[Priced]:
    try:
        got = _price(runs, detail)
    except MeshwrightError as error:
        if len(runs) == 1:
            return [Priced(runs[0].row, runs[0], reason=str(error))]
        return [priced for run in runs for priced in _price_group([run], detail)]
    return [_priced(run, got, at) for at, run in enumerate(runs)]


def _price(runs: Sequence[Expressed], detail: bool) -> Price:
    tables = [counts(run.problem, run.plan) for run in runs]
    strategies = joined([mesh_of(run.plan) for run in runs]).strategies()
    widest = max(runs, key=lambda run: run.problem.cluster.num_devices)
    return price(setting(widest.problem), strategies, _padded(tables), detail=detail)


def joined(meshes: Sequence[Meshes]) -> Meshes:
    """Return several batches of meshes as one."""
    return Meshes(**{f.name: np.concatenate([getattr(m, f.name) for m in meshes]) for f in fields(Meshes)})


def _padded(tables: Sequence[IntArray]) -> IntArray:
    """Return layer counts of several plans, (B, C, K, M), with zeros beyond a plan's own chunks."""
    most = max(t.shape[1] for t in tables)
    room = [(0, 0), (0, 0), (0, 0), (0, 0)]
    padded = [np.pad(t, [room[0], (0, most - t.shape[1]), room[2], room[3]]) for t in tables]
    return np.concatenate(padded)


def _priced(run: Expressed, got: Price, at: int) -> Priced:
    fullest = int(got.peak_bytes[at].argmax())
    return Priced(
        run.row,
        run,
        step_time_s=float(got.step_time_s[at]),
        breakdown={cause: float(v[at]) for cause, v in got.breakdown.items()},
        memory={item: float(got.memory[item][at, fullest]) for item in ITEMS},
    )
