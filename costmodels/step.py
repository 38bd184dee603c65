"""The price of plans: one training step in seconds, told by cause, and every device's memory.

A step ends when the slowest rank has reduced its gradients and the slowest rank has updated its share (the
gradient norm is a barrier between the two):

``step = max_r(end_r + exposed reduction_r) + max_r(optimizer_r) + fixed``

where ``end_r`` comes from the event simulation of the pipeline. The gradients of a chunk are reduced beside
its last backward pass (its last weight pass where the schedule tells these apart) and what the rank runs
after it (:mod:`meshwright.costmodels.completion`), updated parameters are gathered beside the first forward
pass of each chunk and what the rank runs before it (stages 1 and 2), by the profile's shares. What is left
of a gather holds up the chunk's first pass: all ranks gather at once, so a chunk whose input arrives later
feels nothing of it. Left out: optimizers that run on while other ranks start the next step.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.completion import late_reduction
from meshwright.costmodels.layer import CAUSES as LAYER_CAUSES
from meshwright.costmodels.memory import ITEMS, activation_bytes
from meshwright.costmodels.overlap import ready_in_turn
from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.schedule import StaticSchedule, build
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import BACKWARD, FORWARD, Tables, build_tables
from meshwright.costmodels.waiting import lost_bytes

CAUSES = (
    "forward",
    "backward",
    "recompute",
    *LAYER_CAUSES,
    "parameter_gather",
    "activation_offload",
    "host",
    "bubble",
    "pipeline_transfer",
    "gradient_reduction",
    "optimizer",
    "fixed",
)
"""Where a step's time goes, told for the busiest rank: the rest until the last rank ends is its bubble.

Communication counts only as far as it is exposed."""

ROUNDING = 1e-12
"""Waiting below this share of a step is the rounding of sums."""

HIDDEN = (*LAYER_CAUSES, "parameter_gather", "gradient_reduction")
"""Communication of a step that runs beside compute, on the busiest rank."""


@dataclass(frozen=True)
class Price:
    """Prices of B plans; R is the largest pipeline degree among them.

    Attributes
    ----------
    step_time_s
        (B,).
    breakdown
        Seconds by cause, each (B,); they add up to ``step_time_s``.
    hidden
        Seconds by cause, each (B,).
    memory
        Bytes by item, each (B, R); zero beyond a plan's own ranks.
    idle_bytes
        Of these, gradients still to come when allocation peaks; an allocator keeps their room, (B, R).
    cached_bytes
        Beyond these, empty blocks that an allocator keeps while the device has room, (B, R).
    flops
        Executed on one device of each pipeline rank, (B, R).
    host_bytes
        What each device keeps in host memory: offloaded states and activations in flight, (B, R).
    nvme_bytes
        What each device keeps on its host's drives: offloaded states, (B, R).
    critical_rank
        The rank that the step waits for, (B,).
    """

    step_time_s: FloatArray
    breakdown: Mapping[str, FloatArray]
    hidden: Mapping[str, FloatArray]
    memory: Mapping[str, FloatArray]
    idle_bytes: FloatArray
    cached_bytes: FloatArray
    flops: FloatArray
    host_bytes: FloatArray
    nvme_bytes: FloatArray
    critical_rank: IntArray

    @cached_property
    def peak_bytes(self) -> FloatArray:
        """Bytes on each pipeline rank, (B, R)."""
        return np.asarray(np.sum([self.memory[item] for item in ITEMS], axis=0))


def price(
    setting: Setting,
    strategies: Strategies,
    counts: IntArray,
    tables: Tables | None = None,
    detail: bool = True,
) -> Price:
    """Return the price of a batch of plans.

    Parameters
    ----------
    setting
        What the plans share.
    strategies
        B strategies.
    counts
        Layers of each kind and recompute mode in each chunk, (B, C, K, M); zero beyond a plan's chunks.
    tables
        From :func:`~meshwright.costmodels.tables.build_tables`, if at hand.
    detail
        Whether waiting for transfers is told apart from the bubble, at the cost of a second simulation.
    """
    tables = build_tables(setting, strategies) if tables is None else tables
    size, ranks = len(strategies), int(strategies.pp.max())
    names = [f"time.{c}" for c in CAUSES] + [f"hidden.{c}" for c in HIDDEN]
    flat = {name: np.zeros(size) for name in names}
    wide = {item: np.zeros((size, ranks)) for item in (*ITEMS, "idle", "cached", "flops", "host", "nvme")}
    critical = np.zeros(size, dtype=np.int64)
    for schedule, rows in _structures(strategies):
        own = counts[rows, : schedule.num_chunks]
        seconds, critical[rows] = _time(setting, tables, schedule, rows, own, detail)
        memory = _memory(setting, tables, strategies, schedule, rows, own)
        for name, column in seconds.items():
            flat[name][rows] = column
        for item, block in memory.items():
            wide[item][rows, : schedule.pp] = block
    return Price(
        step_time_s=np.sum([flat[f"time.{c}"] for c in CAUSES], axis=0),
        breakdown={c: flat[f"time.{c}"] for c in CAUSES},
        hidden={c: flat[f"hidden.{c}"] for c in HIDDEN},
        memory={item: wide[item] for item in ITEMS},
        idle_bytes=wide["idle"],
        cached_bytes=wide["cached"],
        flops=wide["flops"],
        host_bytes=wide["host"],
        nvme_bytes=wide["nvme"],
        critical_rank=critical,
    )


def _structures(s: Strategies) -> Iterator[tuple[StaticSchedule, IntArray]]:
    """Yield each distinct schedule with the rows that run it."""
    names = sorted(set(s.schedule))
    code = np.array([names.index(n) for n in s.schedule], dtype=np.int64)
    keys, back = np.unique(np.stack([code, s.pp, s.vpp, s.num_microbatches]), axis=1, return_inverse=True)
    order = np.argsort(back.reshape(-1), kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(back.reshape(-1)))[:-1])
    for (name, pp, vpp, m), rows in zip(keys.T, groups, strict=True):
        yield build(names[name], int(pp), int(vpp), int(m)), rows


def chunk_times(
    schedule: StaticSchedule, tables: Tables, rows: IntArray, counts: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return forward, backward and weight seconds of each chunk, each (b, C), for counts (b, C, K, M).

    The weight gradients are zero, and part of the backward, where the schedule does not tell them apart.
    """
    each = tables.pass_s[rows][:, None]
    forward = np.einsum("bckm,bk->bc", counts, tables.forward_s[rows])
    backward = np.einsum("bckm,bkm->bc", counts, tables.backward_s[rows])
    if not schedule.split:
        return forward + each, backward + each, np.zeros_like(backward)
    weight = np.minimum(np.einsum("bckm,bk->bc", counts, tables.weight_s[rows]), backward)
    return forward + each, backward - weight + each, weight


def gather_times(
    setting: Setting,
    schedule: StaticSchedule,
    tables: Tables,
    rows: IntArray,
    kinds: IntArray,
    forward: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return seconds of gathering updated parameters for chunks, and when each may start, (b, C).

    For layers (b, C, K) and forward seconds (b, C) of chunks. A rank gathers for one chunk behind another
    (Megatron-LM's ``param_sync_func`` in ``core/pipeline_parallel/schedules.py``; that it begins with a chunk
    only when the one before starts is left out).
    """
    gather, order = np.einsum("bck,bk->bc", kinds, tables.gather_s[rows]), schedule.chunks_of_rank
    profile, ready = setting.profile, np.empty_like(gather)
    share, cost = profile.overlap_parameters, profile.overlap_cost
    ready[:, order] = ready_in_turn(gather[:, order], forward[:, order], share, cost)
    return gather, ready


def _by_rank(schedule: StaticSchedule, values: FloatArray | IntArray) -> FloatArray:
    """Return values of chunks (b, C, ...) summed on their ranks, (b, R, ...)."""
    placed = (schedule.rank_of_chunk == np.arange(schedule.pp)[:, None]).astype(np.float64)
    return np.asarray(np.einsum("rc,bc...->br...", placed, values))


def _pick(values: FloatArray, index: IntArray) -> FloatArray:
    """Return ``values[b, index[b]]``."""
    return np.asarray(np.take_along_axis(values, index[:, None], axis=1)[:, 0])


def _time(
    setting: Setting, tables: Tables, schedule: StaticSchedule, rows: IntArray, counts: IntArray, detail: bool
) -> tuple[dict[str, FloatArray], IntArray]:
    """Return seconds by cause, hidden seconds and the critical rank for the rows of one schedule."""
    m, profile = schedule.num_microbatches, setting.profile
    forward, backward, weight = chunk_times(schedule, tables, rows, counts)
    layers = _by_rank(schedule, counts)
    kinds, transfer = layers.sum(axis=-1), tables.transfer_s[rows]
    gather, ready = gather_times(setting, schedule, tables, rows, counts.sum(axis=-1), forward)
    early = ready[:, schedule.chunks_of_rank[:, 0]]
    times = simulate(schedule, forward, backward, transfer, weight, ready)
    told_apart = detail and schedule.vpp > 1
    ready = ready * (np.arange(schedule.num_chunks) < schedule.pp)
    there = simulate(schedule, forward, backward, transfer, weight, ready) if told_apart else times
    instant = simulate(schedule, forward, backward, 0.0, weight, ready) if detail else times

    reduction = np.einsum("bck,bk->bc", counts.sum(axis=-1), tables.reduce_s[rows])
    late, _ = late_reduction(schedule, reduction, times, profile.overlap_gradients, profile.overlap_cost)
    rank = (times.end_s + late).argmax(axis=1)
    update = np.einsum("brk,bk->br", kinds, tables.optimizer_s[rows]).max(axis=1)

    end, end_there, end_instant = (_pick(t.end_s, rank) for t in (times, there, instant))
    taken = instant.busy_s + early
    busiest = taken.argmax(axis=1)  # it may end after the rank that the step waits for
    told = np.where(_pick(taken, busiest) <= end_instant, busiest, rank)
    on_rank = np.take_along_axis(layers, told[:, None, None, None], axis=1)[:, 0]
    kinds_on_rank = on_rank.sum(axis=-1)
    ahead = m * np.einsum("bk,bkp->pb", kinds_on_rank, tables.forward_parts[rows])
    back = m * np.einsum("bkm,bkmp->pb", on_rank, tables.backward_parts[rows])
    own = dict.fromkeys((*FORWARD, *BACKWARD), np.zeros(len(rows)))
    for name, seconds in (*zip(FORWARD, ahead, strict=True), *zip(BACKWARD, back, strict=True)):
        own[name] = own[name] + seconds
    gathered = _pick(early, told) + end - end_there
    own["parameter_gather"] = own["parameter_gather"] + gathered
    own["gradient_reduction"] = own["gradient_reduction"] + _pick(late, rank)
    waited = end_instant - _pick(taken, told)
    spent = own | {
        "bubble": np.where(waited > ROUNDING * end, waited, 0.0),
        "pipeline_transfer": end_there - end_instant + 2 * m * schedule.vpp * tables.pass_s[rows],
        "optimizer": update,
        "fixed": np.full(len(rows), profile.step_fixed_s),
    }
    hidden = {
        **dict(
            zip(
                LAYER_CAUSES,
                m * np.einsum("bk,bkc->cb", kinds_on_rank, tables.hidden_comm_s[rows]),
                strict=True,
            )
        ),
        "parameter_gather": m * np.einsum("bk,bk->b", kinds_on_rank, tables.hidden_gather_s[rows])
        + np.maximum(_pick(_by_rank(schedule, gather), told) - gathered, 0.0),
        "gradient_reduction": m * np.einsum("bk,bk->b", kinds_on_rank, tables.hidden_reduce_s[rows])
        + _pick(_by_rank(schedule, reduction) - late, rank),
    }
    return {f"time.{k}": v for k, v in spent.items()} | {f"hidden.{k}": v for k, v in hidden.items()}, rank


def _memory(
    setting: Setting,
    tables: Tables,
    s: Strategies,
    schedule: StaticSchedule,
    rows: IntArray,
    counts: IntArray,
) -> dict[str, FloatArray]:
    """Return bytes by item on each rank, each (b, R), and FLOPs, for the rows of one schedule."""
    layers = _by_rank(schedule, counts)
    held = tables.states.map(lambda v: np.einsum("brkm,bk->br", layers, v[rows]))
    saved = np.einsum("bckm,bkm->bc", counts, tables.saved_bytes[rows])
    present = layers > 0
    working, gathered = _fullest(tables, rows, present)
    lost = lost_bytes(working, tables.waiting_bytes[rows][:, None])
    away = np.einsum("bckm,bkm->bc", counts, tables.offloaded_bytes[rows])
    kept = activation_bytes(schedule, saved)
    states_away, drives = np.einsum("brkm,bk->br", layers, tables.host_bytes[rows]), s.on_nvme[rows][:, None]
    one = np.ones_like(kept)
    fixed = fixed_bytes(setting, s.take(rows))
    return {
        "weights": held.weights,
        "gradients": held.gradients,
        "master_weights": held.master_weights,
        "optimizer_moments": held.optimizer_moments,
        "activations": kept,
        "gathered_parameters": gathered,
        "working_set": working - gathered - lost,
        "fragmentation": setting.profile.fragmentation * (kept + working) + lost,
        **{item: one * column[:, None] for item, column in fixed.items()},
        "idle": awaited_gradients(setting, s.take(rows))[:, None] * np.minimum(held.gradients, kept),
        "cached": setting.profile.cached * (kept + working),
        "host": activation_bytes(schedule, away) + states_away * ~drives,
        "nvme": states_away * drives,
        "flops": schedule.num_microbatches * np.einsum("brkm,bkm->br", layers, tables.flops[rows]),
    }


def awaited_gradients(setting: Setting, s: Strategies) -> BoolArray:
    """Return where sharded gradients appear only as activations go, (B,).

    A step of one micro-batch starts without gradients (PyTorch sets them to none) and scatters them as its
    backward pass frees activations layer by layer: allocation peaks either at its start or, where gradients
    outweigh activations, at its end. They are allocated on a stream of their own, whose blocks no other
    stream may use (CUDA caching allocator), so that what is reserved holds both. Gradients in buffers that
    live from step to step exist throughout.
    """
    sharded = (s.zero_stage >= 2) & (s.shards > 1) & (s.num_microbatches == 1)
    return np.asarray(sharded & (not setting.profile.working_copy))


def _fullest(tables: Tables, rows: IntArray, present: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return what each rank's neediest layer has while it runs, and the gathered weights in it, (b, R)."""
    needs = np.where(present, tables.working_bytes[rows][:, None], 0.0)
    flat = needs.reshape(*needs.shape[:2], -1)
    kind = flat.argmax(axis=-1) // needs.shape[-1]
    gathered = np.take_along_axis(tables.gathered_bytes[rows], kind, axis=-1)
    return flat.max(axis=-1), np.where(present.any(axis=(-2, -1)), gathered, 0.0)


def fixed_bytes(setting: Setting, s: Strategies) -> dict[str, FloatArray]:
    """Return what a device holds whatever its layers are, each (B,).

    Two buckets are alive where one is filled while another is reduced; a pipeline reduces behind its last
    pass (DeepSpeed switches ``overlap_comm`` off under a ``PipelineModule``).
    """
    beside = (np.asarray(setting.profile.overlap_gradients) > 0) & (s.pp == 1)
    return {
        "buckets": np.where(s.dp * s.cp > 1, (1.0 + beside) * setting.profile.bucket_bytes, 0.0),
        "communicators": np.where(s.devices > 1, float(setting.profile.communicator_bytes), 0.0),
        "context": np.full(len(s), setting.cluster.accelerator.achieved.context_bytes),
    }
