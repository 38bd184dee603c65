"""The strategy of a published run: the degrees, micro-batches, schedule and stages that a row prints.

What a row leaves open takes the value that its other figures imply, or the one that a practitioner of its
framework would choose; each such choice is recorded. No rule of legality stops a run that took place.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks import row_settings as settings
from benchmarks.row_cluster import slice_count
from benchmarks.row_model import NotExpressibleError, experts_of
from benchmarks.rows import Row
from meshwright.costmodels.recompute import has_experts
from meshwright.costmodels.schedule import legal
from meshwright.planner.degree_group import divisors
from meshwright.planner.model_rules import MOST_MICROBATCHES
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import even_split

STATE_BYTES: Final = 18
"""Of a parameter under Megatron's mixed precision; a guessed split must hold them and activations."""
SHARDED_BYTES: Final = 12
"""Of them, those that ZeRO-1 splits over the replicas: master weight and two moments."""
ACTIVATION_BYTES: Final = 34
"""Of a token, feature and layer without recomputation (arXiv 2205.05198, equation 2)."""
LOGIT_BYTES: Final = 12
"""Of a token and word of the vocabulary: 16-bit logits, their fp32 softmax and its gradients."""
USED_SHARE: Final = 0.9
"""Of a device's memory that a practitioner fills."""
_INTERLEAVED_LATER: Final = 2024
"""From then on Megatron's pipelines of which nothing is printed have virtual stages."""


AHEAD: Final = "its pipeline engine issues a forward before it waits for a gradient: one more in flight"


SINGLE_LATER: Final = 2025
"""From then on torchtitan's pipelines split a batch into single sequences; before, into one for each rank
(its options ``pipeline_parallel_microbatch_size`` and ``pipeline_parallel_microbatches``)."""
TITAN_CHUNKS: Final = 2
"""Stages of a rank under torchtitan's multi-stage schedules, unless a configuration gives split points or the
layers of a stage (torchtitan/distributed/pipeline_parallel.py)."""


_LOCAL_BATCHES: Final = (("deepseek-v3-16b", 4), ("70b", 8), ("405b", 2))
"""Sequences of a rank in torchtitan's configurations (``local_batch_size`` of ``deepseek_v3_16b.toml``, 8 in
2025, ``llama3_70b.toml`` and ``llama3_405b.toml``); in those of smaller models one."""


@dataclass(frozen=True, slots=True)
class Written:
    """A strategy in the planner's words.

    Attributes
    ----------
    decisions
        Of the mesh, by name.
    layers_per_stage
        Blocks of each chunk in model order.
    recompute
        Mode of each block.
    assumptions
        What the row does not say.
    """

    decisions: dict[str, Any]
    layers_per_stage: tuple[int, ...]
    recompute: tuple[str, ...]
    assumptions: tuple[str, ...]


def with_local_batch(row: Row) -> Row:
    """Return a row of torchtitan that states no batch at all with that of its model's configuration."""
    stated = (row.micro_batch, row.grad_accum, row.global_batch)
    if "torchtitan" not in row.framework.lower() or stated != (None,) * 3:
        return row
    own = (size for name, size in _LOCAL_BATCHES if name in row.model_name.lower())
    return replace(row, micro_batch=next(own, 1))


def sequences_of(row: Row) -> tuple[int, int, tuple[str, ...]]:
    """Return sequences of a step and tokens of each, and what was assumed."""
    assumed: tuple[str, ...] = ()
    if row.seq_len is None:
        assumed += ("sequence length not stated: 2,048",)
    batch = row.global_batch
    if batch is None:
        batch = (row.micro_batch or 1) * (row.grad_accum or 1) * (row.dp or 1)
        assumed += (f"global batch not stated: {batch}, one micro-batch a replica and pass",)
    return batch, row.seq_len or 2048, assumed


def degrees_of(row: Row, problem: Problem) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return tp, cp, pp, dp, ep and etp, and what was assumed.

    Raises
    ------
    NotExpressibleError
        If the printed degrees cannot be laid on the devices.
    """
    devices, cp = problem.cluster.num_devices, row.cp or 1
    if cp > devices:
        raise NotExpressibleError(f"cp {cp} does not divide {devices} devices")
    assumed: tuple[str, ...] = ()
    tp, pp = row.tp, row.pp
    if tp is None or pp is None:
        tp, pp = _split(row, problem)
        assumed += (f"tensor and pipeline degrees not stated: tp {tp}, pp {pp}",)
    dp, left = divmod(devices, tp * cp * pp)
    if left or not dp:
        raise NotExpressibleError(f"tp {tp} x cp {cp} x pp {pp} does not divide {devices} devices")
    if row.dp is not None and row.dp != dp:
        assumed += (f"dp {row.dp} is printed, {devices} devices leave {dp}",)
    ep, told = _expert_degree(row, problem, tp * cp * dp)
    assumed += told
    if tp * cp * dp % ep:
        raise NotExpressibleError(
            f"ep {ep} does not divide the {tp * cp * dp} ranks that tp, cp and dp leave"
        )
    etp, told = _expert_tensor(row, ep, tp, tp * cp * dp)
    return {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}, (*assumed, *told)


def _expert_degree(row: Row, problem: Problem, ranks: int) -> tuple[int, tuple[str, ...]]:
    """Return the expert degree, and what was assumed.

    Megatron's guides put experts on as many ranks as share the fastest link, one expert each at most
    (Megatron-Core MoE documentation: expert parallelism inside NVLink domains first); elsewhere every rank
    has all of them unless told.
    """
    if not any(map(has_experts, problem.model.kinds)):
        return 1, (f"ep {row.ep} is printed, the model has no experts",) if (row.ep or 1) > 1 else ()
    if row.ep is not None or row.moe is None:
        return row.ep or 1, ()
    if not settings.megatron(row):
        return 1, ("expert degree not stated: 1",)
    experts = experts_of(row).get("experts") or 1
    node = problem.cluster.tiers[0].fan_out
    ep = max(d for d in divisors(ranks) if d <= node and experts % d == 0)
    return ep, (f"expert degree not stated: {ep}, the ranks of a node",)


def _expert_tensor(row: Row, ep: int, tp: int, ranks: int) -> tuple[int, tuple[str, ...]]:
    """Return the expert-tensor degree, and what was assumed: no row prints one.

    Megatron-Core splits experts as it splits the other products unless told otherwise
    (``--expert-tensor-parallel-size`` defaults to the tensor degree); the recipes of NeMo and of
    Megatron-Bridge say 1, and other stacks have no such split.
    """
    if row.moe is None:
        return 1, ()
    recipes = re.search(r"bridge|nemo", row.framework.lower())
    if settings.megatron(row) and not recipes and ranks % (ep * tp) == 0:
        return tp, (f"expert-tensor degree not stated: {tp}, the tensor degree, as Megatron-Core has it",)
    return 1, ("expert-tensor degree not stated: 1",)


def _split(row: Row, problem: Problem) -> tuple[int, int]:
    """Return the tensor and pipeline degrees: what the stated degrees leave, else a practitioner's choice.

    Where replicas are not counted either, a descendant of Megatron splits a model over the fewest devices
    that hold it, by tensors up to a node first; other stacks split by nothing that they do not say.
    """
    devices = problem.cluster.num_devices // (row.cp or 1)
    stated = (row.tp or 1) * (row.pp or 1)
    together = row.stated("model_parallel_size") or (devices // row.dp if row.dp else None)
    if not together or together % stated:
        if not settings.megatron(row):
            return row.tp or 1, row.pp or 1
        fewest = devices / (row.global_batch or devices)  # every replica has a sequence
        able = (n for n in divisors(devices) if n >= fewest and _fits(row, problem, n, devices // n))
        together = next((n for n in able if n % stated == 0), stated)
    left = together // stated
    if row.tp is not None:
        return row.tp, (row.pp or 1) * left
    if row.pp is not None:
        return left, row.pp
    node = min(problem.cluster.tiers[0].fan_out, 8)
    tp = max(d for d in divisors(together) if d <= node)
    return tp, together // tp


def _fits(
    row: Row, problem: Problem, together: int, dp: int, sequences: int = 1, stage: int | None = None
) -> bool:
    """Return whether a model split over ``together`` devices leaves room for the activations of sequences."""
    stage = settings.sharding_of(row, dp)[0] if stage is None else stage
    split = (0, SHARDED_BYTES, SHARDED_BYTES, STATE_BYTES)[stage]
    each = STATE_BYTES - split * (1 - 1 / dp)
    tokens = sequences * (row.seq_len or 2048) / (row.cp or 1)
    kept = ACTIVATION_BYTES * (row.hidden or 0) * (row.layers or 0) + LOGIT_BYTES * (row.vocab or 0)
    room = USED_SHARE * problem.cluster.accelerator.memory_bytes
    return (each * problem.model.parameters + kept * tokens) / together <= room


def _sharding(row: Row, problem: Problem, degrees: Mapping[str, int]) -> tuple[int, int, tuple[str, ...]]:
    """Return the ZeRO stage, the copies of the sharded states, and what was assumed.

    Where nothing is printed and a replica's states alone exceed a device, everything is sharded; Megatron's
    descendants split the model instead (:func:`_split`).
    """
    found = settings.sharding_of(row, degrees["dp"], slice_count(row))
    if settings.sharding_words(row) or settings.megatron(row) or degrees["dp"] == 1:
        return found
    each = STATE_BYTES - SHARDED_BYTES * (found[0] > 0) * (1 - 1 / degrees["dp"])
    if problem.job.tuning.kind == "lora":
        each = problem.job.tuning.stored_bytes or problem.precision.element_bytes
    held = each * problem.model.parameters / (degrees["tp"] * degrees["pp"])
    if held <= USED_SHARE * problem.cluster.accelerator.memory_bytes:
        return found
    return 3, 1, ("sharding not stated: ZeRO-3, for the states of a replica exceed a device",)


def _fitting(row: Row, problem: Problem, degrees: Mapping[str, int], batch: int, stage: int) -> int:
    """Return the sequences of a pass that fill a device: one in a pipeline, whose bubble more would widen."""
    tp, dp = degrees["tp"], degrees["dp"]
    own = -(-batch // dp)
    sizes = (n for n in divisors(own) if _fits(row, problem, tp, dp, n, stage))
    return max(sizes, default=1) if degrees["pp"] == 1 else 1


def micro_batches_of(
    row: Row, batch: int, dp: int, pp: int = 1, fitting: int = 1
) -> tuple[int, int, tuple[str, ...]]:
    """Return the micro-batch and its count, and what was assumed; a last smaller one counts as a whole.

    ``fitting`` sequences are what a device holds, the choice where neither size nor count is printed.
    """
    assumed: tuple[str, ...] = ()
    size = row.micro_batch
    if size is None:
        size = fitting if row.grad_accum is None else max(batch // (dp * row.grad_accum), 1)
        assumed += (f"micro-batch not stated: {size}",)
    if pp > 1 and "torchtitan" in row.framework.lower():
        single = (row.year or SINGLE_LATER) >= SINGLE_LATER
        size = 1 if single else max(size // pp, 1)
        into = "single sequences" if single else f"as many as it has ranks, of {size} each"
        assumed += (f"the pipeline splits the local batch: into {into}",)
    size = min(size, max(-(-batch // dp), 1))
    count = -(-batch // (dp * size))
    if batch % (dp * size):
        assumed += (f"the batch of {batch} is no multiple of dp {dp} x micro-batch {size}: rounded up",)
    return size, count, assumed


def _interleaves(row: Row) -> bool:
    """Return whether a pipeline of which nothing is printed interleaves: Megatron's from 2024 on do.

    The performance guides of NeMo and Megatron-Core give virtual stages to every pipeline since then.
    """
    return settings.megatron(row) and (row.year or 0) >= _INTERLEAVED_LATER


def _unstated_chunks(row: Row, pp: int, blocks: int) -> tuple[int, str]:
    """Return the chunks per rank that an interleaved pipeline has where none are printed, and why."""
    if "torchtitan" in row.framework.lower():
        return TITAN_CHUNKS, "torchtitan's default"
    return max((blocks + 2 * (blocks % pp > 0)) // pp, 1), "one layer a chunk"


_SCHEDULES: Final = (
    (r"(zb|zero.?bubble).?(interleaved)", "interleaved_zb"),
    (r"zb.?v", "zbv"),
    (r"zb.?(2p|h2)", "zb2p"),
    (r"zb|zero.?bubble", "zb1p"),
    (r"dualpipe", "dualpipev"),  # two copies of the weights folded into a V
    (r"gpipe", "gpipe"),
    (r"v.half", "v_half"),
    (r"v.min", "v_min"),
)
"""How a schedule's text begins, and its name."""


def _runnable(name: str, pp: int, vpp: int, count: int) -> tuple[str, int, tuple[str, ...]]:
    """Return a schedule with chunks per rank that it runs with, else 1F1B, and what was assumed."""
    chunks = next((v for v in (1, 2, vpp) if legal(name, pp, v, count) is None), None)
    if chunks is not None:
        return name, chunks, ()
    return "1f1b", 1, (f"{name} cannot run ({legal(name, pp, max(vpp, 2), count)}): 1f1b",)


def schedule_of(row: Row, pp: int, blocks: int, count: int) -> tuple[str, int, tuple[str, ...]]:
    """Return the schedule and the chunks per rank, and what was assumed.

    Raises
    ------
    NotExpressibleError
        If the planner has no such schedule.
    """
    said = (row.schedule or row.notes).lower()
    vpp = row.vpp or 1
    if pp == 1:
        return "1f1b", 1, ()
    name = next((name for word, name in _SCHEDULES if re.match(word, said)), None)
    if name is not None:
        return _runnable(name, pp, vpp, count)
    assumed: tuple[str, ...] = ()
    interleaves = "interleaved" in said or said == "1f1b-i" or (row.schedule is None and _interleaves(row))
    if vpp == 1 and interleaves and row.vpp is None:
        vpp, why = _unstated_chunks(row, pp, blocks)
        assumed += (f"virtual stages not stated: {why}, vpp {vpp}",)
    if vpp == 1:
        ahead = "aa-scaling" in row.framework.lower()
        return ("1f1b_ahead", 1, (*assumed, AHEAD)) if ahead else ("1f1b", 1, assumed)
    vpp = min(vpp, (blocks + 2) // pp)
    why = legal("interleaved", pp, vpp, count)
    if why is not None:
        return "1f1b", 1, (*assumed, f"interleaving cannot run ({why}): 1f1b")
    return "interleaved", vpp, assumed


def write(row: Row, problem: Problem) -> Written:
    """Return the strategy of a row.

    Raises
    ------
    NotExpressibleError
        If the planner has no word for a decision of the run.
    """
    degrees, why = degrees_of(row, problem)
    batch, _, _ = sequences_of(row)
    stage, replicas, sharded = _sharding(row, problem, degrees)
    fitting = _fitting(row, problem, degrees, batch, stage)
    size, count, told = micro_batches_of(row, batch, degrees["dp"], degrees["pp"], fitting)
    if count > MOST_MICROBATCHES:
        raise NotExpressibleError(f"{count} micro-batches; at most {MOST_MICROBATCHES} are simulated")
    blocks = len(problem.model.block_layers)
    schedule, vpp, said = schedule_of(row, degrees["pp"], blocks, count)
    modes, again = settings.recompute_of(row, blocks)
    decisions = {
        **degrees,
        "dp_replicate": replicas,
        "hpz": 1,
        "vpp": vpp,
        "zero_stage": stage,
        "micro_batch_size": size,
        "num_microbatches": count,
        "sequence_parallel": settings.sequence_parallel_of(row, degrees["tp"]),
        "kv_exchange": "ring",
        "ulysses": degrees["cp"] if "ulysses" in row.framework.lower() else 1,
        "offload": settings.offload_of(row),
        "placement": ("tp", "cp", "dp", "pp"),
        "schedule": schedule,
    }
    assumptions = (*why, *told, *said, *sharded, *again)
    chunks = degrees["pp"] * vpp
    ahead = int(settings.megatron(row) and problem.job.mtp)
    listed = settings.pipeline_of_modules(row)
    sizes = listed_stages(blocks, chunks) if listed else _stages(blocks, chunks, ahead)
    if min(sizes) < 0:
        raise NotExpressibleError(f"{chunks} chunks for {blocks} layers: a stage has no layer")
    return Written(decisions, sizes, modes, assumptions)


def listed_stages(blocks: int, chunks: int) -> tuple[int, ...]:
    """Return blocks per chunk where a list of modules is cut evenly: embedding and head count one each."""
    base, longer = divmod(blocks + 2, chunks)
    sizes = [base + (c < longer) - (c in (0, chunks - 1)) for c in range(chunks)]
    return tuple(sizes) if chunks > 1 else (blocks,)


def _stages(blocks: int, chunks: int, ahead: int = 0) -> tuple[int, ...]:
    """Return blocks per chunk: as even as can be, with room for embedding and loss in the first and last.

    Where no such split is even, or the last block predicts ahead (``ahead``: it has a head of its own),
    Megatron's layouts fill all chunks but the last (``Et*4|(t*4|)*14tmL``, as recipes of DeepSeek-V3 print).

    Raises
    ------
    NotExpressibleError
        If a chunk in the middle would be empty.
    """
    sizes: Sequence[int] = even_split(blocks, chunks)
    full = -(-(blocks - ahead) // chunks)
    left = blocks - full * (chunks - 1)
    if left >= ahead and (ahead or (blocks % chunks and (blocks + 2) % chunks)):
        sizes = (*[full] * (chunks - 1), left)
    if any(n == 0 for n in sizes[1:-1]):
        raise NotExpressibleError(f"{chunks} chunks for {blocks} layers: a stage has no layer")
    return tuple(sizes)
