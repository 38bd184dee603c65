"""Strategies to be priced, and the setting that they share."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.precision import Optimizer, Precision
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.roofline import DeviceRates
from meshwright.hardware.spec import Cluster


@dataclass(frozen=True)
class Setting:
    """What all strategies of a call have in common.

    Attributes
    ----------
    kinds
        The model's layer kinds, adapted to the stack.
    sequence_length
        Tokens in a sequence.
    vocab_multiple
        Padding of each rank's share of the vocabulary.
    """

    kinds: tuple[LayerKind, ...]
    sequence_length: int
    cluster: Cluster
    rates: DeviceRates
    precision: Precision
    optimizer: Optimizer
    profile: Profile
    vocab_multiple: int = 1

    @property
    def gradient_bytes(self) -> float:
        """Bytes of an accumulated gradient: the recipe's, else the stack's."""
        own = self.precision.gradient_bytes
        return float(self.profile.gradient_bytes if own is None else own)


@dataclass(frozen=True)
class Strategies:
    """A batch of strategies: integer arrays of shape (B,), and the schedule's name of each.

    ``data_stride`` and ``pipeline_stride`` are the distances, in devices, between neighbours of a data and
    of a pipeline group: they say how the mesh is laid on the topology (tensor groups have stride 1).
    """

    tp: IntArray
    pp: IntArray
    dp: IntArray
    vpp: IntArray
    zero_stage: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    sequence_parallel: IntArray
    data_stride: IntArray
    pipeline_stride: IntArray
    schedule: tuple[str, ...]

    def __len__(self) -> int:
        """Return the size of the batch."""
        return len(self.schedule)

    def take(self, rows: IntArray | Sequence[int]) -> "Strategies":
        """Return the strategies of some rows."""
        index = np.asarray(rows, dtype=np.int64)
        arrays = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "schedule"}
        return Strategies(**arrays, schedule=tuple(self.schedule[i] for i in index))

    @property
    def chunks(self) -> IntArray:
        """Chunks of the pipeline, shape (B,)."""
        return self.pp * self.vpp
