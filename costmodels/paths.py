"""Paths through a schedule: lower bounds on its simulated time that are linear in the times of the chunks.

A *path* is a chain of dependent operations to the last one of a rank; its length never exceeds the simulated
time at which that ends, whatever the times of the chunks are. A path that is critical for some times attains
it there, so that "end >= path" is an exact cut at that point.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.pipeline import durations, rows_at_once, run, starts
from meshwright.costmodels.schedule import NUM_KINDS, StaticSchedule


@dataclass(frozen=True)
class Path:
    """A chain of dependent operations that leads to the end of a rank, or to the last pass of a chunk.

    Attributes
    ----------
    forward_counts, backward_counts, weight_counts
        ``(chunks,)`` as tuples: passes of each chunk on the chain.
    transfers
        Transfers between ranks on the chain.
    origin
        The chunk whose first forward begins the chain.
    rank
        The rank whose last operation ends the chain, or whose chunk is waited for.
    chunk
        The chunk before whose last pass, the one that completes its gradients, the chain ends; -1 where it
        leads to the end of the rank.
    """

    forward_counts: tuple[int, ...]
    backward_counts: tuple[int, ...]
    weight_counts: tuple[int, ...]
    transfers: int
    origin: int
    rank: int
    chunk: int = -1

    @property
    def counts(self) -> tuple[int, ...]:
        """All counts in a row."""
        return (*self.forward_counts, *self.backward_counts, *self.weight_counts, self.transfers)


def path_length(
    path: Path,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    transfer_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    ready_s: ArrayLike = 0.0,
) -> FloatArray:
    """Seconds to the end of a path, ``(...)``; never more than the simulated time of what it leads to.

    Times broadcast as in `meshwright.costmodels.pipeline.simulate`.
    """
    forward = (np.asarray(forward_s) * path.forward_counts).sum(axis=-1)
    backward = (np.asarray(backward_s) * path.backward_counts).sum(axis=-1)
    weight = (np.asarray(weight_s) * path.weight_counts).sum(axis=-1)
    ready = np.asarray(ready_s)
    start = ready[..., path.origin] if ready.ndim else ready
    return np.asarray(start + forward + backward + weight + path.transfers * np.asarray(transfer_s))


def _binding(schedule: StaticSchedule, end: FloatArray, transfer: float) -> list[int]:
    """The predecessor that each operation waits for longest, negative if none, given all ends from `run`."""
    arrival = end[schedule.data] + schedule.crosses * transfer
    before = end[schedule.previous]
    by_data = (schedule.data >= 0) & (arrival >= before)
    binding = np.where(by_data, schedule.data, schedule.previous)
    first = schedule.first_forwards[schedule.pp :]
    chunks = np.arange(schedule.pp, schedule.num_chunks)
    waits = end[-1 - chunks] > np.maximum(arrival[first], before[first])
    binding[first[waits]] = -1 - chunks[waits]
    told: list[int] = binding.tolist()
    return told


def _backtrack(schedule: StaticSchedule, binding: list[int], rank: int, chunk: int = -1) -> Path:
    """Follow binding predecessors to the start of the step, from the end of a rank or a chunk's last pass."""
    at = int(schedule.last_operation[rank] if chunk < 0 else schedule.last_passes[chunk])
    chain = [at]
    while (at := binding[at]) >= 0:
        chain.append(at)
    chained = np.array(chain)
    by_data = schedule.data[chained[:-1]] == chained[1:]
    held = chained if chunk < 0 else chained[1:]
    counts = np.bincount(schedule.passes[held], minlength=NUM_KINDS * schedule.num_chunks)
    forward, backward, weight = counts.reshape(NUM_KINDS, schedule.num_chunks).tolist()
    transfers = int((by_data & schedule.crosses[chained[:-1]]).sum())
    origin = int(schedule.chunk[chained[-1]])
    return Path(tuple(forward), tuple(backward), tuple(weight), transfers, origin, rank, chunk)


def critical_paths(
    schedule: StaticSchedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    transfer_s: float,
    ranks: Iterable[int] | None = None,
    weight_s: ArrayLike = 0.0,
    ready_s: ArrayLike = 0.0,
    chunks: Iterable[int] = (),
) -> list[Path]:
    """The critical path of one set of times to the end of each of some ranks (all), from one simulation.

    Behind them those to the start of the last pass of some chunks (none).
    """
    seconds, transfer, lead = durations(schedule, forward_s, backward_s, transfer_s, weight_s)
    end = run(schedule, seconds, transfer, starts(schedule, ready_s, lead))
    binding = _binding(schedule, end[:, 0], float(transfer[0]))
    ends = [_backtrack(schedule, binding, r) for r in (range(schedule.pp) if ranks is None else ranks)]
    return ends + [_backtrack(schedule, binding, int(schedule.rank_of_chunk[c]), c) for c in chunks]


def slow_chunk_paths(
    schedule: StaticSchedule,
    passes: tuple[FloatArray, FloatArray, float],
    longer_s: FloatArray,
    weight_s: ArrayLike = 0.0,
    ready_s: ArrayLike = 0.0,
) -> list[Path]:
    """Return the critical paths to the latest rank when one chunk after the other runs longer backward.

    With no more micro-batches than ranks a chunk that is slower than its rank's others is waited for by all
    that follow, whichever it is: layers spread evenly over a rank in the mean hide that.

    Parameters
    ----------
    passes
        Forward and backward seconds of the chunks, (C,) each, and of a transfer.
    longer_s
        By how much each chunk's backward pass is longer, (C,); zero: it is left out.
    """
    forward, backward, transfer_s = passes
    slow, block, paths = np.flatnonzero(longer_s > 0), rows_at_once(schedule), []
    for first in range(0, len(slow), block):
        each = slow[first : first + block]
        rows = backward + longer_s * (np.arange(schedule.num_chunks) == each[:, None])
        seconds, transfer, lead = durations(schedule, forward, rows, len(each) * [transfer_s], weight_s)
        end = run(schedule, seconds, transfer, starts(schedule, ready_s, lead))
        latest = end[schedule.last_operation].argmax(axis=0).tolist()
        for rank, ends in zip(latest, np.ascontiguousarray(end.T), strict=True):
            paths.append(_backtrack(schedule, _binding(schedule, ends, transfer_s), rank))
    return paths


_BACKWARD_WORK = 2.0
_TRANSFER_WORK = 0.01
"""Work of a backward (two GEMMs for each forward one; half of it the weight's) and of a transfer, in
forwards, behind `base_paths`; a transfer only decides between paths of equal work."""
_SLOWER = (1.1, 4.0)
"""A bottleneck a little slower than the rest is waited for behind its own warm-up, a much slower one is never
waited for by itself: their critical paths differ."""


def _undominated(paths: list[Path]) -> list[Path]:
    """Paths that no other path to the same rank matches or exceeds in every count."""
    kept = []
    for rank in sorted({path.rank for path in paths}):
        group = list(dict.fromkeys(path for path in paths if path.rank == rank))
        table = np.array([path.counts for path in group])
        covered = [np.all(table >= row, axis=1).sum() > 1 for row in table]
        kept += [path for path, is_covered in zip(group, covered, strict=True) if not is_covered]
    return kept


@lru_cache(maxsize=256)
def base_paths(schedule: StaticSchedule) -> tuple[Path, ...]:
    """Few strong paths to start a makespan model from, the same for any times.

    They begin with chunk 0, as where none is held up. They are critical when all chunks are equal, for every
    rank, and when one rank is slower than the rest, for that rank, for rank 0, which ends last where chunk 0
    lives there, and for the last rank where weight passes follow the last backward.
    """
    ranks, apart = np.arange(schedule.pp), _BACKWARD_WORK / 2 if schedule.split else 0.0
    chosen = schedule.rank_of_chunk == ranks[:, None]
    slow = np.concatenate([np.ones((1, schedule.num_chunks)), *(1 + (by - 1) * chosen for by in _SLOWER)])
    paths: list[Path] = []
    block = rows_at_once(schedule)
    for first in range(0, len(slow), block):
        rows = slow[first : first + block]
        times = rows, (_BACKWARD_WORK - apart) * rows, len(rows) * [_TRANSFER_WORK], apart * rows
        seconds, transfer, lead = durations(schedule, *times)
        end = run(schedule, seconds, transfer, starts(schedule, 0.0, lead))
        for row, ends in zip(rows, np.ascontiguousarray(end.T), strict=True):
            binding = _binding(schedule, ends, _TRANSFER_WORK)
            own = int(schedule.rank_of_chunk[row.argmax()])
            last = {schedule.pp - 1} if schedule.split else set()
            where = ranks.tolist() if np.ptp(row) == 0 else sorted({0, own} | last)
            paths += [_backtrack(schedule, binding, rank) for rank in where]
    return tuple(_undominated(paths))


@dataclass(frozen=True)
class PathTable:
    """Paths to the end of a rank as arrays: P of them over C chunks.

    Attributes
    ----------
    forward_counts, backward_counts, weight_counts
        ``(P, C)``, passes of each chunk.
    transfers, origin, rank
        ``(P,)``.
    """

    forward_counts: FloatArray
    backward_counts: FloatArray
    weight_counts: FloatArray
    transfers: FloatArray
    origin: IntArray
    rank: IntArray

    def lengths(
        self, forward_s: FloatArray, backward_s: FloatArray, transfer_s: float, weight_s: FloatArray
    ) -> FloatArray:
        """Seconds along each path, ``(P,)``, for one set of times, ``(C,)`` each."""
        passes = self.forward_counts @ forward_s + self.backward_counts @ backward_s
        return np.asarray(passes + self.weight_counts @ weight_s + self.transfers * transfer_s)


@lru_cache(maxsize=256)
def base_table(schedule: StaticSchedule) -> PathTable:
    """The `base_paths` as arrays."""
    paths = base_paths(schedule)
    return PathTable(
        forward_counts=np.array([p.forward_counts for p in paths], dtype=np.float64),
        backward_counts=np.array([p.backward_counts for p in paths], dtype=np.float64),
        weight_counts=np.array([p.weight_counts for p in paths], dtype=np.float64),
        transfers=np.array([p.transfers for p in paths], dtype=np.float64),
        origin=np.array([p.origin for p in paths]),
        rank=np.array([p.rank for p in paths]),
    )
