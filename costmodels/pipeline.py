"""What a pipeline costs: the event simulation of its schedule, and lower bounds that the search starts from.

The simulation is the price. A *path* is a chain of dependent operations; its length is linear in the times of
the chunks and never exceeds the simulated time of the event at its end, whatever these times are. A path that
is critical for some times attains it there, so that "event >= path" is an exact cut at that point.

Left out: contention between transfers, and kernels slowed by communication that runs beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.schedule import BACKWARD, FORWARD, NUM_KINDS, StaticSchedule
from meshwright.hardware.errors import MeshwrightError, UnknownNameError

Event: TypeAlias = Literal["end", "last_backward_start"]
EVENTS: tuple[Event, ...] = get_args(Event)

_BLOCK_ELEMENTS = 1 << 22
"""Operation times held at once (32 MiB); a larger batch is simulated block by block."""


@dataclass(frozen=True)
class PipelineTimes:
    """When things happen in one training step, in seconds from its start; ``...`` is the batch.

    Attributes
    ----------
    end_s
        ``(..., pp)``, end of the last operation of each rank.
    last_backward_start_s
        ``(..., pp)``, start of the last backward of each rank; its gradient reduction can overlap from there.
    busy_s
        ``(..., pp)``, time each rank computes.
    """

    end_s: FloatArray
    last_backward_start_s: FloatArray
    busy_s: FloatArray

    @property
    def makespan_s(self) -> FloatArray:
        """``(...)``, when the last rank is done."""
        latest: FloatArray = self.end_s.max(axis=-1)
        return latest


@dataclass(frozen=True)
class Path:
    """A chain of dependent operations that leads to an event on a rank.

    Attributes
    ----------
    forward_counts, backward_counts
        ``(chunks,)`` as tuples: passes of each chunk on the chain.
    transfers
        Transfers between ranks on the chain.
    rank, event
        What the chain leads to: the ``end`` of the rank's last operation, or the start of its last backward.
    """

    forward_counts: tuple[int, ...]
    backward_counts: tuple[int, ...]
    transfers: int
    rank: int
    event: Event


def _checked(field: str, value: ArrayLike) -> FloatArray:
    seconds = np.asarray(value, dtype=np.float64)
    wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if wrong.any():
        raise MeshwrightError(f"{field} = {seconds[wrong][0]}: must be finite and at least 0 seconds")
    return seconds


def _durations(
    schedule: StaticSchedule, forward_s: ArrayLike, backward_s: ArrayLike, transfer_s: ArrayLike
) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
    """Times as ``(kinds * chunks, batch)`` and ``(batch,)``, and the shape of the batch."""
    passes = []
    for field, value in (("forward_s", forward_s), ("backward_s", backward_s)):
        seconds = np.atleast_1d(_checked(field, value))
        if seconds.shape[-1] not in (1, schedule.num_chunks):
            raise MeshwrightError(
                f"{field} has {seconds.shape[-1]} entries on its last axis: must be 1 or one for each of the "
                f"pp * vpp = {schedule.num_chunks} chunks"
            )
        passes.append(seconds)
    transfer = _checked("transfer_s", transfer_s)
    lead = np.broadcast_shapes(passes[FORWARD].shape[:-1], passes[BACKWARD].shape[:-1], transfer.shape)
    full = [
        np.broadcast_to(p, (*lead, schedule.num_chunks)).reshape(-1, schedule.num_chunks).T for p in passes
    ]
    return np.concatenate(full), np.broadcast_to(transfer, lead).reshape(-1), lead


def _start(
    schedule: StaticSchedule, operations: slice | IntArray, end: FloatArray, transfer: FloatArray
) -> FloatArray:
    """``(operations, batch)``: when the rank is free and the input has arrived."""
    arrival = end[schedule.data[operations]] + schedule.crosses[operations, None] * transfer
    start: FloatArray = np.maximum(arrival, end[schedule.previous[operations]])
    return start


def _run(schedule: StaticSchedule, seconds: FloatArray, transfer: FloatArray) -> FloatArray:
    """End of every operation, ``(operations + 1, batch)``; the last row, at 0, is "none" (-1)."""
    end = np.zeros((schedule.kind.size + 1, transfer.size))
    for low, high in pairwise(schedule.level_start.tolist()):
        level = slice(low, high)
        end[level] = _start(schedule, level, end, transfer) + seconds[schedule.passes[level]]
    return end


def simulate(
    schedule: StaticSchedule, forward_s: ArrayLike, backward_s: ArrayLike, transfer_s: ArrayLike
) -> PipelineTimes:
    """Run the schedule: each operation starts when its rank is free and its input has arrived.

    Parameters
    ----------
    schedule
        From `meshwright.costmodels.schedule.build`.
    forward_s, backward_s
        Seconds of one pass of one micro-batch, broadcasting to ``(..., pp * vpp)``, chunks in model order.
    transfer_s
        Seconds from the end of a pass to the arrival of its output at another rank, to ``(...)``;
        it occupies neither.

    Raises
    ------
    MeshwrightError
        A time is negative or not finite, or its last axis does not fit the chunks.
    """
    seconds, transfer, lead = _durations(schedule, forward_s, backward_s, transfer_s)
    batch, pp = transfer.size, schedule.pp
    last, last_backward = schedule.last_operation(), schedule.last_operation(BACKWARD)
    end_s, last_backward_start_s = np.empty((batch, pp)), np.empty((batch, pp))
    block = max(1, _BLOCK_ELEMENTS // schedule.kind.size)
    for first in range(0, batch, block):
        rows = slice(first, first + block)
        end = _run(schedule, np.ascontiguousarray(seconds[:, rows]), transfer[rows])
        end_s[rows] = end[last].T
        last_backward_start_s[rows] = _start(schedule, last_backward, end, transfer[rows]).T
    once = seconds.reshape(NUM_KINDS, schedule.num_chunks, batch).sum(axis=0)
    busy_s = schedule.num_microbatches * sum(once[column] for column in schedule.chunks_of_rank.T)
    shape = (*lead, pp)
    return PipelineTimes(end_s.reshape(shape), last_backward_start_s.reshape(shape), busy_s.T.reshape(shape))


def path_length(path: Path, forward_s: ArrayLike, backward_s: ArrayLike, transfer_s: ArrayLike) -> FloatArray:
    """Seconds along a path, ``(...)``; never more than the simulated time of its event.

    Times broadcast as in `simulate`.
    """
    forward = (np.asarray(forward_s) * path.forward_counts).sum(axis=-1)
    backward = (np.asarray(backward_s) * path.backward_counts).sum(axis=-1)
    return np.asarray(forward + backward + path.transfers * np.asarray(transfer_s))


def _binding(schedule: StaticSchedule, end: FloatArray, transfer: float) -> list[int]:
    """The predecessor that each operation waits for longest, or -1, given all ends, ``(operations + 1,)``."""
    arrival = end[schedule.data] + schedule.crosses * transfer
    by_data = (schedule.data >= 0) & ((schedule.previous < 0) | (arrival >= end[schedule.previous]))
    binding: list[int] = np.where(by_data, schedule.data, schedule.previous).tolist()
    return binding


def _backtrack(schedule: StaticSchedule, binding: list[int], rank: int, event: Event) -> Path:
    """Follow binding predecessors from an event to the start of the step."""
    at = int(schedule.last_operation(None if event == "end" else BACKWARD)[rank])
    chain = [at]
    while (at := binding[at]) >= 0:
        chain.append(at)
    chained = np.array(chain)
    by_data = schedule.data[chained[:-1]] == chained[1:]
    counted = chained if event == "end" else chained[1:]
    counts = np.bincount(schedule.passes[counted], minlength=NUM_KINDS * schedule.num_chunks)
    forward, backward = counts.reshape(NUM_KINDS, schedule.num_chunks).tolist()
    transfers = int((by_data & schedule.crosses[chained[:-1]]).sum())
    return Path(tuple(forward), tuple(backward), transfers, rank, event)


def critical_path(
    schedule: StaticSchedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    transfer_s: float,
    rank: int,
    event: Event = "end",
) -> Path:
    """The path whose length is the simulated time of an event on a rank, for one set of times."""
    seconds, transfer, _ = _durations(schedule, forward_s, backward_s, transfer_s)
    end = _run(schedule, seconds, transfer)
    return _backtrack(schedule, _binding(schedule, end[:, 0], float(transfer[0])), rank, event)


_BACKWARD_WORK = 2.0
_TRANSFER_WORK = 0.01
"""Work of a backward (two GEMMs for each forward one) and of a transfer, in forwards, behind `base_paths`;
a transfer only decides between paths of equal work."""
_SLOWER = (1.1, 4.0)
"""A bottleneck a little slower than the rest is waited for behind its own warm-up, a much slower one is never
waited for by itself: their critical paths differ."""


def _undominated(paths: list[Path]) -> list[Path]:
    """Paths that no other path to the same event matches or exceeds in every count."""
    kept = []
    for where in sorted({(path.rank, path.event) for path in paths}):
        group = list(dict.fromkeys(path for path in paths if (path.rank, path.event) == where))
        table = np.array([(*path.forward_counts, *path.backward_counts, path.transfers) for path in group])
        covered = [np.all(table >= row, axis=1).sum() > 1 for row in table]
        kept += [path for path, is_covered in zip(group, covered, strict=True) if not is_covered]
    return kept


@lru_cache(maxsize=256)
def base_paths(schedule: StaticSchedule) -> tuple[Path, ...]:
    """Few strong paths to start a makespan model from, the same for any times.

    They are critical when all chunks are equal, for both events of every rank, and when one rank is slower
    than the rest, for both events of that rank and of rank 0, which ends last where chunk 0 lives there.
    """
    ranks = np.arange(schedule.pp)
    chosen = schedule.rank_of_chunk == ranks[:, None]
    slow = np.concatenate([np.ones((1, schedule.num_chunks)), *(1 + (by - 1) * chosen for by in _SLOWER)])
    paths: list[Path] = []
    block = max(1, _BLOCK_ELEMENTS // schedule.kind.size)
    for first in range(0, len(slow), block):
        rows = slow[first : first + block]
        seconds, transfer, _ = _durations(schedule, rows, _BACKWARD_WORK * rows, len(rows) * [_TRANSFER_WORK])
        end = _run(schedule, seconds, transfer)
        for row, ends in zip(rows, np.ascontiguousarray(end.T), strict=True):
            binding = _binding(schedule, ends, _TRANSFER_WORK)
            own = schedule.rank_of_chunk[row.argmax()]
            where = ranks if np.ptp(row) == 0 else {0, own}
            paths += [_backtrack(schedule, binding, int(rank), event) for rank in where for event in EVENTS]
    return tuple(_undominated(paths))


_WAITED_WORK: dict[str, Callable[[IntArray, int, FloatArray], ArrayLike]] = {
    "gpipe": lambda m, behind, fraction: m - 1,
    "1f1b": lambda m, behind, fraction: m - 1 - (np.minimum(m, behind) - 1) * fraction,
    "interleaved": lambda m, behind, fraction: 0,
}
"""Times that a path through every chunk, forward and back, holds one rank's work after the first time, from
(micro-batches, ranks from this one to the last, forward fraction). The path is: first micro-batch through all
chunks and back to the rank, all that the rank has left to do, last micro-batch back to chunk 0. Under 1F1B
the rank has run ``min(m, behind)`` forwards by then; under GPipe the path waits for its forwards too. Under
interleaving it is used only as the chain of a single micro-batch."""


def _through_bound(name: str, pp: IntArray, m: IntArray, fraction: FloatArray) -> FloatArray:
    """Lower bound on makespan / work from paths through all chunks: ``1 + 1 / sum over ranks of 1 / waited``.

    If every path ``work + waited[r] * work[r]`` is at most M, then ``work[r] <= (M - work) / waited[r]``; the
    sum over ranks gives the bound.
    """
    inverse = np.zeros(np.broadcast_shapes(pp.shape, m.shape, fraction.shape))
    with np.errstate(divide="ignore"):
        for behind in range(1, int(pp.max()) + 1):
            waited = np.asarray(_WAITED_WORK[name](m, behind, fraction), dtype=np.float64)
            inverse = inverse + np.where(behind <= pp, 1 / waited, 0)
    return 1 + 1 / inverse


def _ladder_bound(pp: IntArray, vpp: IntArray, m: IntArray) -> FloatArray:
    """Lower bound on makespan / work from what each rank waits for at the start and leaves behind at the end.

    For rank ``r`` and its chunk of place ``l`` the path is: first micro-batch up to that chunk, all that the
    rank then does up to its last backward of that chunk, and on back to chunk 0. It holds all passes of the
    rank but a group of micro-batches in the places below ``l``, and each chunk before it once. The mean over
    ``l``, weighted over ranks, holds the chunk of rank ``r`` with ``above`` places above its own
    ``weight[r] m + (above (1 - weight[r] group) + sum of weight beyond r) / vpp`` times. Any weights that sum
    to 1 give a bound, the smallest of these; the ones here make them nearly equal.
    """
    group = np.where(m % pp == 0, pp, m)  # at least the schedule's own, which may only strengthen the bound
    ranks = range(int(pp.max()) - 1, -1, -1)
    aim = m / pp + (pp - 1) / (2 * pp * vpp)
    weights, total = [], np.zeros(np.broadcast_shapes(pp.shape, vpp.shape, m.shape))
    for rank in ranks:
        equalising = [(aim * vpp - above - total) / (m * vpp - above * group) for above in (0 * vpp, vpp - 1)]
        weights.append(np.where(rank < pp, np.maximum(*equalising), 0))
        total = total + weights[-1]
    bound, beyond = np.full(total.shape, np.inf), np.zeros(total.shape)
    for rank, weight in zip(ranks, weights, strict=True):
        share = weight / total
        held = share * m + (np.minimum(0, (vpp - 1) * (1 - share * group)) + beyond) / vpp
        bound = np.minimum(bound, np.where(rank < pp, held, np.inf))
        beyond = beyond + share
    return bound


def uniform_bound(
    name: str,
    pp: ArrayLike,
    vpp: ArrayLike,
    num_microbatches: ArrayLike,
    total_s: ArrayLike,
    forward_fraction_max: ArrayLike,
    transfer_s: ArrayLike = 0.0,
) -> FloatArray:
    """Lower bound on the makespan over all ways to spread work over the chunks, in seconds.

    Parameters
    ----------
    name
        The schedule; every argument but this one broadcasts, and the sizes must be legal for it.
    pp, vpp, num_microbatches
        As for `meshwright.costmodels.schedule.build`.
    total_s
        Seconds of the forward and backward of one micro-batch through the whole model.
    forward_fraction_max
        The most that the forward takes of forward + backward in any chunk. Only "1f1b" depends on it: a
        rank that waits for its first backward has forwards done already.
    transfer_s
        Seconds of one transfer between ranks.

    Raises
    ------
    UnknownNameError
        No schedule has this name.
    """
    if name not in _WAITED_WORK:
        raise UnknownNameError("schedule", name, list(_WAITED_WORK))
    pp, vpp, m = (np.asarray(size, dtype=np.int64) for size in (pp, vpp, num_microbatches))
    work, fraction = np.asarray(total_s, dtype=np.float64), np.asarray(forward_fraction_max, dtype=np.float64)
    hops = 2 * (pp * vpp - 1) * (pp > 1)
    through = work * _through_bound(name, pp, m, fraction) + hops * np.asarray(transfer_s)
    within_ranks = work * np.maximum(m / pp, _ladder_bound(pp, vpp, m))
    return np.asarray(np.maximum(through, within_ranks))
