"""Where the groups of a mesh lie on the topology.

The ranks of a stage are ``tp x cp x dp``, in the order of the placement, ``inner`` of them inside the pipeline
dimension. The expert mesh folds the same ranks, counted in that order, as ``etp x ep x edp``: a group of it
is laid in one stride inside the pipeline dimension and in another outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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


def folded_span(cluster: Cluster, size: IntArray, stride: IntArray, s: Strategies) -> GroupSpan:
    """Return the span of groups of ``size`` with ``stride``, counted over a stage's ranks in their order.

    Parameters
    ----------
    size, stride
        (B,); where a group crosses ``inner`` ranks, one of ``inner`` and ``size * stride`` must divide the
        other.
    """
    inside = np.clip(s.inner // np.maximum(stride, 1), 1, size)
    inside = np.gcd(inside, size)
    outside = size // inside
    step = np.where(stride >= s.inner, stride * s.pp, s.inner * s.pp)
    step = np.where(outside > 1, step, 1)
    near = group_span(cluster, inside, np.where(inside > 1, stride, 1))
    return joined(near, group_span(cluster, outside, step))


def layer_groups(cluster: Cluster, s: Strategies) -> Mapping[Group, GroupSpan]:
    """Return the groups that a layer talks over, each of shape (B, tiers)."""
    one = np.ones_like(s.tp)
    rest = s.cp // s.ulysses
    return {
        "tensor": group_span(cluster, s.tp, one),
        "ulysses": group_span(cluster, s.ulysses, np.where(s.ulysses > 1, s.context_stride, 1)),
        "ring": group_span(cluster, rest, np.where(rest > 1, s.context_stride * s.ulysses, 1)),
        "expert_tensor": folded_span(cluster, s.etp, one, s),
        "expert": folded_span(cluster, s.ep, s.etp, s),
    }


def state_spans(cluster: Cluster, s: Strategies) -> Spans:
    """Return the groups of states and of the pipeline."""
    copies, shard = s.dp_replicate, s.dp_shard
    context = group_span(cluster, s.cp, np.where(s.cp > 1, s.context_stride, 1))
    data = group_span(cluster, shard, np.where(shard > 1, s.data_stride, 1))
    experts = s.expert_shards
    return Spans(
        shards=joined(context, data),
        replicas=group_span(cluster, copies, np.where(copies > 1, s.data_stride * shard, 1)),
        expert_shards=folded_span(cluster, experts, np.where(experts > 1, s.etp * s.ep, 1), s),
        expert_replicas=folded_span(cluster, copies, np.where(copies > 1, s.etp * s.ep * experts, 1), s),
        secondary=group_span(cluster, s.hpz, np.where(s.hpz > 1, s.data_stride, 1)),
        pipeline=group_span(cluster, s.pp, np.where(s.pp > 1, s.pipeline_stride, 1)),
    )


def wide(span: GroupSpan) -> GroupSpan:
    """Return the span with a kinds axis: (B, 1, tiers)."""
    return GroupSpan(
        sizes=span.sizes[:, None],
        bandwidth_bytes_per_s=span.bandwidth_bytes_per_s[:, None],
        latency_s=span.latency_s[:, None],
    )
