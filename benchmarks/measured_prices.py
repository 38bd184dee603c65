"""Published runs priced by the planner's own cost models, in batches of runs that share a setting."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks import row_settings as settings
from benchmarks.row_cluster import cluster_of
from benchmarks.row_elsewhere import filled
from benchmarks.row_mixture import with_experts
from benchmarks.row_model import NotExpressibleError, graph_of, predicts_ahead
from benchmarks.row_profile import profile_of, taken_to_overlap
from benchmarks.row_reading import MisreadRow
from benchmarks.row_settings import captures_graphs
from benchmarks.row_spelling import understood
from benchmarks.row_strategy import sequences_of, with_local_batch, write
from benchmarks.rows import Row, counter_of
from meshwright.costmodels.memory import ITEMS
from meshwright.costmodels.schedule import rank_of_chunk
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.batch import Case, CasePrice, price_cases
from meshwright.planner.job import Job
from meshwright.planner.meshes import mesh_of
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.rules import rules
from meshwright.planner.strategy import chunks_from, plan_from

OUTSIDE_ALLOCATOR = ("communicators", "context")
"""Items that no framework's allocator sees."""

OVERLAPS = "tensor-parallel traffic is taken to overlap, as NeMo's does on the same library"


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
    counted
        The same on the fullest of the ranks that the row's counter was read on.
    idle_bytes
        Of these, what is not allocated when allocation peaks.
    cached_bytes
        Beyond these, empty blocks that an allocator keeps while the device has room.
    """

    row: Row
    expressed: Expressed | None = None
    reason: str | None = None
    step_time_s: float | None = None
    breakdown: Mapping[str, float] | None = None
    memory: Mapping[str, float] | None = None
    counted: Mapping[str, float] | None = None
    idle_bytes: float = 0.0
    cached_bytes: float = 0.0

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
        """What the row's own metric sees of the peak: allocated, reserved, or all of the device.

        A captured graph allocates on one stream: gradients come where activations were.
        """
        if self.counted is None:
            return None
        counter = counter_of(self.row)
        hidden = () if counter == "nvidia-smi" else OUTSIDE_ALLOCATOR
        allocated = counter in ("allocated", "active")
        if allocated:
            hidden = (*hidden, "fragmentation")
        seen = sum(v for item, v in self.counted.items() if item not in hidden)
        empty = min(self.cached_bytes, self._room) if counter in ("reserved", "nvidia-smi") else 0.0
        return seen + empty - (allocated or captures_graphs(self.row)) * self.idle_bytes

    @property
    def _room(self) -> float:
        """Bytes that are left on the counted rank's device."""
        if self.expressed is None or self.counted is None:
            return 0.0
        device = self.expressed.problem.cluster.accelerator
        return max(device.memory_bytes - sum(self.counted.values()), 0.0)


def as_run(row: Row) -> Row:
    """Return a row with the settings that it ran with, where its notes or its batch correct what is printed.

    A note may say that the run took one of the devices that its table names. A batch that holds fewer
    micro-batches than there are replicas ran on as many replicas as it holds.
    """
    if "ran on 1 device" in row.notes.lower():
        return replace(row, num_gpus=1, dp=1, sharding="ddp", sharding_as_printed=None, recompute="none")
    if row.micro_batch is None or row.global_batch is None or row.dp is None or row.num_gpus is None:
        return row
    replicas = row.global_batch // row.micro_batch
    if not 0 < replicas < row.dp or row.num_gpus % row.dp:
        return row
    return replace(row, num_gpus=row.num_gpus // row.dp * replicas, dp=replicas)


def express(row: Row) -> Expressed:
    """Return a row as a problem and a plan.

    Raises
    ------
    MeshwrightError
        With the reason if that is impossible.
    """
    about_reading = _reading(row)
    row, read = understood(row)
    row, told = filled(row)
    row, about_experts = with_experts(row)
    row = with_local_batch(as_run(row))
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
        profile=profile_of(row),
        headroom=0.0,
        tuning=tuning,
        recompute_modules=settings.recompute_modules_of(row),
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
    about = (
        about_reading,
        read,
        told,
        about_experts,
        about_model,
        about_cluster,
        about_batch,
        about_precision,
        about_optimizer,
        about_tuning,
        (OVERLAPS,) if plan.tp > 1 and taken_to_overlap(row) else (),
    )
    notes = tuple(note for each in (*about, written.assumptions) for note in each)
    return Expressed(row, problem, plan, notes)


def _reading(row: Row) -> tuple[str, ...]:
    """Return what was read otherwise than it is written; raises NotExpressibleError if nothing could be."""
    if not isinstance(row, MisreadRow):
        return ()
    if row.unreadable is not None:
        raise NotExpressibleError(row.unreadable)
    return row.misread


def price_rows(rows: Iterable[Row], detail: bool = False) -> list[Priced]:
    """Return the prices of rows in their order.

    Parameters
    ----------
    detail
        Whether waiting for transfers is told apart from the pipeline's bubble (twice the time).
    """
    answers: list[Priced | None] = []
    runs: list[Expressed] = []
    for row in rows:
        try:
            runs.append(express(row))
            answers.append(None)
        except MeshwrightError as error:
            answers.append(Priced(row, reason=str(error)))
    prices = price_cases([Case(run.problem, run.plan) for run in runs], detail)
    got = iter([priced_run(run, price) for run, price in zip(runs, prices, strict=True)])
    return [next(got) if answer is None else answer for answer in answers]


def priced_run(run: Expressed, got: CasePrice | MeshwrightError) -> Priced:
    """Return a run with its price, or with the reason why it has none."""
    if isinstance(got, MeshwrightError):
        return Priced(run.row, run, reason=str(got))
    batch, at = got.batch, got.row
    peaks = batch.peak_bytes[at]
    fullest, read = int(peaks.argmax()), int(peaks[: _ranks_read(run)].argmax())
    return Priced(
        run.row,
        run,
        step_time_s=float(batch.step_time_s[at]),
        breakdown={cause: float(v[at]) for cause, v in batch.breakdown.items()},
        memory={item: float(batch.memory[item][at, fullest]) for item in ITEMS},
        counted={item: float(batch.memory[item][at, read]) for item in ITEMS},
        idle_bytes=float(batch.idle_bytes[at, read]),
        cached_bytes=float(batch.cached_bytes[at, read]),
    )


def _ranks_read(run: Expressed) -> int:
    """Return how many pipeline ranks a row's counter was read on, from the first.

    A framework's allocator is asked on every rank, ``nvidia-smi`` by a person on one node: the first, where
    the job is started. Pipelines lie over the nodes in order, one stage's replicas side by side, unless a
    plan places them otherwise.
    """
    plan, host = run.plan, run.problem.cluster.devices_per_host
    if counter_of(run.row) != "nvidia-smi" or plan.placement[-1] != "pp":
        return plan.pp
    return min(plan.pp, -(-host // (plan.num_devices // plan.pp)))
