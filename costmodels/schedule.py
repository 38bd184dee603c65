"""Pipeline schedules: the fixed order in which each rank runs its passes.

A pass is a forward, a backward, or the weight-gradient part of a backward where the schedule tells it apart
(the backward is then the input gradient, with what it recomputes). Every schedule here is *static*, as
Megatron-LM and ``torch.distributed.pipelining`` run it: a table of operations (kind, chunk, micro-batch,
rank), each with at most two predecessors: the previous operation on its rank, and the operation whose output
it consumes. :mod:`meshwright.costmodels.disciplines` lists the schedules.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.disciplines import DISCIPLINES, Discipline, group_size
from meshwright.costmodels.orders import BACKWARD, FORWARD, NUM_KINDS, WEIGHT, Order
from meshwright.hardware.errors import MeshwrightError, UnknownNameError

__all__ = [
    "BACKWARD",
    "FORWARD",
    "NUM_KINDS",
    "WEIGHT",
    "StaticSchedule",
    "build",
    "group_size",
    "in_flight",
    "legal",
    "names",
    "rank_of_chunk",
    "settled",
    "splits_backward",
]


@dataclass(frozen=True, eq=False)
class StaticSchedule:
    """Every operation of one training step, numbered level by level; arrays are read-only.

    Attributes
    ----------
    name, pp, vpp, num_microbatches
        What was asked of `build`.
    split
        Whether weight gradients are passes of their own; if not, a backward is the whole one.
    rank_of_chunk
        ``(pp * vpp,)``, the rank on which each chunk lives, chunks in model order.
    kind, chunk, microbatch, rank
        ``(operations,)`` each. Along rising indices the operations of one rank stand in its running order.
    previous
        ``(operations,)``, the operation before on the same rank, or ``-1 - rank`` where it is the first.
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
    split: bool
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

    @property
    def last_kind(self) -> int:
        """The kind of pass that completes a chunk's gradients and frees its activations."""
        return WEIGHT if self.split else BACKWARD

    @cached_property
    def passes(self) -> IntArray:
        """``(operations,)``, index of each operation's kind and chunk in a ``(kinds, chunks)`` table."""
        return self.kind * self.num_chunks + self.chunk

    @cached_property
    def chunks_of_rank(self) -> IntArray:
        """``(pp, vpp)``, the chunks of each rank in model order; read-only."""
        return _frozen(np.argsort(self.rank_of_chunk, kind="stable").reshape(self.pp, self.vpp))

    @cached_property
    def first_forwards(self) -> IntArray:
        """``(chunks,)``, the first operation of each chunk; read-only.

        That of a rank is the first forward of the chunk with the rank's own number, wherever chunks live.
        """
        return _frozen(np.unique(self.chunk, return_index=True)[1])

    @cached_property
    def held_up(self) -> dict[int, tuple[IntArray, IntArray]]:
        """First forwards of chunks that are not the first of their rank, by the start of their level.

        Their places in the level, and their chunks.
        """
        chunks = np.arange(self.pp, self.num_chunks)
        first = self.first_forwards[chunks]
        level = self.level_start[np.searchsorted(self.level_start, first, side="right") - 1]
        return {low: (first[level == low] - low, chunks[level == low]) for low in np.unique(level).tolist()}

    @cached_property
    def last_passes(self) -> IntArray:
        """``(chunks,)``, the operation that completes the gradients of each chunk; read-only."""
        completing = np.flatnonzero(self.kind == self.last_kind)
        last = np.zeros(self.num_chunks, dtype=np.intp)
        np.maximum.at(last, self.chunk[completing], completing)
        return _frozen(last)

    @cached_property
    def completed(self) -> IntArray:
        """``(pp, vpp)``, the chunks of each rank in the order that completes their gradients; read-only."""
        order = np.argsort(self.last_passes[self.chunks_of_rank], axis=1)
        return _frozen(np.take_along_axis(self.chunks_of_rank, order, axis=1))

    @cached_property
    def last_operation(self) -> IntArray:
        """``(pp,)``, the last operation of each rank, which completes gradients; read-only."""
        return _frozen(self.last_passes[self.completed[:, -1]])


def names() -> tuple[str, ...]:
    """Schedules that `build` knows."""
    return tuple(DISCIPLINES)


def _discipline(name: str) -> Discipline:
    if name not in DISCIPLINES:
        raise UnknownNameError("schedule", name, list(DISCIPLINES))
    return DISCIPLINES[name]


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


def splits_backward(name: str) -> bool:
    """Whether a schedule runs weight gradients as passes of their own.

    Raises
    ------
    UnknownNameError
        No schedule has this name.
    """
    return _discipline(name).split


def rank_of_chunk(name: str, pp: int, vpp: int) -> IntArray:
    """Rank on which each chunk lives, ``(pp * vpp,)``, chunks in model order.

    Every ``pp``-th chunk, or for V-shaped schedules down the ranks and up again.

    Raises
    ------
    UnknownNameError
        No schedule has this name.
    """
    chunk = np.arange(pp * vpp)
    return np.minimum(chunk, 2 * pp - 1 - chunk) if _discipline(name).v_shaped else chunk % pp


def _levels(data: IntArray, pp: int) -> IntArray:
    """Length of the longest chain that ends in each operation, all ranks advancing together.

    Operations are numbered rank by rank in running order. In each round a rank runs the operation at its
    head if the one whose output it needs was run in an earlier round.
    """
    total = data.size // pp
    if pp == 1:  # one rank runs an operation a round
        return np.arange(1, total + 1)
    level = np.full(data.size + 1, -1)
    level[-1] = 0  # an operation that needs no other's output points here
    head = np.arange(pp) * total
    last, now = head + total, 0
    while head.size:
        now += 1
        ready = level.take(data.take(head)) >= 0
        ran = head[ready]
        assert ran.size, "the schedule deadlocks"
        level[ran] = now
        head += ready
        busy = head < last
        if np.count_nonzero(busy) < busy.size:
            head, last = head[busy], last[busy]
    return level[:-1]


def _data_dependency(
    kind: IntArray, chunk: IntArray, microbatch: IntArray, whole: BoolArray, num_chunks: int
) -> IntArray:
    """Operation whose output each one needs, or -1, always of the same micro-batch.

    A forward needs the chunk before; a backward the chunk after, whose input gradient is there after its
    backward, or after its weight pass if that backward is a whole one; a weight pass its own backward. The
    backward of the last chunk needs that chunk's forward (the loss is part of the last chunk).
    """
    index = np.full((NUM_KINDS, num_chunks + 2, microbatch.max() + 1), -1)
    index[kind, chunk + 1, microbatch] = np.arange(kind.size)
    output = index[BACKWARD].copy()
    output[chunk[whole] + 1, microbatch[whole]] = index[WEIGHT, chunk[whole] + 1, microbatch[whole]]
    output[num_chunks + 1] = index[FORWARD, num_chunks]
    before, after = index[FORWARD, chunk, microbatch], output[chunk + 2, microbatch]
    own = index[BACKWARD, chunk + 1, microbatch]
    return np.asarray(np.choose(kind, [before, after, own]))


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    values.setflags(write=False)
    return values


@lru_cache(maxsize=256)
def build(name: str, pp: int, vpp: int, num_microbatches: int) -> StaticSchedule:
    """Schedule ``name`` for ``pp`` ranks of ``vpp`` chunks each (see `rank_of_chunk`).

    Raises
    ------
    MeshwrightError
        The schedule cannot run with these sizes (`legal` says why), or has an unknown name.
    """
    reason = legal(name, pp, vpp, num_microbatches)
    if reason is not None:
        raise MeshwrightError(f"schedule {name!r}: {reason}")
    lives = rank_of_chunk(name, pp, vpp)
    orders = DISCIPLINES[name].orders(pp, vpp, num_microbatches)
    kind, chunk, microbatch, whole = _told(orders, np.argsort(lives, kind="stable").reshape(pp, vpp))
    rank = np.repeat(np.arange(pp), kind.size // pp)
    level = _levels(_data_dependency(kind, chunk, microbatch, whole, lives.size), pp)

    by_level = np.argsort(level, kind="stable")
    kind, chunk, microbatch, rank = np.stack([kind, chunk, microbatch, rank])[:, by_level]
    whole = whole[by_level]
    data = _data_dependency(kind, chunk, microbatch, whole, lives.size)
    number = np.argsort(by_level).reshape(pp, -1)
    previous = np.empty_like(data)
    previous[number] = np.column_stack([-1 - np.arange(pp), number[:, :-1]])
    return StaticSchedule(
        name,
        pp,
        vpp,
        num_microbatches,
        splits_backward(name),
        rank_of_chunk=_frozen(lives),
        kind=_frozen(kind),
        chunk=_frozen(chunk),
        microbatch=_frozen(microbatch),
        rank=_frozen(rank),
        previous=_frozen(previous),
        data=_frozen(data),
        crosses=_frozen((data >= 0) & (rank[data] != rank)),
        level_start=_frozen(np.concatenate([[0], np.cumsum(np.bincount(level)[1:])])),
    )


def _told(orders: list[Order], chunks_of_rank: IntArray) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
    """(kind, chunk, micro-batch, whole) of all operations, rank by rank in running order."""
    rows = [
        (order.kind, chunks[order.place], order.microbatch, order.whole)
        for order, chunks in zip(orders, chunks_of_rank, strict=True)
    ]
    kind, chunk, microbatch, whole = (np.concatenate(column) for column in zip(*rows, strict=True))
    return kind, chunk, microbatch, whole


def _pareto_maximal(rows: IntArray) -> IntArray:
    """Rows that no other row matches or exceeds everywhere, each once."""
    rows = np.unique(rows, axis=0)
    covered = np.array([np.all(rows >= row, axis=1).sum() > 1 for row in rows])
    maximal: IntArray = rows[~covered]
    return maximal


def settled(name: str, pp: int, vpp: int, num_microbatches: int) -> int:
    """Micro-batches from which on more of them change nothing that is in flight: at most these many.

    The steady state repeats every ``pp`` micro-batches or fewer and is reached within the discipline's
    rounds; GPipe holds all of them. Groups that are no multiple of ``pp`` have no such state.
    """
    discipline = _discipline(name)
    grouped = vpp > 1 and not discipline.v_shaped and num_microbatches % pp != 0
    repeats = discipline.rounds > 0 and not grouped
    return min(num_microbatches, discipline.rounds * pp) if repeats else num_microbatches


@lru_cache(maxsize=512)
def in_flight(schedule: StaticSchedule) -> tuple[IntArray, ...]:
    """Micro-batches alive in each chunk of a rank at its fullest moments, a ``(moments, vpp)`` table a rank.

    A micro-batch is alive in a chunk from the start of its forward to the end of its backward, or of its
    weight pass where that is apart: what the input gradient alone could free is kept (conservative). The
    columns follow `StaticSchedule.chunks_of_rank`; the peak of activation memory on rank ``r`` is the
    maximum over rows of ``row @ activation_bytes_of_its_chunks``, whatever these bytes are.
    """
    few = settled(schedule.name, schedule.pp, schedule.vpp, schedule.num_microbatches)
    if few < schedule.num_microbatches:
        return in_flight(build(schedule.name, schedule.pp, schedule.vpp, few))
    tables = []
    for rank, chunks in enumerate(schedule.chunks_of_rank):
        mine = np.flatnonzero(schedule.rank == rank)
        kind, here = schedule.kind[mine], schedule.chunk[mine, None] == chunks
        forward = kind == FORWARD
        alive = np.cumsum(here * (forward.astype(int) - (kind == schedule.last_kind))[:, None], axis=0)
        fullest = forward & ~np.append(forward[1:], False)  # forwards that another pass follows
        tables.append(_frozen(_pareto_maximal(alive[fullest])))
    return tuple(tables)
