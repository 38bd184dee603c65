"""Strategies to be priced, and the setting that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray, Num
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.precision import Optimizer, Precision
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.roofline import DeviceRates
from meshwright.hardware.spec import Cluster

OFFLOADS = ("none", "optimizer", "parameters", "optimizer-nvme", "parameters-nvme")
"""What lives off the device: nothing, optimizer states (with master weights), or the weights as well; in host
memory or on the host's NVMe drives."""
WEIGHTS_AWAY = np.array([what.startswith("parameters") for what in OFFLOADS])
ON_NVME = np.array([what.endswith("nvme") for what in OFFLOADS])
"""Of each of :data:`OFFLOADS`: whether weights go as well, and whether to drives."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one stream: a sample has ``sequences`` sequences of ``sequence_length`` tokens in it."""

    sequence_length: float
    sequences: float = 1.0


@dataclass(frozen=True)
class Setting:
    """What all strategies of a call have in common.

    Attributes
    ----------
    kinds
        The model's layer kinds, adapted to the stack.
    sequence_length
        Tokens in a sequence of the main stream (``text``).
    vocab_multiple
        Padding of each rank's share of the vocabulary.
    streams
        Lengths of the model's other streams (vision tower, encoder), by name.
    context
        The stream that cross attention reads, None without one.
    expert_load
        Rows of the busiest expert rank over the mean, at least 1 (or the capacity factor).
    member
        Which of several stacked settings each strategy belongs to, (B,); numbers that these differ in are
        arrays of that shape (:mod:`meshwright.costmodels.stacking`). None: one setting for all strategies.
    """

    kinds: tuple[LayerKind, ...]
    sequence_length: Num
    cluster: Cluster
    rates: DeviceRates
    precision: Precision
    optimizer: Optimizer
    profile: Profile
    vocab_multiple: int = 1
    streams: Mapping[str, Lengths] = field(default_factory=dict)
    context: str | None = None
    expert_load: Num = 1.0
    member: IntArray | None = None

    @property
    def gradient_bytes(self) -> float:
        """Bytes of an accumulated gradient: the recipe's, else the stack's."""
        own = self.precision.gradient_bytes
        return float(self.profile.gradient_bytes if own is None else own)

    def lengths(self, stream: str) -> Lengths:
        """Return the lengths of a stream; those of the main one by default."""
        return self.streams.get(stream, Lengths(self.sequence_length))


@dataclass(frozen=True)
class Strategies:
    """A batch of strategies: integer arrays of shape (B,), and the schedule's name of each.

    Attributes
    ----------
    tp, cp, pp, dp
        Degrees of the dense mesh; ``dp`` = ``dp_replicate`` x ranks that ZeRO shards over.
    ep, etp
        Degrees of the expert mesh, folded over the same ``tp x cp x dp`` ranks.
    dp_replicate
        Copies of the sharded states (hybrid sharding).
    hpz
        Ranks of a data group that keep a secondary copy of the 16-bit weights together (ZeRO++, 1: none).
    ulysses, ring
        See :class:`~meshwright.costmodels.work.Shape`.
    offload
        Index into :data:`OFFLOADS`.
    context_stride, data_stride, pipeline_stride
        Distances, in devices, between neighbours of a group: how the mesh is laid on the topology (tensor
        groups have stride 1).
    inner
        Ranks of the ``tp``, ``cp`` and ``dp`` dimensions that are laid inside the pipeline dimension.
    """

    tp: IntArray
    pp: IntArray
    dp: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    dp_replicate: IntArray
    hpz: IntArray
    vpp: IntArray
    zero_stage: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    sequence_parallel: IntArray
    ulysses: IntArray
    ring: IntArray
    offload: IntArray
    context_stride: IntArray
    data_stride: IntArray
    pipeline_stride: IntArray
    inner: IntArray
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

    @property
    def dp_shard(self) -> IntArray:
        """Ranks of the data dimension that ZeRO shards over, shape (B,)."""
        return self.dp // self.dp_replicate

    @property
    def shards(self) -> IntArray:
        """Shards of a dense state: over data and context ranks, shape (B,)."""
        return self.dp_shard * self.cp

    @property
    def expert_shards(self) -> IntArray:
        """Shards of an expert state: over the ranks that hold the same expert, shape (B,)."""
        return np.maximum(self.tp * self.cp * self.dp_shard // (self.ep * self.etp), 1)

    @property
    def states_away(self) -> BoolArray:
        """Whether optimizer states live off the device, shape (B,)."""
        return np.asarray(self.offload > 0)

    @property
    def weights_away(self) -> BoolArray:
        """Whether weights live off the device, shape (B,)."""
        return np.asarray(WEIGHTS_AWAY[self.offload])

    @property
    def on_nvme(self) -> BoolArray:
        """Whether what lives off the device lies on drives, shape (B,)."""
        return np.asarray(ON_NVME[self.offload])

    @property
    def devices(self) -> IntArray:
        """Devices in use, shape (B,)."""
        return self.tp * self.cp * self.dp * self.pp
