"""What a group of ranks gets from the topology: which tiers it joins and at what rate, for arrays at once.

Ranks are laid on the devices in order, innermost tier first. A group of ``size`` ranks with ``stride``
holds the devices ``o, o + stride, ..., o + (size - 1) * stride``; groups of one mesh dimension tile the
cluster (``stride`` is the product of the degrees laid inside it) and communicate at the same time, so every
bandwidth here is one device's own share while all of them send.

Groups that do not fit the blocks (``tp = 6`` on nodes of 8) straddle. Steps wait for the worst group, so
the rule is conservative: inside a block of ``B`` devices only as many members are counted as *every* group
has in *every* block that it touches, ``gcd(size, B / stride)``, or one if ``stride`` does not divide ``B``.
``tp = 6`` on nodes of 8 counts as pairs inside a node and three such pairs across nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Accelerator, Cluster, Tier

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

COPY_SHARE: Final = 0.55
"""Share of the memory bandwidth that a collective's cores reach on a rank's own part. Measured gathers and
scatters of 16 MB and more over 2, 4 and 8 devices (A100, H100, H200, B200; NCCL 2.27, 2.28, aiconfigurator):
pairs reach 0.68 to 0.80 of the rate of eight; with the copy all are within 7 % in the mean, 13 % without."""


@dataclass(frozen=True)
class GroupSpan:
    """How groups of ranks lie on the tiers; every array has shape ``(..., num_tiers)``, innermost first.

    Attributes
    ----------
    sizes
        Sub-blocks of each tier that the group joins there; the product over tiers is the group's size.
        A size of 1 means that the group does not use this tier.
    bandwidth_bytes_per_s
        One way, for each device: wire rate times efficiency over oversubscription. Members in one block
        below each drive their own share, so ``g`` members there send ``g`` times this through the tier.
    latency_s
        One hop between neighbours of the group on this tier.
    copy_s_per_byte
        What moving a byte of its own part from input to output costs a rank (one number, not one a tier).
    one_ring
        Whether libraries lay a ring over the whole group at once, as those for GPUs do (NCCL, RCCL); else
        there may be one a tier (XLA on the axes of a torus, HCCL).
    """

    sizes: FloatArray
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    copy_s_per_byte: float = 0.0
    one_ring: bool = False

    @cached_property
    def size(self) -> FloatArray:
        """Ranks of the group, shape (...)."""
        return np.asarray(np.prod(self._sizes, axis=-1))

    @cached_property
    def members_below(self) -> FloatArray:
        """Members inside one sub-block of each tier, shape (..., num_tiers)."""
        return np.asarray(np.cumprod(self._sizes, axis=-1) / self._sizes)

    @property
    def _sizes(self) -> FloatArray:
        return np.asarray(self.sizes, dtype=np.float64)


def group_span(cluster: Cluster, size: ArrayLike, stride: ArrayLike) -> GroupSpan:
    """Return how groups of ``size`` ranks placed with ``stride`` lie on the tiers of a cluster.

    Leaves out contention between different mesh dimensions that communicate at once, and the detours of
    single flows (rail-optimised fabrics send between rails through the scale-up link).

    Parameters
    ----------
    size, stride
        Whole numbers of at least 1, scalars or arrays that broadcast, shape ``(...)``.

    Raises
    ------
    MeshwrightError
        If a size or stride is no whole number of at least 1, or ``size * stride`` exceeds the devices.
    """
    sizes, strides = np.broadcast_arrays(_whole("size", size), _whole("stride", stride))
    _check_fit(cluster, sizes, strides)
    blocks = np.asarray(cluster.block_sizes, dtype=np.int64)
    members = _members_in_block(blocks, sizes[..., None], strides[..., None])
    below = np.concatenate([np.ones_like(members[..., :1]), members[..., :-1]], axis=-1)
    joined = (members // below).astype(np.float64)
    inner_blocks = np.concatenate([[1], blocks[:-1]])
    spacing = np.maximum(strides[..., None] // inner_blocks, 1).astype(np.float64)
    rates = [_rate(tier, joined[..., k], spacing[..., k]) for k, tier in enumerate(cluster.tiers)]
    hops = [_hops(tier, spacing[..., k]) for k, tier in enumerate(cluster.tiers)]
    latencies = [tier.latency_s * hop for tier, hop in zip(cluster.tiers, hops, strict=True)]
    return GroupSpan(
        joined,
        np.stack(rates, axis=-1),
        np.stack(latencies, axis=-1),
        _copy_s_per_byte(cluster.accelerator),
        cluster.accelerator.kind == "gpu",
    )


def _copy_s_per_byte(accelerator: Accelerator) -> float:
    """Return the seconds of a byte of its own part that a rank's kernel reads and writes beside what crosses.

    On GPUs the few cores that send and receive do it; other devices have engines for what crosses, no more.
    """
    if accelerator.kind != "gpu":
        return 0.0
    return 2.0 / (COPY_SHARE * accelerator.memory_bandwidth_bytes_per_s)


def joined(inner: GroupSpan, outer: GroupSpan) -> GroupSpan:
    """Return the span of groups made of two parts: ``inner`` groups, each joined with others by ``outer``.

    A group that is laid in two strides (context and data ranks around a pipeline dimension) has the product
    of the sub-blocks on every tier. The slower bandwidth and latency of the two counts where both use a tier.
    """

    def pick(
        a: FloatArray, b: FloatArray, both: Callable[[FloatArray, FloatArray], FloatArray]
    ) -> FloatArray:
        """Return the one that uses a tier, or what both together make of it."""
        uses, also = inner.sizes > 1, outer.sizes > 1
        return np.where(uses & also, both(a, b), np.where(also, b, a))

    return GroupSpan(
        inner.sizes * outer.sizes,
        pick(inner.bandwidth_bytes_per_s, outer.bandwidth_bytes_per_s, np.minimum),
        pick(inner.latency_s, outer.latency_s, np.maximum),
        inner.copy_s_per_byte,
        inner.one_ring,
    )


def _whole(name: str, value: ArrayLike) -> IntArray:
    """Return whole numbers of at least 1 as int64, or refuse them."""
    given = np.asarray(value)
    if given.dtype.kind not in "iuf" or not np.all(
        (given >= 1) & (given <= 2**31) & (given == np.trunc(given))
    ):
        raise MeshwrightError(f"{name}: {value!r} is not allowed; give whole numbers of at least 1")
    return given.astype(np.int64)


def _check_fit(cluster: Cluster, sizes: IntArray, strides: IntArray) -> None:
    largest = int(np.max(sizes * strides, initial=0))
    if largest > cluster.num_devices:
        raise MeshwrightError(
            f"size * stride: {largest} exceeds the {cluster.num_devices} devices of {cluster.name}; "
            "lower the degrees or add nodes"
        )


def _members_in_block(blocks: IntArray, sizes: IntArray, strides: IntArray) -> IntArray:
    """Return the members that every group surely has inside one block of each tier, shape ``(..., T)``."""
    fits = blocks % strides == 0
    members = np.where(fits, np.gcd(sizes, np.maximum(blocks // strides, 1)), 1)
    members[..., -1] = sizes[..., 0]  # the whole cluster holds every member
    return members


def _rate(tier: Tier, joined: FloatArray, spacing: FloatArray) -> FloatArray:
    """Return one device's share of a tier, shape ``(...)``."""
    wire = _WIRE.get(tier.kind, _switched)(tier, joined, spacing)
    crowd = 1 + tier.congestion_per_doubling * np.log2(np.maximum(joined / _UNCONGESTED, 1))
    return wire * (tier.efficiency / tier.oversubscription) / crowd


def _hops(tier: Tier, spacing: FloatArray) -> FloatArray:
    """Return link hops between neighbours of a group: several along a torus axis, one elsewhere."""
    return spacing if tier.kind in _AXES else np.ones_like(spacing)


def _switched(tier: Tier, joined: FloatArray, spacing: FloatArray) -> FloatArray:
    """Behind a switch every device has its full port, whoever it talks to."""
    return np.full(np.broadcast_shapes(joined.shape, spacing.shape), tier.bandwidth_bytes_per_s)


def _meshed(tier: Tier, joined: FloatArray, spacing: FloatArray) -> FloatArray:
    """Without a switch a device uses only its links to the other members, one pair link each."""
    pair = tier.pair_bandwidth_bytes_per_s or tier.bandwidth_bytes_per_s
    peers = np.maximum(joined - 1, 1)
    return np.minimum(tier.bandwidth_bytes_per_s, peers * pair)


def _ringed(tier: Tier, joined: FloatArray, spacing: FloatArray) -> FloatArray:
    """Part of an axis cannot wrap and has one direction; interleaved groups share the links."""
    wraps = joined * spacing == tier.fan_out
    share = np.where(wraps, 1.0, 0.5) / spacing
    return tier.bandwidth_bytes_per_s * np.where(joined > 1, share, 1.0)


def _lined(tier: Tier, joined: FloatArray, spacing: FloatArray) -> FloatArray:
    """On an axis that never wraps the bandwidth is one direction already."""
    return tier.bandwidth_bytes_per_s * np.where(joined > 1, 1.0 / spacing, 1.0)


_WIRE: Final[dict[str, Callable[[Tier, FloatArray, FloatArray], FloatArray]]] = {
    "mesh": _meshed,
    "ring": _ringed,
    "torus": _ringed,
    "line": _lined,
}
_UNCONGESTED: Final = 4
"""Blocks up to which a group gets the full rate."""
_AXES: Final = frozenset({"ring", "torus", "line"})
