"""Memory that waits for the device: tensors of collectives, which the allocator gives out again only later.

PyTorch frees a tensor when the host lets go of it, and gives its block to the next one at once, because work
on one stream keeps its order. A collective runs on a stream of its own: a block that it was told of
(``recordStream``, in ProcessGroupNCCL unless TORCH_NCCL_AVOID_RECORD_STREAMS is set) is given out again only
once the device is done, and the host runs ahead of it by as many kernels as a queue holds. So many layers'
collectives wait at any time. What comes next lies where they would have lain, in the largest blocks that are
free while a layer's transient (logits, scores) does not exist: and those can then neither serve the transient
nor be given back, as long as anything lies in them. So as much is reserved once more as waits, at most the
transient itself. An allocator replayed operator by operator (best fit, blocks split and joined, all that is
free and whole given back before it fails) told apart who ran out of memory with tensor parallelism by this.

Left out: a host that does not get ahead, whose queue is empty; collectives of other groups.
"""

from typing import Final

import numpy as np

from meshwright.costmodels.arrays import FloatArray
from meshwright.costmodels.layer import LayerCost
from meshwright.costmodels.memory import transient_bytes
from meshwright.costmodels.states import LayerStates
from meshwright.costmodels.strategy import Setting

QUEUE: Final = 1024
"""Kernels that a CUDA stream holds before a launch waits for the device."""


def waiting_bytes(setting: Setting, cost: LayerCost) -> FloatArray:
    """Return the bytes of collectives' tensors that wait for the device at a time, (B,).

    Of the kind of blocks with most of them; none where graphs replay its kernels.
    """
    blocks = np.array([kind.role == "block" for kind in setting.kinds])
    launched = np.maximum(cost.forward_launches, 1.0)
    each = cost.recorded_bytes * QUEUE / launched * (cost.forward_launches > 0) * blocks
    return np.asarray(each.max(axis=-1, initial=0.0) * setting.profile.records_streams)


def working_bytes(setting: Setting, cost: LayerCost, states: LayerStates, waiting: FloatArray) -> FloatArray:
    """Return what lives only while a layer runs, and what of its room is lost to what waits, (B, K, M)."""
    blocks = np.array([kind.role == "block" for kind in setting.kinds])
    loose = states.gathered_bytes, cost.working_bytes, cost.saved_bytes
    passing = transient_bytes(*loose, states.unreduced_bytes, states.pending_bytes, blocks)
    passing = passing + (states.placeholder_bytes + states.withheld_bytes)[..., None]
    return np.asarray(passing + np.minimum(waiting[:, None, None], passing))


def lost_bytes(working: FloatArray, waiting: FloatArray) -> FloatArray:
    """Return what of :func:`working_bytes` is lost, as ``w + min(waiting, w)`` was added up; broadcasts."""
    return np.minimum(waiting, working / 2)
