"""Pipeline schedules: the fixed order in which each rank runs its forward and backward passes.

Every schedule here is *static*, as Megatron-LM and ``torch.distributed.pipelining`` run it: rank ``r`` first
runs ``warm_up[r]`` forwards, then alternates one forward with one backward, then drains the backwards left.
A schedule is a table of operations (kind, chunk, micro-batch, rank), each with at most two predecessors: the
previous operation on its rank, and the operation whose output it consumes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.hardware.errors import MeshwrightError, UnknownNameError

FORWARD = 0
BACKWARD = 1
NUM_KINDS = 2


@dataclass(frozen=True, eq=False)
class StaticSchedule:
    """Every operation of one training step, numbered level by level; arrays are read-only.

    Attributes
    ----------
    name, pp, vpp, num_microbatches
        What was asked of `build`.
    group_size
        Micro-batches that a rank runs through one chunk before it turns to its next chunk
        (Megatron-Core's ``microbatch_group_size_per_vp_stage``); all of them when ``vpp`` is 1.
    rank_of_chunk
        ``(pp * vpp,)``, the rank on which each chunk lives, chunks in model order.
    kind, chunk, microbatch, rank
        ``(operations,)`` each. Along rising indices the operations of one rank stand in its running order.
    previous
        ``(operations,)``, the operation before on the same rank, or -1.
    data
        ``(operations,)``, the operation whose output this one needs, or -1.
    crosses
        ``(operations,)``, whether the data edge goes from one rank to another (a transfer delays it).
    level_start
        ``(levels + 1,)``: operations ``level_start[k]:level_start[k + 1]`` depend on lower levels only.
    """

    name: str
    pp: int
    vpp: int
    num_microbatches: int
    group_size: int
    rank_of_chunk: IntArray
    kind: IntArray
    chunk: IntArray
    microbatch: IntArray
    rank: IntArray
    previous: IntArray
    data: IntArray
    crosses: BoolArray
    level_start: IntArray

    @property
    def num_chunks(self) -> int:
        """Chunks of the model over all ranks."""
        return self.pp * self.vpp

    @cached_property
    def passes(self) -> IntArray:
        """``(operations,)``, index of each operation's kind and chunk in a ``(kinds, chunks)`` table."""
        return self.kind * self.num_chunks + self.chunk

    @property
    def chunks_of_rank(self) -> IntArray:
        """``(pp, vpp)``, the chunks of each rank in model order."""
        return np.argsort(self.rank_of_chunk, kind="stable").reshape(self.pp, self.vpp)

    def last_operation(self, kind: int | None = None) -> IntArray:
        """``(pp,)``, the last operation of each rank, or the last one of a kind."""
        chosen = np.arange(self.kind.size) if kind is None else np.flatnonzero(self.kind == kind)
        last = np.zeros(self.pp, dtype=np.intp)
        np.maximum.at(last, self.rank[chosen], chosen)
        return last


@dataclass(frozen=True)
class _Discipline:
    """What distinguishes one schedule from another."""

    warm_up: Callable[[int, int, int, int], IntArray]
    """(pp, vpp, micro-batches, group size) -> forwards that each rank runs before its first pair."""
    objection: Callable[[int, int, int], str | None]
    """(pp, vpp, micro-batches) -> why this schedule cannot run so, or None."""


def _warm_up_gpipe(pp: int, vpp: int, num_microbatches: int, group_size: int) -> IntArray:
    """Everything forward, then everything backward in the same order of micro-batches.

    Source: Huang et al. 2019; order of the backwards as in torch.distributed.pipelining.ScheduleGPipe.
    """
    return np.full(pp, num_microbatches)


def _warm_up_1f1b(pp: int, vpp: int, num_microbatches: int, group_size: int) -> IntArray:
    """Megatron-LM, ``forward_backward_pipelining_without_interleaving``: ``pp - rank - 1``."""
    return np.minimum(num_microbatches, pp - 1 - np.arange(pp))


def _warm_up_interleaved(pp: int, vpp: int, num_microbatches: int, group_size: int) -> IntArray:
    """Megatron-Core, ``get_pp_rank_microbatches``: ``2 (pp - rank - 1) + (vpp - 1) group_size``."""
    return np.minimum(num_microbatches * vpp, 2 * (pp - 1 - np.arange(pp)) + (vpp - 1) * group_size)


def _objection_one_chunk(pp: int, vpp: int, num_microbatches: int) -> str | None:
    return None if vpp == 1 else f"vpp = {vpp}: one chunk per rank only (use 'interleaved' for vpp >= 2)"


def _objection_interleaved(pp: int, vpp: int, num_microbatches: int) -> str | None:
    if vpp < 2:
        return f"vpp = {vpp}: needs at least 2 chunks per rank (use '1f1b' for vpp = 1)"
    if pp < 2:
        return f"pp = {pp}: needs at least 2 ranks (use '1f1b' for pp = 1)"
    if num_microbatches < pp:
        return (
            f"num_microbatches = {num_microbatches}: needs at least pp = {pp} (lower pp or micro_batch_size)"
        )
    return None


_DISCIPLINES: dict[str, _Discipline] = {
    "gpipe": _Discipline(_warm_up_gpipe, _objection_one_chunk),
    "1f1b": _Discipline(_warm_up_1f1b, _objection_one_chunk),
    "interleaved": _Discipline(_warm_up_interleaved, _objection_interleaved),
}


def names() -> tuple[str, ...]:
    """Schedules that `build` knows."""
    return tuple(_DISCIPLINES)


def _discipline(name: str) -> _Discipline:
    if name not in _DISCIPLINES:
        raise UnknownNameError("schedule", name, list(_DISCIPLINES))
    return _DISCIPLINES[name]


def legal(name: str, pp: int, vpp: int, num_microbatches: int) -> str | None:
    """Why a schedule cannot run with these sizes, or None where it can.

    Raises
    ------
    UnknownNameError
        No schedule has this name.
    """
    discipline = _discipline(name)
    for field, value in (("pp", pp), ("vpp", vpp), ("num_microbatches", num_microbatches)):
        if value < 1:
            return f"{field} = {value}: must be at least 1"
    return discipline.objection(pp, vpp, num_microbatches)


def group_size(pp: int, vpp: int, num_microbatches: int) -> int:
    """Micro-batches run through one chunk before the next one, the smallest that Megatron-Core accepts.

    Megatron-Core (``forward_backward_pipelining_with_interleaving``) wants at least ``pp`` micro-batches in a
    group and none or at least ``pp`` left over for the last group, because a shorter group stalls or
    deadlocks the ranks. It is ``pp`` where ``pp`` divides the micro-batches.
    """
    if vpp == 1:
        return num_microbatches
    sizes = np.arange(pp, num_microbatches + 1)
    left = num_microbatches % sizes
    return int(sizes[(left == 0) | (left >= pp)][0])


def _virtual_order(vpp: int, num_microbatches: int, group: int) -> tuple[IntArray, IntArray]:
    """Position of the chunk within its rank, and micro-batch, of the k-th forward, ``(vpp * m,)`` each.

    Source: Megatron-Core, ``get_schedule_table``; the last group may be smaller than the others.
    """
    k = np.arange(vpp * num_microbatches)
    first = k // (vpp * group) * group
    size = np.minimum(group, num_microbatches - first)
    local, offset = np.divmod(k - first * vpp, size)
    return local, first + offset


def _positions(warm_up: IntArray, total: int) -> IntArray:
    """``(pp, 2 * total)``: where in its rank's order each forward, then each backward, is run."""
    k, w = np.arange(total), warm_up[:, None]
    forward = np.where(k < w, k, 2 * k - w)
    backward = np.where(k < total - w, w + 2 * k + 1, total + k)
    return np.concatenate([forward, backward], axis=1)


def _levels(data: IntArray, pp: int) -> IntArray:
    """Length of the longest chain that ends in each operation, all ranks advancing together.

    Operations are numbered rank by rank in running order. In each round a rank runs the operation at its
    head if the one whose output it needs was run in an earlier round.
    """
    total = data.size // pp
    level = np.full(data.size + 1, -1)
    level[-1] = 0  # an operation that needs no other's output points here
    head = np.arange(pp) * total
    last, now = head + total, 0
    while head.size:
        now += 1
        ready = level[data[head]] >= 0
        assert ready.any(), "the schedule deadlocks"
        level[head[ready]] = now
        head = head + ready
        busy = head < last
        head, last = head[busy], last[busy]
    return level[:-1]


def _data_dependency(kind: IntArray, chunk: IntArray, microbatch: IntArray, num_chunks: int) -> IntArray:
    """Operation whose output each one needs, or -1: same micro-batch, the chunk before (F) or after (B).

    The backward of the last chunk needs that chunk's forward (the loss is part of the last chunk).
    """
    index = np.full((NUM_KINDS, num_chunks + 2, microbatch.max() + 1), -1)
    index[kind, chunk + 1, microbatch] = np.arange(kind.size)
    index[BACKWARD, num_chunks + 1] = index[FORWARD, num_chunks]
    found: IntArray = index[kind, np.where(kind == FORWARD, chunk, chunk + 2), microbatch]
    return found


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    values.setflags(write=False)
    return values


@lru_cache(maxsize=256)
def build(name: str, pp: int, vpp: int, num_microbatches: int) -> StaticSchedule:
    """Schedule ``name`` for ``pp`` ranks of ``vpp`` chunks each, chunk ``c`` living on rank ``c % pp``.

    Raises
    ------
    MeshwrightError
        The schedule cannot run with these sizes (`legal` says why), or has an unknown name.
    """
    reason = legal(name, pp, vpp, num_microbatches)
    if reason is not None:
        raise MeshwrightError(f"schedule {name!r}: {reason}")
    group = group_size(pp, vpp, num_microbatches)
    total, num_chunks = vpp * num_microbatches, vpp * pp
    local, forward_microbatch = _virtual_order(vpp, num_microbatches, group)
    order = np.argsort(
        _positions(_DISCIPLINES[name].warm_up(pp, vpp, num_microbatches, group), total), axis=1
    )

    rank = np.repeat(np.arange(pp), 2 * total)
    kind = np.repeat([FORWARD, BACKWARD], total)[order].ravel()
    chunk = np.concatenate([local, vpp - 1 - local])[order].ravel() * pp + rank
    microbatch = np.tile(forward_microbatch, 2)[order].ravel()
    level = _levels(_data_dependency(kind, chunk, microbatch, num_chunks), pp)

    by_level = np.argsort(level, kind="stable")
    kind, chunk, microbatch, rank = np.stack([kind, chunk, microbatch, rank])[:, by_level]
    data = _data_dependency(kind, chunk, microbatch, num_chunks)
    number = np.argsort(by_level).reshape(pp, 2 * total)
    previous = np.empty_like(data)
    previous[number] = np.pad(number[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return StaticSchedule(
        name,
        pp,
        vpp,
        num_microbatches,
        group,
        rank_of_chunk=_frozen(np.arange(num_chunks) % pp),
        kind=_frozen(kind),
        chunk=_frozen(chunk),
        microbatch=_frozen(microbatch),
        rank=_frozen(rank),
        previous=_frozen(previous),
        data=_frozen(data),
        crosses=_frozen((data >= 0) & (rank[data] != rank)),
        level_start=_frozen(np.concatenate([[0], np.cumsum(np.bincount(level)[1:])])),
    )


def _pareto_maximal(rows: IntArray) -> IntArray:
    """Rows that no other row matches or exceeds everywhere, each once."""
    rows = np.unique(rows, axis=0)
    covered = np.array([np.all(rows >= row, axis=1).sum() > 1 for row in rows])
    maximal: IntArray = rows[~covered]
    return maximal


def settled(name: str, pp: int, vpp: int, num_microbatches: int) -> int:
    """Micro-batches from which on more of them change nothing that is in flight: at most these many.

    With 1F1B orders the steady state repeats every ``pp`` micro-batches and is reached within ``2 pp``; GPipe
    holds all of them.
    """
    repeats = name != "gpipe" and (vpp == 1 or num_microbatches % pp == 0)
    return min(num_microbatches, 2 * pp) if repeats else num_microbatches


@lru_cache(maxsize=512)
def in_flight(schedule: StaticSchedule) -> tuple[IntArray, ...]:
    """Micro-batches alive in each chunk of a rank at its fullest moments, a ``(moments, vpp)`` table a rank.

    A micro-batch is alive in a chunk from the start of its forward to the end of its backward. The columns
    follow `StaticSchedule.chunks_of_rank`; the peak of activation memory on rank ``r`` is the maximum over
    rows of ``row @ activation_bytes_of_its_chunks``, whatever these bytes are.
    """
    few = settled(schedule.name, schedule.pp, schedule.vpp, schedule.num_microbatches)
    if few < schedule.num_microbatches:
        return in_flight(build(schedule.name, schedule.pp, schedule.vpp, few))
    tables = []
    for rank, chunks in enumerate(schedule.chunks_of_rank):
        mine = np.flatnonzero(schedule.rank == rank)
        forward = schedule.kind[mine] == FORWARD
        change = (schedule.chunk[mine, None] == chunks) * np.where(forward, 1, -1)[:, None]
        alive = np.cumsum(change, axis=0)
        fullest = forward & ~np.append(forward[1:], False)  # forwards that a backward follows
        tables.append(_frozen(_pareto_maximal(alive[fullest])))
    return tuple(tables)
