"""Time of collectives over a tree of tiers: latency and bandwidth, the fastest algorithm counts.

Bytes ``S`` are those of the whole tensor for all-reduce, all-gather, reduce-scatter and broadcast, and of
one rank's buffer for all-to-all and send-receive. A :class:`~meshwright.hardware.span.GroupSpan` gives for
each tier the sub-blocks joined (g), each device's bandwidth (B) and the hop latency (a); ``r`` is the
product of the g below a tier: the group's members that sit in one sub-block and drive its links together.

- ring: all-gather and reduce-scatter move ``S (n-1)/n`` over the slowest tier, ``min(r B)``, in n-1 hops of
  which ``(g_k - 1) x (blocks above)`` cross tier k. All-reduce is both (NCCL ``tuning.cc``). The first hop
  starts the kernels, each one after it costs :data:`RING_HOP` of it.
- hierarchical: one ring a tier, innermost first, each on ``S / r`` bytes; latencies add along one block.
- tree: ``log2 g`` hops a tier, bandwidth of the ring times 0.92 (NCCL ``tuning.cc``, tree factor). It is for
  what all ranks sum or all ranks get: NCCL gathers and scatters parts over rings alone (``PAT``, since 2.23,
  where a node holds one member: left out), so that a thousand ranks wait for a thousand hops.
- libraries for GPUs lay one ring over the whole group; a hierarchical pass is for those that lay one a tier.
- own part: gathers, scatters and all-to-alls also copy ``S / n`` from a rank's input to its output, by the
  cores that send (:data:`~meshwright.hardware.span.COPY_SHARE`); an all-reduce leaves it where it is.

- dispatch: every device sends each of its tokens (``S`` bytes in all, once each) to ``copies`` experts spread
  evenly over the group. The plain all-to-all sends every copy by itself. ``deduplicated`` (DeepEP,
  arXiv 2412.19437, section 3.2.2) sends a token once into each sub-block that it visits, at most
  ``node_limit`` on the outermost tier crossed, and copies it on from there; ``d`` of ``N`` sub-blocks are
  visited by ``c`` copies in the mean, ``N (1 - (1 - 1/N)^c)``. The slowest tier counts.

- ramp: a pass whose bytes alone would take ``x`` seconds takes ``x (1 + (tau / x)^p)`` and its latency, as
  chunks fill and drain the pipeline of hops and protocols switch. One ``tau`` and ``p`` fit the nccl-tests
  curves of eight A100, H100 and B200 from 2 to 500 MB within some 15 % (tau alone: 22, 15 and 20 us). The
  levels of a tree over hosts fill one after the other: all-reduces of 1 MiB to 16 GiB over 4 to 512 nodes of
  H100 (arXiv 2411.13055) come out 2 % short in the mean and 12 % off, 31 % short for 1 MiB over 4 nodes and
  34 % long for 16 GiB over 512, which crowd the fabric less than rings do.

Left out: in-network reduction (NVLS, SHARP), congestion between groups beyond each device's own share.
"""

from collections.abc import Callable

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num
from meshwright.costmodels.work import Collective
from meshwright.hardware.span import GroupSpan

TREE_FACTOR = 0.92
RING_HOP = 0.5
"""What a hop after the first costs of a tier's latency, which holds the start of a kernel: NCCL ``tuning.cc``
has 1.9 us over NVLink, 4 to 8.5 us between nodes in rings of LL128. Gathers of half a KiB take 5.6, 7.4 and
10.6 us over 2, 4 and 8 H100, 9.4, 11 and 15 over A100, 8.9, 11.4 and 17.5 over B200 (aiconfigurator)."""
RAMP_S = 18e-6
"""Seconds of transmission at which a pass reaches half of its bandwidth."""
RAMP_POWER = 0.65
RAMP_LIMIT = 8.0
"""Low-latency protocols of small messages bound the ramp: the latency of a few bytes is in the hops."""
FILL_LIMIT_BYTES = 1.4e6
"""Of one level of a tree, which hands data on slot by slot: 512 KiB in each channel (NCCL's buffers of 4 MiB
have 8 steps), some 2 to 4 channels for a port. All-reduces over many nodes of H100 (see above) spend some
36 us on a level, where ports of 50 GB/s sustain 37 to 44."""


def ramped(transmission_s: Num) -> FloatArray:
    """Return the seconds of a pass whose bytes alone take ``transmission_s`` at full bandwidth."""
    x = np.asarray(transmission_s, dtype=np.float64)
    return np.asarray(x + np.minimum(RAMP_S**RAMP_POWER * x ** (1 - RAMP_POWER), RAMP_LIMIT * x))


def _members_below(span: GroupSpan) -> FloatArray:
    """Return r: members inside one sub-block of each tier, shape (..., T)."""
    return span.members_below


def _blocks_above(span: GroupSpan) -> FloatArray:
    """Return how many blocks of each tier the group joins, shape (..., T)."""
    sizes = np.asarray(span.sizes, dtype=np.float64)
    return np.asarray(np.prod(sizes, axis=-1, keepdims=True) / np.cumprod(sizes, axis=-1))


def group_size(span: GroupSpan) -> FloatArray:
    """Return the ranks of the group, shape (...)."""
    return span.size


def ring_pass(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return seconds for one pass round a flat ring (an all-gather or a reduce-scatter)."""
    sizes, n = span.sizes, group_size(span)
    crossed = sizes > 1
    rate = np.where(crossed, _members_below(span) * span.bandwidth_bytes_per_s, np.inf).min(axis=-1)
    hops = ((sizes - 1) * _blocks_above(span) * span.latency_s).sum(axis=-1)
    start = np.where(crossed, span.latency_s, 0.0).max(axis=-1)
    return np.asarray(start + RING_HOP * (hops - start) + ramped(tensor_bytes * (n - 1) / n / rate))


def hierarchical_pass(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return seconds for one ring a tier, each on the share that the tiers below left."""
    sizes = span.sizes
    share = np.asarray(tensor_bytes)[..., None] / _members_below(span)
    moved = share * (sizes - 1) / sizes / span.bandwidth_bytes_per_s
    hops = np.where(sizes > 1, 1 + RING_HOP * (sizes - 2), 0.0)
    return np.asarray((hops * span.latency_s + ramped(moved)).sum(axis=-1))


def tree_pass(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return seconds for one pass up (or down) a tree."""
    n, levels, crossed = group_size(span), np.ceil(np.log2(span.sizes)), span.sizes > 1
    rate = np.where(crossed, _members_below(span) * span.bandwidth_bytes_per_s, np.inf).min(axis=-1)
    moved = np.asarray(tensor_bytes * (n - 1) / n / (rate * TREE_FACTOR))
    further = np.maximum(levels[..., 1:].sum(axis=-1) - 1, 0.0)  # the ramp holds one
    port = np.where(crossed, span.bandwidth_bytes_per_s, np.inf).min(axis=-1)
    filling = further * np.minimum(ramped(moved) - moved, FILL_LIMIT_BYTES / port)
    return np.asarray((levels * span.latency_s).sum(axis=-1) + ramped(moved) + filling)


def _scatter(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return one pass that leaves each rank its own part, or brings all parts to all."""
    ring = ring_pass(tensor_bytes, span)
    return ring if span.one_ring else np.minimum(ring, hierarchical_pass(tensor_bytes, span))


def _all_reduce(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return two passes of the fastest algorithm that there is."""
    return 2 * np.minimum(_scatter(tensor_bytes, span), tree_pass(tensor_bytes, span))


def _all_to_all(buffer_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return the slowest tier's share: what leaves a sub-block but stays in the block, at B a device."""
    sizes, n = np.asarray(span.sizes, dtype=np.float64), group_size(span)
    outside = (np.cumprod(sizes, axis=-1) - _members_below(span)) / n[..., None]
    moved = np.asarray(buffer_bytes)[..., None] * outside / span.bandwidth_bytes_per_s
    hops = (np.ceil(np.log2(sizes)) * span.latency_s).sum(axis=-1)
    return np.asarray(hops + ramped(moved.max(axis=-1)))


def _send_receive(buffer_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return one hop over the slowest tier that the group spans."""
    crossed = span.sizes > 1
    rate = np.where(crossed, span.bandwidth_bytes_per_s, np.inf).min(axis=-1)
    hop = np.where(crossed, span.latency_s, 0.0).max(axis=-1)
    return np.asarray(hop + buffer_bytes / rate)


def _broadcast(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return a pipelined tree: the latency of its depth and the tensor once over the slowest tier."""
    hops = (np.ceil(np.log2(span.sizes)) * span.latency_s).sum(axis=-1)
    rate = np.where(span.sizes > 1, _members_below(span) * span.bandwidth_bytes_per_s, np.inf).min(axis=-1)
    return np.asarray(hops + tensor_bytes / rate)


def dispatch_time(
    token_bytes: Num,
    copies: Num,
    span: GroupSpan,
    *,
    deduplicated: bool,
    node_limit: int | None = None,
    expert_groups: int | None = None,
) -> FloatArray:
    """Return seconds to bring each token to its experts, or back; zero for a group of one or no bytes.

    Parameters
    ----------
    token_bytes
        Of one rank's tokens, each counted once, shape (...).
    copies
        Experts that a token visits.
    span
        Of the expert group, fields of shape (..., tiers).
    deduplicated
        Whether a token crosses into a sub-block once, however many of its experts live there.
    node_limit, expert_groups
        Groups of experts that the router lets a token visit, and how many there are; None: any. Groups are
        spread evenly over the ranks: one that spans several sub-blocks of a tier may use all of them. Without
        a number of groups each sub-block of the outermost tier crossed is one.
    """
    if not deduplicated:
        return collective_time("all_to_all", np.asarray(token_bytes) * copies, span)
    sizes = np.asarray(span.sizes, dtype=np.float64)
    blocks = group_size(span)[..., None] / _members_below(span)
    visited = blocks * (1 - (1 - 1 / blocks) ** np.asarray(copies, dtype=np.float64)[..., None])
    if node_limit is not None:
        limit: FloatArray | float = node_limit * np.maximum(blocks / (expert_groups or np.inf), 1)
        bound = (_blocks_above(span) == 1) & (sizes > 1) | (expert_groups is not None)
        visited = np.where(bound, np.minimum(visited, limit), visited)
    moved = np.asarray(token_bytes)[..., None] * visited * (sizes - 1) / sizes / span.bandwidth_bytes_per_s
    hops = (np.ceil(np.log2(sizes)) * span.latency_s).sum(axis=-1)
    busy = (group_size(span) > 1) & (np.asarray(token_bytes) > 0)
    return np.where(busy, hops + ramped(moved.max(axis=-1)), 0.0)


def _own_part(tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return seconds in which a rank moves its own part of a tensor from input to output."""
    return np.asarray(np.asarray(tensor_bytes) / group_size(span) * span.copy_s_per_byte)


def _moved(formula: Callable[[Num, GroupSpan], FloatArray]) -> Callable[[Num, GroupSpan], FloatArray]:
    """Return a formula of what crosses, with the own part's copy."""
    return lambda tensor_bytes, span: formula(tensor_bytes, span) + _own_part(tensor_bytes, span)


_FORMULAS: dict[Collective, Callable[[Num, GroupSpan], FloatArray]] = {
    "all_gather": _moved(_scatter),
    "reduce_scatter": _moved(_scatter),
    "all_reduce": _all_reduce,
    "all_to_all": _moved(_all_to_all),
    "broadcast": _broadcast,
    "send_recv": _send_receive,
    "dispatch": _moved(_all_to_all),
}
"""A dispatch here is that of one copy; :func:`dispatch_time` knows several."""


def collective_time(collective: Collective, tensor_bytes: Num, span: GroupSpan) -> FloatArray:
    """Return seconds for a collective; zero for a group of one or for no bytes.

    Parameters
    ----------
    collective
        Which one.
    tensor_bytes
        See the module; broadcasts to (...).
    span
        Where the group lies; fields of shape (..., tiers).
    """
    busy = (group_size(span) > 1) & (np.asarray(tensor_bytes) > 0)
    if not busy.any():
        return np.zeros(busy.shape)
    return np.where(busy, _FORMULAS[collective](tensor_bytes, span), 0.0)
