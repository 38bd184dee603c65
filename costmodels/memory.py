"""Memory of one device, item by item (ZeRO, arXiv 1910.02054; activations, arXiv 2205.05198).

States, per parameter P of the rank's tensor-parallel share, with D data-parallel ranks:

=================  =========================================  ==========================
item               bytes                                      divided by D from stage
=================  =========================================  ==========================
weights            element (working copy or gathered copy)    3
gradients          gradient                                   2
master weights     4 if the recipe keeps a master             1
moments            moments x moment bytes                     1
=================  =========================================  ==========================

FSDP keeps no separate working copy: at stage 3 the 16-bit weights exist only while a layer runs, which the
transient items count; at stage 2 they stay gathered. Where a recipe has no master, FSDP's shard of the
weights is the master's item.
Left out: the allocator's rounding below the fragmentation share, and memory of the data loader.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray, Num
from meshwright.costmodels.precision import Optimizer, Precision
from meshwright.costmodels.profile import Profile

ITEMS = (
    "weights",
    "gradients",
    "master_weights",
    "optimizer_moments",
    "activations",
    "gathered_parameters",
    "working_set",
    "buckets",
    "communicators",
    "fragmentation",
    "context",
)
"""Items of a device's memory, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of a rank's share; fields broadcast."""

    weights: FloatArray
    gradients: FloatArray
    master_weights: FloatArray
    optimizer_moments: FloatArray

    @property
    def total(self) -> FloatArray:
        """All state bytes per parameter."""
        return self.weights + self.gradients + self.master_weights + self.optimizer_moments


def state_bytes(
    zero_stage: Num,
    dp: Num,
    precision: Precision,
    optimizer: Optimizer,
    profile: Profile,
    gradient_bytes: float,
) -> StateBytes:
    """Return the state bytes per parameter for ZeRO stages 0 to 3 over ``dp`` ranks; broadcasts."""
    z, d = np.broadcast_arrays(np.asarray(zero_stage), np.asarray(dp, dtype=np.float64))

    def split(stage: int) -> FloatArray:
        return np.where(z >= stage, d, 1.0)

    element = float(precision.element_bytes)
    if profile.working_copy:
        weights, master = element / split(3), (4.0 if precision.master else 0.0) / split(1)
    else:
        shard = 4.0 if precision.master else element
        weights = np.where(z < 3, element, 0.0)
        master = np.where((z == 0) & (not precision.master), 0.0, shard / split(1))
    moments = optimizer.moments * precision.moment_bytes / split(1)
    return StateBytes(weights, gradient_bytes / split(2), np.asarray(master), moments)


def optimizer_traffic(precision: Precision, optimizer: Optimizer, gradient_bytes: float) -> float:
    """Return the bytes an optimizer step moves per parameter: states read and written, the gradient read."""
    master = 8.0 if precision.master else 0.0
    return gradient_bytes + master + 2 * optimizer.moments * precision.moment_bytes + precision.element_bytes


def activation_bytes(in_flight: tuple[IntArray, ...], saved_bytes: FloatArray) -> FloatArray:
    """Return the peak of kept activations on each pipeline rank.

    Parameters
    ----------
    in_flight
        For each rank the maximal vectors of live micro-batches per chunk, each (n, vpp).
    saved_bytes
        Bytes that one micro-batch keeps in each chunk, shape (..., pp * vpp), chunks in model order;
        chunk ``c`` lives on rank ``c % pp``.

    Returns
    -------
    FloatArray
        Shape (..., pp).
    """
    pp = len(in_flight)
    by_rank = saved_bytes.reshape(*saved_bytes.shape[:-1], -1, pp)
    peaks = [(by_rank[..., r] @ rows.T.astype(np.float64)).max(axis=-1) for r, rows in enumerate(in_flight)]
    return np.stack(peaks, axis=-1)
