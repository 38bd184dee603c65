"""Where the groups of a mesh lie on the topology.

The ranks of a stage are ``tp x cp x dp``, in the placement's order, ``inner`` of them inside the pipeline
dimension. The expert mesh folds the same ranks, counted in that order, as ``etp x ep x edp``: a group of it
is laid in one stride inside the pipeline dimension and in another outside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.strategy import Strategies
from meshwright.costmodels.work import Group
from meshwright.hardware.span import GroupSpan, group_span, joined
from meshwright.hardware.spec import Cluster


@dataclass(frozen=True)
class Spans:
    """Groups that states and activations travel over; fields of shape (B, tiers).

    Attributes
    ----------
    shards, replicas
        Ranks that share a dense state, and ranks that hold copies of it.
    expert_shards, expert_replicas
        The same for an expert's state.
    secondary
        Ranks that keep a secondary copy of the weights together (a group of one: none).
    pipeline
        Ranks of a pipeline.
    """

    shards: GroupSpan
    replicas: GroupSpan
    expert_shards: GroupSpan
    expert_replicas: GroupSpan
    secondary: GroupSpan
    pipeline: GroupSpan


_Laid = tuple[IntArray, IntArray]
"""Size and stride of groups, each (B,)."""


def _spans(cluster: Cluster, laid: Sequence[_Laid], in_place: bool = False) -> list[GroupSpan]:
    """Return the spans of several dimensions' groups, placed in one call; a group of one has no stride.

    Collectives ``in_place`` leave a rank's own part where it is.
    """
    sizes = np.stack([size for size, _ in laid])
    strides = np.where(sizes > 1, np.stack([stride for _, stride in laid]), 1)
    all_ = group_span(cluster, sizes, strides)
    columns = zip(all_.sizes, all_.bandwidth_bytes_per_s, all_.latency_s, strict=True)
    copy = 0.0 if in_place else all_.copy_s_per_byte
    return [GroupSpan(*column, copy, all_.one_ring) for column in columns]


def _folded(size: IntArray, stride: IntArray, s: Strategies) -> tuple[_Laid, _Laid]:
    """Return the parts of groups of ``size`` with ``stride``, counted over a stage's ranks in their order.

    Parameters
    ----------
    size, stride
        (B,); where a group crosses ``inner`` ranks, one of ``inner`` and ``size * stride`` must divide the
        other.
    """
    inside = np.clip(s.inner // np.maximum(stride, 1), 1, size)
    inside = np.gcd(inside, size)
    step = np.where(stride >= s.inner, stride * s.pp, s.inner * s.pp)
    return (inside, stride), (size // inside, step)


def layer_groups(cluster: Cluster, s: Strategies) -> Mapping[Group, GroupSpan]:
    """Return the groups that a layer talks over, each of shape (B, tiers)."""
    one = np.ones_like(s.tp)
    tensor, ulysses, ring, *parts = _spans(
        cluster,
        [
            (s.tp, one),
            (s.ulysses, s.context_stride),
            (s.cp // s.ulysses, s.context_stride * s.ulysses),
            *_folded(s.etp, one, s),
            *_folded(s.ep, s.etp, s),
        ],
    )
    return {
        "tensor": tensor,
        "ulysses": ulysses,
        "ring": ring,
        "expert_tensor": joined(*parts[:2]),
        "expert": joined(*parts[2:]),
    }


def in_use(groups: Mapping[Group, GroupSpan]) -> Mapping[Group, GroupSpan]:
    """Return the groups that have several members for any of the strategies."""
    return {name: span for name, span in groups.items() if (span.sizes > 1).any()}


def state_spans(cluster: Cluster, s: Strategies) -> Spans:
    """Return the groups of states and of the pipeline.

    A rank's share of a state is a view of the buffer that is scattered or gathered (Megatron-LM's distributed
    optimizer, FSDP2's gather, DeepSpeed's flat partitions). Left out: FSDP2's scatter, which is not in place.
    """
    copies, shard, experts = s.dp_replicate, s.dp_shard, s.expert_shards
    # Copies that lie inside the context ranks do not fold; only models without experts may have them.
    own = np.where((s.cp == 1) | (s.data_stride >= s.cp * s.tp), copies, 1)
    context, data, replicas, secondary, pipeline, *parts = _spans(
        cluster,
        [
            (s.cp, s.context_stride),
            (shard, s.data_stride),
            (copies, s.data_stride * shard),
            (s.hpz, s.data_stride),
            (s.pp, s.pipeline_stride),
            *_folded(experts, np.where(experts > 1, s.etp * s.ep, 1), s),
            *_folded(own, np.where(own > 1, s.etp * s.ep * experts, 1), s),
        ],
        in_place=True,
    )
    return Spans(
        shards=joined(context, data),
        replicas=replicas,
        expert_shards=joined(*parts[:2]),
        expert_replicas=joined(*parts[2:]),
        secondary=secondary,
        pipeline=pipeline,
    )


def wide(span: GroupSpan) -> GroupSpan:
    """Return the span with a kinds axis: (B, 1, tiers)."""
    return replace(
        span,
        sizes=span.sizes[:, None],
        bandwidth_bytes_per_s=span.bandwidth_bytes_per_s[:, None],
        latency_s=span.latency_s[:, None],
    )
