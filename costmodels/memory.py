"""Memory of one device, item by item (ZeRO, arXiv 1910.02054; activations, arXiv 2205.05198).

States, per trained parameter of the rank's share, with D ranks that ZeRO shards over (``dp_shard x cp`` for
dense weights, the ranks that hold the same experts for expert weights):

=================  =========================================  ==========================
item               bytes                                      divided by D from stage
=================  =========================================  ==========================
weights            element (working copy or gathered copy)    3
gradients          gradient                                   2
master weights     4 if the recipe keeps a master             1
moments            moments x moment bytes                     1
=================  =========================================  ==========================

Frozen weights have the first item alone, in the bytes in which they are stored. FSDP keeps no separate
working copy: at stage 3 the 16-bit weights exist only while a layer runs, which the transient items count;
at stage 2 they stay gathered. Where a recipe has no master, FSDP's shard of the weights is the master's item.
Offloading moves master weights and moments (``optimizer``) and the weights as well (``parameters``) to host
memory (ZeRO-Offload, arXiv 2101.06840; ZeRO-Infinity, arXiv 2104.07857).

What lives only while a layer runs (:func:`transient_bytes`) is told once, for the neediest layer of a rank.
All this agrees with torch's own tracker of FSDP2 on transformers' modules within 5 %
(``tests/frameworks/test_memory_referee.py``).
The items add up to what an allocator reserves; of what is allocated at its peak
:func:`~meshwright.costmodels.step.awaited_gradients` says what is still to come.
Fragmentation includes the room that collectives' tensors make useless while they wait for the device
(:mod:`meshwright.costmodels.waiting`). Left out: the allocator's rounding below the fragmentation share, and
memory of the data loader.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, Num
from meshwright.costmodels.precision import Optimizer, Precision
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.schedule import StaticSchedule, in_flight

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
    """Bytes of a rank's states, per parameter or per layer; fields broadcast."""

    weights: FloatArray
    gradients: FloatArray
    master_weights: FloatArray
    optimizer_moments: FloatArray

    @property
    def total(self) -> FloatArray:
        """All states together."""
        return self.weights + self.gradients + self.master_weights + self.optimizer_moments

    def map(self, change: Callable[[FloatArray], FloatArray]) -> "StateBytes":
        """Return the states with each item changed alike."""
        return StateBytes(*(change(getattr(self, f.name)) for f in fields(self)))

    def __add__(self, other: "StateBytes") -> "StateBytes":
        """Return the sum, item by item."""
        return StateBytes(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def state_bytes(
    zero_stage: Num,
    dp: Num,
    precision: Precision,
    optimizer: Optimizer,
    profile: Profile,
    gradient_bytes: Num,
    block: Num = True,
    late: Num = False,
    stays: Num = False,
) -> StateBytes:
    """Return the state bytes per trained parameter for ZeRO stages 0 to 3 over ``dp`` ranks; broadcasts.

    ``block`` tells parameters of blocks from those of embedding and head, which some optimizers treat apart.
    ``late`` gradients are scattered with the last micro-batch only; whether gathered weights stay until then
    is told by ``stays``.
    """
    z, d = np.broadcast_arrays(np.asarray(zero_stage), np.asarray(dp, dtype=np.float64))

    def split(stage: int) -> FloatArray:
        """Return the ranks that share a state from a ZeRO stage on."""
        return np.where(z >= stage, d, 1.0)

    element = float(precision.element_bytes)
    if profile.working_copy:
        weights, master = element / split(3), (4.0 if precision.master else 0.0) / split(1)
    else:
        shard = 4.0 if precision.master else element
        weights = np.where((z < 3) | stays, element, 0.0)
        master = np.where((z == 0) & (not precision.master), 0.0, shard / split(1))
    moments = moment_bytes(precision, optimizer, block) / split(1)
    gradients = gradient_bytes / np.where(late, 1.0, split(2))
    return StateBytes(weights, gradients, np.asarray(master), moments)


def moment_bytes(precision: Precision, optimizer: Optimizer, block: Num) -> FloatArray:
    """Return the bytes of all moments of one parameter, in a block or outside; broadcasts."""
    inside, outside = (optimizer.state_bytes(precision, block=b) for b in (True, False))
    return np.where(block, inside, outside)


def optimizer_traffic(
    precision: Precision, optimizer: Optimizer, gradient_bytes: float, block: Num = True
) -> FloatArray:
    """Return the bytes an optimizer step moves per parameter: states read and written, the gradient read."""
    master = 8.0 if precision.master else 0.0
    moments = 2 * moment_bytes(precision, optimizer, block)
    return np.asarray(gradient_bytes + master + moments + precision.element_bytes)


def transient_bytes(
    gathered: FloatArray,
    working: FloatArray,
    saved: FloatArray,
    unreduced: FloatArray,
    pending: FloatArray,
    follows: BoolArray,
) -> FloatArray:
    """Return the most that a layer adds to what is kept while its backward pass runs.

    Three moments count: its own work; its own work while the gradients of an equal layer behind it, whose
    activations are gone, are still being sent; and its end, when its activations are gone and its gradients
    exist twice, as they were left and as they are sent. Gathered weights are there throughout.

    Parameters
    ----------
    gathered, unreduced, pending
        Of a layer of each kind (:class:`~meshwright.costmodels.states.LayerStates`), (B, K).
    working, saved
        Of each kind under each recompute mode, (B, K, M).
    follows
        Whether a layer of this kind may run behind another of its own, (K,).

    Returns
    -------
    FloatArray
        (B, K, M).
    """
    sent = pending[..., None]
    behind = np.where(follows[:, None], working - saved + sent, 0.0)
    end = unreduced[..., None] + sent - saved
    return np.asarray(gathered[..., None] + np.maximum(np.maximum(working, behind), end))


def activation_bytes(schedule: StaticSchedule, saved_bytes: FloatArray) -> FloatArray:
    """Return the peak of kept activations on each pipeline rank.

    Parameters
    ----------
    schedule
        Says which chunks a rank holds and how many micro-batches are alive in each at its fullest moments.
    saved_bytes
        Bytes that one micro-batch keeps in each chunk, shape (..., pp * vpp), chunks in model order.

    Returns
    -------
    FloatArray
        Shape (..., pp).
    """
    peaks = [
        (saved_bytes[..., own] @ rows.T.astype(np.float64)).max(axis=-1)
        for own, rows in zip(schedule.chunks_of_rank, in_flight(schedule), strict=True)
    ]
    return np.stack(peaks, axis=-1)
