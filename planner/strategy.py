"""An explicit strategy, as a person writes it, turned into a plan that can be priced and launched."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import names, rank_of_chunk
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.meshes import one_mesh
from meshwright.planner.model_rules import text_lengths
from meshwright.planner.modes import check_modes
from meshwright.planner.plan import (
    KV_EXCHANGES,
    PLACEMENTS,
    RECOMPUTE_MODES,
    Chunk,
    Plan,
    full_placement,
)
from meshwright.planner.pricing import loss_name
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.rules import check_mesh

LARGEST = 2_000_000_000
"""No degree, stage or micro-batch is larger."""


def make_plan(
    problem: Problem,
    *,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    dp: int | None = None,
    dp_replicate: int = 1,
    ep: int = 1,
    etp: int | None = None,
    hpz: int = 1,
    vpp: int = 1,
    micro_batch_size: int = 1,
    zero_stage: int | None = None,
    sequence_parallel: bool | None = None,
    kv_exchange: str = "ring",
    ulysses: int = 1,
    offload: str = "none",
    schedule: str | None = None,
    placement: Sequence[str] | str | None = None,
    recompute: str | Sequence[str] | Mapping[str, str] = "none",
    layers_per_stage: Sequence[int] | None = None,
) -> Plan:
    """Return a checked plan; what is left out takes the value that a practitioner would.

    Parameters
    ----------
    dp
        All remaining devices when None.
    zero_stage
        The smallest from 1 up that the target has with this pipeline, 0 (or the target's smallest) alone.
    sequence_parallel
        On with ``tp`` above 1 where the target has it and ``tp x cp`` divides the length.
    cp, dp_replicate, ep, etp, hpz, kv_exchange, ulysses, offload
        As in :class:`~meshwright.planner.plan.Plan`; not used by default.
    schedule
        ``interleaved`` with ``vpp`` above 1, else ``1f1b``.
    placement
        Innermost first; ``tp,cp,dp,pp`` when None; where ``cp`` is not named it lies next to ``tp``.
    recompute
        A mode for all blocks, a mode for each block, ranges of blocks (``"0-15:full,16-31:none"``), or every
        n-th block, the first included (``"every-2:full"``).
    layers_per_stage
        Blocks in each of the ``pp * vpp`` chunks in model order; as even as can be when None, with the
        shorter chunks at both ends (where embedding and head sit).

    Raises
    ------
    MeshwrightError
        If a value is malformed or a rule is broken.
    """
    check_problem(problem)
    job, target = problem.job, problem.target
    etp = 1 if etp is None else etp
    sizes = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp_replicate": dp_replicate,
        "ep": ep,
        "etp": etp,
        "hpz": hpz,
        "ulysses": ulysses,
        "vpp": vpp,
        "micro_batch_size": micro_batch_size,
    }
    for name, value in sizes.items():
        _positive(name, value)
    dp = max(1, problem.cluster.num_devices // (tp * cp * pp)) if dp is None else _positive("dp", dp)
    if sequence_parallel is None:
        sequence_parallel = (
            tp > 1 and target.sequence_parallel and all(n % (tp * cp) == 0 for n in text_lengths(problem))
        )
    stages = target.zero_stages & (target.zero_stages_with_pipeline if pp > 1 else target.zero_stages)
    if zero_stage is None:
        least = target.least_zero_stage(problem.precision.name, job.optimizer)
        zero_stage = min((z for z in stages if z >= max(least, dp * cp > 1)), default=least)
    microbatches = _passes(job.global_batch_size, dp, micro_batch_size)
    mesh = one_mesh(
        **sizes,
        dp=dp,
        zero_stage=_whole("zero_stage", zero_stage),
        num_microbatches=microbatches,
        sequence_parallel=bool(sequence_parallel),
        kv_exchange=_word("kv_exchange", kv_exchange, KV_EXCHANGES),
        offload=_word("offload", offload, OFFLOADS),
        placement=_placement(placement),
        schedule=_word("schedule", schedule or ("interleaved" if vpp > 1 else "1f1b"), names()),
    )
    check_mesh(problem, mesh)
    modes = _modes(problem, recompute)
    if layers_per_stage is None:
        layers_per_stage = even_split(len(problem.model.block_layers), pp * vpp)
    decisions = mesh.decisions(0)
    ranks = rank_of_chunk(decisions["schedule"], pp, vpp)
    return plan_from(problem, decisions, chunks_from(problem, ranks, layers_per_stage), modes)


def _passes(batch: int, dp: int, micro_batch_size: int) -> int:
    """Return the micro-batches of a step; refuses a batch that dp x micro-batch does not divide."""
    each = dp * micro_batch_size
    if batch % each:
        near = [n * each for n in (batch // each, batch // each + 1) if n]
        raise MeshwrightError(
            f"batch divisible: the global batch of {batch} is no multiple of dp {dp} x micro-batch "
            f"{micro_batch_size}; nearest: {' and '.join(map(str, near))}"
        )
    return batch // each


def plan_from(
    problem: Problem, decisions: Mapping[str, Any], chunks: tuple[Chunk, ...], recompute: tuple[str, ...]
) -> Plan:
    """Return the plan of a mesh (see :meth:`Meshes.decisions`), its chunks and its recompute modes."""
    job = problem.job
    return Plan(
        model=problem.model.name,
        cluster=problem.cluster.name,
        sequence_length=job.sequence_length,
        **workload(problem),
        global_batch_size=job.global_batch_size,
        precision=job.precision,
        optimizer=job.optimizer,
        loss=loss_name(problem),
        headroom=problem.headroom.share,
        parameters=problem.base.parameters,
        hidden_size=problem.base.hidden_size,
        target=job.target,
        profile=problem.profile.name,
        chunks=chunks,
        recompute=recompute,
        **decisions,
    )


def workload(problem: Problem) -> dict[str, Any]:
    """Return what a plan records of the job beside batch, length and names."""
    job = problem.job
    return {
        "tuning": str(job.tuning),
        "target_length": job.target_length,
        "image_tokens": job.image_tokens,
        "expert_load": float(job.expert_load),
        "recompute_modules": job.recompute_modules,
    }


def even_split(layers: int, chunks: int) -> tuple[int, ...]:
    """Return layers per chunk, as even as can be; longer chunks in the middle, shorter ones at both ends."""
    base, extra = divmod(layers, chunks)
    inward = sorted(range(chunks), key=lambda c: (-min(c, chunks - 1 - c), c))
    longer = set(inward[:extra])
    return tuple(base + (c in longer) for c in range(chunks))


def chunks_from(
    problem: Problem, ranks: Sequence[int] | IntArray, blocks: Sequence[int]
) -> tuple[Chunk, ...]:
    """Return chunks with the given numbers of blocks; what lies before and after them joins the ends.

    ``ranks`` says where each chunk lives. A layer that is no block but lies between blocks (a projector)
    joins the chunk of the block before it.

    Raises
    ------
    MeshwrightError
        If the numbers are not non-negative integers, one for each chunk, that sum to the model's blocks, or a
        chunk in the middle is empty.
    """
    wanted, own = len(ranks), problem.model.block_layers
    sizes = [_whole("layers_per_stage", b) for b in blocks]
    if len(sizes) != wanted or sum(sizes) != len(own) or min(sizes) < 0:
        raise MeshwrightError(
            f"layers_per_stage: {','.join(map(str, sizes))} must be {wanted} numbers (pp x vpp) "
            f"that sum to {len(own)} layers"
        )
    if any(b == 0 for b in sizes[1:-1]):
        raise MeshwrightError("layers_per_stage: a stage between the first and the last has no layer")
    total = problem.model.num_layers
    after = [0, *accumulate(sizes)]
    cuts = [0, *(_before(own, total, n) for n in after[1:-1]), total]
    return tuple(Chunk(int(rank), a, b) for rank, (a, b) in zip(ranks, pairwise(cuts), strict=True))


def _before(blocks: Sequence[int], total: int, number: int) -> int:
    """Return the layer at which a chunk begins that has ``number`` blocks before it."""
    if number == 0:
        return blocks[0]
    return blocks[number] if number < len(blocks) else min(blocks[-1] + 1, total)


def _modes(problem: Problem, recompute: str | Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Return a mode for every layer, ``none`` for embedding and head."""
    blocks = problem.model.block_layers
    modes = ["none"] * problem.model.num_layers
    if isinstance(recompute, str) and recompute.strip().startswith("every-"):
        wanted = _every(recompute.strip(), len(blocks))
    elif isinstance(recompute, str) and ":" not in recompute:
        wanted = [recompute] * len(blocks)
    elif isinstance(recompute, str):
        wanted = _ranges(dict(_pair(p) for p in recompute.split(",")), len(blocks))
    elif isinstance(recompute, Mapping):
        wanted = _ranges({str(k): str(v) for k, v in recompute.items()}, len(blocks))
    else:
        wanted = [str(r) for r in recompute]
    if len(wanted) != len(blocks):
        raise MeshwrightError(f"recompute: {len(wanted)} modes are given for {len(blocks)} layers")
    allowed = problem.target.recompute
    for mode in wanted:
        if mode not in RECOMPUTE_MODES or mode not in allowed:
            have = ", ".join(m for m in RECOMPUTE_MODES if m in allowed)
            raise MeshwrightError(
                f"recompute: {mode!r} is not available with {problem.target.title}; allowed: {have}"
            )
    check_modes(problem, set(wanted))
    if problem.target.recompute_uniform and len(set(wanted)) > 1:
        raise MeshwrightError(f"recompute: {problem.target.title} needs one mode for all layers")
    for layer, mode in zip(blocks, wanted, strict=True):
        modes[layer] = mode
    return tuple(modes)


def _every(text: str, size: int) -> list[str]:
    """Return the modes of ``every-2:full``: each second block beginning with the first, the rest ``none``."""
    number, _, mode = text.removeprefix("every-").partition(":")
    if not (mode and number.isdecimal() and len(number) < 10 and 1 <= int(number) <= size):
        raise MeshwrightError(
            f"recompute: {text!r} is not every-N:MODE with N from 1 to {size}, for example every-2:full"
        )
    return [mode if i % int(number) == 0 else "none" for i in range(size)]


def _pair(text: str) -> tuple[str, str]:
    where, _, mode = text.strip().partition(":")
    return where, mode


def _ranges(spans: Mapping[str, str], size: int) -> list[str]:
    """Return a mode for each block from ranges such as ``{"0-15": "full"}``; the rest is ``none``."""
    modes, taken = ["none"] * size, [False] * size
    for where, mode in spans.items():
        first, dash, last = where.partition("-")
        last = last if dash else first
        # isdecimal and short: int() refuses other digits and thousands of them.
        numbers = all(end.isdecimal() and len(end) < 10 for end in (first, last))
        if not (numbers and int(first) <= int(last) < size):
            raise MeshwrightError(
                f"recompute: {where!r} is not a range FIRST-LAST (or one number) within 0-{size - 1}"
            )
        span = slice(int(first), int(last) + 1)
        if any(taken[span]):
            raise MeshwrightError(f"recompute: {where!r} overlaps another range; name each layer once")
        modes[span] = [mode] * (int(last) - int(first) + 1)
        taken[span] = [True] * (int(last) - int(first) + 1)
    return modes


def _placement(placement: Sequence[str] | str | None) -> tuple[str, ...]:
    given = tuple(placement.replace(" ", "").split(",")) if isinstance(placement, str) else placement
    names = PLACEMENTS[0] if given is None else full_placement(given)
    if names not in PLACEMENTS:
        have = " or ".join(",".join(p) for p in PLACEMENTS)
        raise MeshwrightError(
            f"placement: {','.join(map(str, names))!r} is not an order that is priced; allowed: {have}"
        )
    return names


def _word(name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise MeshwrightError(f"{name}: {value!r} is not known; allowed: {', '.join(allowed)}")
    return str(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise MeshwrightError(f"{name}: {value!r} is not a whole number")
    if abs(int(value)) > LARGEST:
        raise MeshwrightError(f"{name}: {value!r} is too large; at most {LARGEST}")
    return int(value)


def _positive(name: str, value: Any) -> int:
    if _whole(name, value) < 1:
        raise MeshwrightError(f"{name}: {value!r} is not a positive integer")
    return int(value)
