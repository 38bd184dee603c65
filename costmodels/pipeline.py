"""What a pipeline costs: the event simulation of its schedule.

The simulation is the price; :mod:`meshwright.costmodels.paths` and
:mod:`meshwright.costmodels.pipeline_bounds` bound it from below.

Left out: contention between transfers, kernels slowed by communication that runs beside them, and passes of
two micro-batches that run beside each other on one rank (DualPipe's overlapped pairs).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.schedule import NUM_KINDS, StaticSchedule
from meshwright.hardware.errors import MeshwrightError

_BLOCK_ELEMENTS = 1 << 22
"""Operation times held at once (32 MiB); a larger batch is simulated block by block."""


def rows_at_once(schedule: StaticSchedule) -> int:
    """Batch size whose operation times are held at once."""
    return max(1, _BLOCK_ELEMENTS // schedule.kind.size)


@dataclass(frozen=True)
class PipelineTimes:
    """When things happen in one training step, in seconds from its start; ``...`` is the batch.

    Attributes
    ----------
    end_s
        ``(..., pp)``, end of the last operation of each rank.
    last_backward_start_s
        ``(..., pp * vpp)``, start of the last backward of each chunk, or of its last weight pass where these
        are apart; its gradient reduction can overlap from there.
    busy_s
        ``(..., pp)``, time each rank computes.
    """

    end_s: FloatArray
    last_backward_start_s: FloatArray
    busy_s: FloatArray


def _checked(field: str, value: ArrayLike) -> FloatArray:
    seconds = np.asarray(value, dtype=np.float64)
    wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if wrong.any():
        raise MeshwrightError(f"{field} = {seconds[wrong][0]}: must be finite and at least 0 seconds")
    return seconds


def durations(
    schedule: StaticSchedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    transfer_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
    """Times as ``(kinds * chunks, batch)`` and ``(batch,)``, and the batch's shape; raises as `simulate`."""
    passes = []
    for field, value in (("forward_s", forward_s), ("backward_s", backward_s), ("weight_s", weight_s)):
        seconds = np.atleast_1d(_checked(field, value))
        if seconds.shape[-1] not in (1, schedule.num_chunks):
            raise MeshwrightError(
                f"{field} has {seconds.shape[-1]} entries on its last axis: must be 1 or one for each of the "
                f"pp * vpp = {schedule.num_chunks} chunks"
            )
        passes.append(seconds)
    if not schedule.split and passes[-1].any():
        raise MeshwrightError(
            f"weight_s = {passes[-1].max()}: schedule {schedule.name!r} has no weight passes, its backward_s "
            "holds their time; give 0"
        )
    transfer = _checked("transfer_s", transfer_s)
    lead = np.broadcast_shapes(*(p.shape[:-1] for p in passes), transfer.shape)
    full = [
        np.broadcast_to(p, (*lead, schedule.num_chunks)).reshape(-1, schedule.num_chunks).T for p in passes
    ]
    return np.concatenate(full), np.broadcast_to(transfer, lead).reshape(-1), lead


def starts(schedule: StaticSchedule, ready_s: ArrayLike, lead: tuple[int, ...]) -> FloatArray:
    """When chunks may start, ``(chunks, batch)``, from ``(..., chunks)`` or what broadcasts to it."""
    ready = np.broadcast_to(_checked("ready_s", ready_s), (*lead, schedule.num_chunks))
    return np.ascontiguousarray(ready.reshape(-1, schedule.num_chunks).T)


def _start(
    schedule: StaticSchedule, operations: IntArray, end: FloatArray, transfer: FloatArray
) -> FloatArray:
    """``(operations, batch)``: when the rank is free and the input has arrived."""
    arrival = end[schedule.data[operations]] + schedule.crosses[operations, None] * transfer
    start: FloatArray = np.maximum(arrival, end[schedule.previous[operations]])
    return start


def run(schedule: StaticSchedule, seconds: FloatArray, transfer: FloatArray, ready: FloatArray) -> FloatArray:
    """End of every operation, ``(operations + chunks, batch)``; behind them, from the last row up, ``ready``.

    So the index -1 of "needs no other's output" is that of the first chunk, and ``-1 - rank`` of a rank's
    first operation that of its own first chunk.
    """
    operations = schedule.kind.size
    end = np.empty((operations + schedule.num_chunks, transfer.size))
    end[operations:] = ready[::-1]
    if schedule.pp == 1:  # nothing to wait for but the operation before
        own = seconds[schedule.passes]
        own[0] += ready[0]
        np.cumsum(own, axis=0, out=end[:-1])
        return end
    data, previous, passes = schedule.data, schedule.previous, schedule.passes
    held_up = schedule.held_up
    crosses, late = schedule.crosses.astype(np.int64), np.stack([np.zeros_like(transfer), transfer])
    for low, high in pairwise(schedule.level_start.tolist()):  # as _start; twice as fast without its slices
        start = end.take(data[low:high], axis=0)
        start += late.take(crosses[low:high], axis=0)
        np.maximum(start, end.take(previous[low:high], axis=0), out=start)
        if low in held_up:
            at, chunks = held_up[low]
            start[at] = np.maximum(start[at], ready[chunks])
        np.add(start, seconds.take(passes[low:high], axis=0), out=end[low:high])
    return end


def simulate(
    schedule: StaticSchedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    transfer_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    ready_s: ArrayLike = 0.0,
) -> PipelineTimes:
    """Run the schedule: each operation starts when its rank is free and its input has arrived.

    Parameters
    ----------
    schedule
        From `meshwright.costmodels.schedule.build`.
    forward_s, backward_s
        Seconds of one pass of one micro-batch, broadcasting to ``(..., pp * vpp)``, chunks in model order.
        The backward is the input gradient with its recomputation where the schedule has weight passes, and
        the whole backward where it has none.
    transfer_s
        Seconds from the end of a pass to the arrival of its output at another rank, to ``(...)``;
        it occupies neither.
    weight_s
        Seconds of the weight gradients of one micro-batch, as ``backward_s``; 0 without weight passes.
    ready_s
        Seconds before which a chunk starts nothing, broadcasting to ``(..., pp * vpp)``.

    Raises
    ------
    MeshwrightError
        A time is negative or not finite, its last axis does not fit the chunks, or weight gradients are
        given to a schedule that does not tell them apart.
    """
    seconds, transfer, lead = durations(schedule, forward_s, backward_s, transfer_s, weight_s)
    batch, pp = transfer.size, schedule.pp
    ready = starts(schedule, ready_s, lead)
    last, last_backward = schedule.last_operation, schedule.last_passes
    end_s, last_backward_start_s = np.empty((batch, pp)), np.empty((batch, schedule.num_chunks))
    block = rows_at_once(schedule)
    for first in range(0, batch, block):
        rows = slice(first, first + block)
        end = run(schedule, np.ascontiguousarray(seconds[:, rows]), transfer[rows], ready[:, rows])
        end_s[rows] = end[last].T
        last_backward_start_s[rows] = _start(schedule, last_backward, end, transfer[rows]).T
    once = seconds.reshape(NUM_KINDS, schedule.num_chunks, batch).sum(axis=0)
    busy_s = schedule.num_microbatches * sum(once[column] for column in schedule.chunks_of_rank.T)
    started = last_backward_start_s.reshape(*lead, schedule.num_chunks)
    return PipelineTimes(end_s.reshape(*lead, pp), started, busy_s.T.reshape(*lead, pp))
