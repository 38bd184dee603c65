"""What a step waits for of the reduction of gradients, some of which are complete before the last pass.

A rank with several chunks reduces the gradients of each as its last backward pass completes them, one chunk
behind another on the same links, beside the passes of chunks still to come. Megatron-LM does so in
``forward_backward_pipelining_with_interleaving`` (``core/pipeline_parallel/schedules.py``:
``enable_grad_sync`` where ``is_last_microbatch_for_model_chunk``; buckets are reduced as soon as their
gradients are complete, ``core/distributed/param_and_grad_buffer.py``), PyTorch's ``PipelineStage`` in the
last backward pass of each stage. With one chunk a rank only that pass is left to hide behind.

Left out: ranks of a pipeline that wait for each other to start a reduction together, which delays those with
time to spare; sums over tied weights, which follow all others.
"""

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray, Num
from meshwright.costmodels.overlap import exposed_in_turn
from meshwright.costmodels.pipeline import PipelineTimes
from meshwright.costmodels.schedule import StaticSchedule


def late_reduction(
    schedule: StaticSchedule, reduction_s: FloatArray, times: PipelineTimes, share: Num, cost: Num
) -> tuple[FloatArray, IntArray]:
    """Return the seconds by which reductions end behind the passes of each rank, and for which chunk.

    A later start of a chunk's last pass, or end of its rank, never lets the rank be done earlier:
    ``end + late`` is the largest of ``(1 - a) end + a start_k + ...``, with ``a = share x (1 - cost)``.

    Parameters
    ----------
    reduction_s
        Seconds that the gradients of each chunk take, (..., C).
    times
        From the simulation of the same passes.
    share, cost
        ``overlap_gradients`` and ``overlap_cost`` of the profile.

    Returns
    -------
    tuple
        Seconds (..., R), and the first of the chunks whose reductions the rank waits for, (..., R); -1 where
        it only pays for what is hidden.
    """
    order = schedule.completed
    windows = share * (times.end_s[..., None] - times.last_backward_start_s[..., order])
    late, part = exposed_in_turn(reduction_s[..., order], windows, cost)
    chunk = np.take_along_axis(np.broadcast_to(order, windows.shape), np.maximum(part, 0)[..., None], axis=-1)
    return late, np.where(part >= 0, chunk[..., 0], -1)
