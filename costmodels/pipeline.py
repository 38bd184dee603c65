"""What a pipeline costs: the event simulation of its schedule, and lower bounds that the search starts from.

The simulation is the price. A *path* is a chain of dependent operations; its length is linear in the times of
the chunks and never exceeds the simulated time of the event at its end, whatever these times are. A path that
is critical for some times attains it there, so that "event >= path" is an exact cut at that point.

Left out: contention between transfers, and kernels slowed by communication that runs beside them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.costmodels.schedule import BACKWARD, FORWARD, NUM_KINDS, IntArray, StaticSchedule, names
from meshwright.hardware.errors import MeshwrightError, UnknownNameError

FloatArray: TypeAlias = NDArray[np.float64]
Event: TypeAlias = Literal["end", "last_backward_start"]

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
    full = [np.broadcast_to(p, (*lead, schedule.num_chunks)).reshape(-1, schedule.num_chunks).T for p in passes]
    return np.concatenate(full), np.broadcast_to(transfer, lead).reshape(-1), lead


def _run(schedule: StaticSchedule, seconds: FloatArray, transfer: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Start and end of every operation, ``(operations + 1, batch)``; the last row, at 0, stands for "none"."""
    start = np.zeros((schedule.kind.size + 1, transfer.size))
    end = np.zeros_like(start)
    passes = schedule.kind * schedule.num_chunks + schedule.chunk
    delay = schedule.crosses[:, None]
    for low, high in zip(schedule.level_start[:-1].tolist(), schedule.level_start[1:].tolist(), strict=True):
        level = slice(low, high)
        arrival = end[schedule.data[level]]
        arrival += delay[level] * transfer
        np.maximum(arrival, end[schedule.previous[level]], out=start[level])
        np.add(start[level], seconds[passes[level]], out=end[level])
    return start, end


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
        Seconds from the end of a pass to the arrival of its output at another rank, broadcasting to ``(...)``;
        occupies neither rank.

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
        start, end = _run(schedule, np.ascontiguousarray(seconds[:, rows]), transfer[rows])
        end_s[rows] = end[last].T
        last_backward_start_s[rows] = start[last_backward].T
    once = seconds.reshape(NUM_KINDS, schedule.num_chunks, batch).sum(axis=0)
    busy_s = schedule.num_microbatches * sum(once[column] for column in schedule.chunks_of_rank.T)
    shape = (*lead, pp)
    return PipelineTimes(end_s.reshape(shape), last_backward_start_s.reshape(shape), busy_s.T.reshape(shape))
