"""An explicit strategy, as a person writes it, turned into a plan that can be priced and launched."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import names, rank_of_chunk
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import MeshwrightError, shown
from meshwright.planner.meshes import Meshes, one_mesh
from meshwright.planner.model_rules import text_lengths
from meshwright.planner.plan import (
    KV_EXCHANGES,
    PLACEMENTS,
    Chunk,
    Plan,
    full_placement,
)
from meshwright.planner.pricing import loss_name
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.recompute_words import Recompute, layer_modes
from meshwright.planner.rules import check_mesh

LARGEST = 2_000_000_000
"""No degree, stage or micro-batch is larger."""


_SIZES = ("tp", "cp", "pp", "dp_replicate", "ep", "etp", "hpz", "ulysses", "vpp", "micro_batch_size")
"""Decisions that are whole numbers of at least 1, whatever else is decided."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """The decisions of a plan as a person writes them; what is left out a practitioner's choice fills.

    Attributes
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
        See :data:`~meshwright.planner.recompute_words.Recompute`.
    layers_per_stage
        Blocks in each of the ``pp * vpp`` chunks in model order; as even as can be when None, with the
        shorter chunks at both ends (where embedding and head sit).
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int | None = None
    dp_replicate: int = 1
    ep: int = 1
    etp: int | None = 1
    hpz: int = 1
    vpp: int = 1
    micro_batch_size: int = 1
    zero_stage: int | None = None
    sequence_parallel: bool | None = None
    kv_exchange: str = "ring"
    ulysses: int = 1
    offload: str = "none"
    schedule: str | None = None
    placement: Sequence[str] | str | None = None
    recompute: Recompute = "none"
    layers_per_stage: Sequence[int] | None = None

    def sizes(self) -> dict[str, int]:
        """Return the degrees and the micro-batch; refuses what is no positive whole number."""
        written = {name: getattr(self, name) for name in _SIZES}
        written["etp"] = 1 if self.etp is None else self.etp
        return {name: _positive(name, value) for name, value in written.items()}

    def data_ranks(self, devices: int) -> int:
        """Return ``dp``, all of the devices that the other degrees leave where it is not written."""
        if self.dp is not None:
            return _positive("dp", self.dp)
        return max(1, devices // (self.tp * self.cp * self.pp))

    def splits_sequence(self, problem: Problem) -> bool:
        """Return whether norms and residuals are split over the sequence."""
        if self.sequence_parallel is not None:
            return bool(self.sequence_parallel)
        ranks = self.tp * self.cp
        able = self.tp > 1 and problem.target.sequence_parallel
        return able and all(n % ranks == 0 for n in text_lengths(problem))

    def sharding(self, problem: Problem, dp: int) -> int:
        """Return the ZeRO stage."""
        if self.zero_stage is not None:
            return _whole("zero_stage", self.zero_stage)
        target = problem.target
        stages = target.zero_stages & (
            target.zero_stages_with_pipeline if self.pp > 1 else target.zero_stages
        )
        least = target.least_zero_stage(problem.precision.name, problem.job.optimizer)
        return min((z for z in stages if z >= max(least, dp * self.cp > 1)), default=least)

    def mesh(self, problem: Problem) -> Meshes:
        """Return the mesh with everything filled in, as a batch of one."""
        sizes = self.sizes()
        dp = self.data_ranks(problem.cluster.num_devices)
        return one_mesh(
            **sizes,
            dp=dp,
            sequence_parallel=self.splits_sequence(problem),
            zero_stage=self.sharding(problem, dp),
            num_microbatches=_passes(problem.job.global_batch_size, dp, self.micro_batch_size),
            kv_exchange=_word("kv_exchange", self.kv_exchange, KV_EXCHANGES),
            offload=_word("offload", self.offload, OFFLOADS),
            placement=_placement(self.placement),
            schedule=_word("schedule", self.schedule or ("interleaved" if self.vpp > 1 else "1f1b"), names()),
        )


def make_plan(problem: Problem, **decisions: Any) -> Plan:
    """Return the checked plan of a :class:`Strategy`, given by its fields.

    Raises
    ------
    MeshwrightError
        If a value is malformed or a rule is broken.
    """
    check_problem(problem)
    written = Strategy(**decisions)
    mesh = written.mesh(problem)
    check_mesh(problem, mesh)
    found = mesh.decisions(0)
    modes = layer_modes(problem, written.recompute, found["schedule"])
    ranks = rank_of_chunk(found["schedule"], found["pp"], found["vpp"])
    stages = written.layers_per_stage
    if stages is None:
        stages = even_split(len(problem.model.block_layers), len(ranks))
    return plan_from(problem, found, chunks_from(problem, ranks, stages), modes)


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
        loss=loss_name(problem, decisions["pp"]),
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
    if isinstance(blocks, str | Mapping) or not isinstance(blocks, Iterable):
        raise MeshwrightError(
            f"layers_per_stage: {shown(blocks)} is no list; {wanted} whole numbers (pp x vpp) "
            f"that sum to {len(own)} layers are expected"
        )
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


def _placement(placement: Sequence[str] | str | None) -> tuple[str, ...]:
    given = placement.replace(" ", "").split(",") if isinstance(placement, str) else placement
    names = full_placement(given) if isinstance(given, list | tuple) else PLACEMENTS[0]
    if names not in PLACEMENTS or not isinstance(given, list | tuple | None):
        have = " or ".join(",".join(p) for p in PLACEMENTS)
        told = ",".join(map(str, names)) if isinstance(given, list | tuple) else given
        raise MeshwrightError(f"placement: {shown(told)} is not an order that is priced; allowed: {have}")
    return names


def _word(name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise MeshwrightError(f"{name}: {shown(value)} is not known; allowed: {', '.join(allowed)}")
    return str(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise MeshwrightError(f"{name}: {shown(value)} is not a whole number")
    if abs(int(value)) > LARGEST:
        raise MeshwrightError(f"{name}: {shown(value)} is too large; at most {LARGEST}")
    return int(value)


def _positive(name: str, value: Any) -> int:
    if _whole(name, value) < 1:
        raise MeshwrightError(f"{name}: {value!r} is not a positive integer")
    return int(value)
