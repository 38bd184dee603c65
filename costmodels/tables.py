"""Prices per layer kind and recompute mode: what a plan's stages are sums of.

Every operator is priced once for each distinct (tp, micro-batch, sequence parallelism) and gathered; what
depends on the data-parallel group is added for each strategy. A stage's time and memory are then sums of
counts times these tables, the same for the event simulation, for CP-SAT and for the referees.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray, Num, stacked
from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.layer import CAUSES, LayerCost, price_layer
from meshwright.costmodels.memory import StateBytes
from meshwright.costmodels.offload import activation_bytes_per_s
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.spans import Spans, in_use, layer_groups, state_spans, wide
from meshwright.costmodels.stacking import taken
from meshwright.costmodels.states import LayerStates, layer_states
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.transfers import transfers
from meshwright.costmodels.vocabulary import Embedding
from meshwright.costmodels.waiting import waiting_bytes, working_bytes
from meshwright.costmodels.weight_casts import weight_cast_s
from meshwright.costmodels.work import Shape

FORWARD = ("forward", *CAUSES, "parameter_gather", "host")
BACKWARD = (
    "backward",
    "recompute",
    *CAUSES,
    "parameter_gather",
    "gradient_reduction",
    "activation_offload",
    "host",
)


@dataclass(frozen=True)
class Tables:
    """Prices of one layer of each kind; B strategies, K kinds, M modes.

    Attributes
    ----------
    forward_parts
        Seconds of a forward pass by cause, (B, K, causes in :data:`FORWARD`).
    backward_parts
        Seconds of a backward pass by cause, (B, K, M, causes in :data:`BACKWARD`).
    weight_s
        The part of a backward pass that only weight gradients wait for, (B, K).
    reduce_s, gather_s
        Once a step: gradient reduction, and gathering of updated parameters, (B, K).
    optimizer_s
        Once a step, (B, K).
    hidden_comm_s
        Communication of a layer that overlap hides in one forward and backward pass, (B, K, C).
    hidden_gather_s, hidden_reduce_s
        ZeRO's traffic that overlap hides in one forward and backward pass, (B, K).
    parameters
        Trained ones on one rank, (B, K).
    states
        Bytes by item of one layer, fields (B, K).
    host_bytes
        States that live in host memory, (B, K).
    saved_bytes, offloaded_bytes
        (B, K, M).
    working_bytes
        All that lives only while a layer runs, gathered weights and lost room included, (B, K, M).
    waiting_bytes
        Of collectives' tensors (:mod:`~meshwright.costmodels.waiting`), (B,).
    gathered_bytes
        These weights alone, (B, K).
    transfer_s
        From one stage to the next, beside the passes of both, (B,).
    pass_s
        Lost in every pass of a chunk to the transfer beside it, or waited for at its end, (B,).
    flops
        Executed by one micro-batch on one rank, forward and backward with recompute, (B, K, M).
    """

    forward_parts: FloatArray
    backward_parts: FloatArray
    weight_s: FloatArray
    reduce_s: FloatArray
    gather_s: FloatArray
    optimizer_s: FloatArray
    hidden_comm_s: FloatArray
    hidden_gather_s: FloatArray
    hidden_reduce_s: FloatArray
    parameters: FloatArray
    states: StateBytes
    host_bytes: FloatArray
    saved_bytes: FloatArray
    working_bytes: FloatArray
    waiting_bytes: FloatArray
    offloaded_bytes: FloatArray
    gathered_bytes: FloatArray
    transfer_s: FloatArray
    pass_s: FloatArray
    flops: FloatArray

    def take(self, rows: IntArray) -> "Tables":
        """Return the tables of some strategies."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "states"}
        return Tables(**arrays, states=self.states.map(lambda v: v[rows]))

    @cached_property
    def forward_s(self) -> FloatArray:
        """Seconds of a forward pass, (B, K)."""
        return np.asarray(self.forward_parts.sum(axis=-1))

    @cached_property
    def backward_s(self) -> FloatArray:
        """Seconds of a backward pass, weight gradients included, (B, K, M)."""
        return np.asarray(self.backward_parts.sum(axis=-1))

    @cached_property
    def state_bytes(self) -> FloatArray:
        """Bytes of all states of one layer on the device, (B, K)."""
        return self.states.total


def shape_of(setting: Setting, s: Strategies, kind: LayerKind) -> Shape:
    """Return what one rank runs of a kind in one pass of one micro-batch, fields (B,)."""
    own, recipe = setting.lengths(kind.stream), setting.precision
    context = 0.0
    if setting.context is not None:
        other = setting.lengths(setting.context)
        context = other.sequences * other.sequence_length / own.sequences
    sent, turned = recipe.gathered_cast_bytes(setting.rates.architecture)
    return Shape(
        sequences=s.micro_batch_size * own.sequences,
        sequence_length=own.sequence_length,
        tp=s.tp,
        sequence_parallel=s.sequence_parallel,
        element_bytes=recipe.element_bytes,
        vocab_multiple=setting.vocab_multiple,
        cp=s.cp,
        ulysses=s.ulysses,
        ring=s.ring,
        ep=s.ep,
        etp=s.etp,
        expert_load=setting.expert_load,
        context_length=context,
        quantised_bytes=recipe.product_bytes,
        cast_kernels=recipe.cast_kernels,
        cast_bytes=recipe.cast_bytes(recipe.cast_copies(setting.rates.architecture)),
        sent_bytes=sent,
        turned_bytes=turned,
        pipelined=s.pp > 1,
    )


def _distinct(setting: Setting, s: Strategies) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct set of decisions behind a layer's price, and the way back.

    How a group lies counts only where the group has several members, and whether there is a pipeline only
    where its cross entropy is another.
    """
    folded = s.ep * s.etp > 1
    columns = [s.tp, s.micro_batch_size, s.sequence_parallel, s.cp, s.ulysses, s.ring, s.ep, s.etp]
    columns += [np.where(s.cp > 1, s.context_stride, 0)]
    columns += [np.where(folded, s.inner, 0), np.where(folded, s.pp, 0)]
    columns += [np.where(s.pp > 1, 1, 0)] if setting.profile.pipeline_loss else []
    columns += [] if setting.member is None else [setting.member]
    _, first, back = np.unique(np.stack(columns, axis=-1), axis=0, return_index=True, return_inverse=True)
    return first, back.reshape(-1)


def _layer_costs(setting: Setting, s: Strategies) -> LayerCost:
    """Return layer costs with a kinds axis: (B, K, ...), each distinct set of decisions priced once."""
    first, back = _distinct(setting, s)
    few, setting = s.take(first), taken(setting, first)
    groups = in_use(layer_groups(setting.cluster, few))
    costs = [
        price_layer(kind, shape_of(setting, few, kind), setting.rates, groups, setting.profile)
        for kind in setting.kinds
    ]
    size = len(first)

    def gathered(name: str) -> FloatArray:
        """Return one figure of all kinds, priced once for each distinct shape."""
        each = np.empty((size, len(costs), *_tail(costs[0], name)))
        for k, cost in enumerate(costs):
            each[:, k] = getattr(cost, name)
        return each[back]

    return LayerCost(**{f.name: gathered(f.name) for f in fields(LayerCost)})


def _tail(cost: LayerCost, name: str) -> tuple[int, ...]:
    """Return the last axes of a field, behind those of the batch."""
    lead = cost.forward_s.ndim
    return tuple(getattr(cost, name).shape[lead:])


def _tied_parameters(kind: LayerKind, shape: Shape) -> Num:
    """Return the local parameters of a kind that are a copy of another layer's."""
    copies = (op.copied_parameters(shape) for op in _copies(kind))
    return sum(copies, start=np.zeros(np.shape(shape.tp)))


def _copies(kind: LayerKind) -> list[Gemm | Embedding]:
    """Return the operators of a kind whose weights belong to another layer: heads, decoders' embeddings."""
    return [op for op in kind.operators if isinstance(op, Gemm | Embedding) and op.tied]


def _synchronised(setting: Setting, tied: FloatArray) -> FloatArray:
    """Return the trained ones among copies, whose gradients both ends must add, (B, K)."""
    return np.asarray(tied * np.array([any(op.trained for op in _copies(k)) for k in setting.kinds]))


class _Passes(NamedTuple):
    """What every pass waits for beside its own work: fields (B, K), those of the backward pass (B, K, M)."""

    forward_gather: FloatArray
    forward_idle: FloatArray
    backward_gather: FloatArray
    backward_reduce: FloatArray
    backward_offload: FloatArray
    backward_idle: FloatArray
    hidden_gather: FloatArray
    hidden_reduce: FloatArray


def _every_pass(setting: Setting, s: Strategies, cost: LayerCost, states: LayerStates) -> _Passes:
    """Return the host's gaps, and what ZeRO's traffic of every pass adds beside compute and gaps.

    The backward pass overlaps with gathering and scattering together; what stays exposed is told apart by
    their shares. Offloaded activations leave beside the forward and return beside the backward pass, moved by
    copy engines that cost compute nothing; both waits are told in the backward pass. What ZeRO moves beyond a
    host meanwhile comes in and goes out over the device's same port, so that it leaves them no time.
    """
    profile = setting.profile
    forward_own = cost.forward_s + cost.comm_forward_s.sum(axis=-1)
    backward_own = (cost.backward_s + cost.comm_backward_s.sum(axis=-1))[..., None] + cost.recompute_s
    backward_own = backward_own + cost.comm_recompute_s.sum(axis=-1)
    runs = np.array([kind.backward for kind in setting.kinds])
    forward_host, backward_host = _host(setting, s, cost)
    forward_idle = _idle(forward_host, forward_own, profile.host_sync)
    backward_idle = _idle(backward_host, backward_own, profile.host_sync)
    share, lost = profile.overlap_parameters, profile.overlap_cost
    gather, scatter = states.backward_gather_s * runs, states.scatter_s
    first = np.array([kind.role == "embedding" for kind in setting.kinds])  # nothing runs before it
    window = share * (forward_own + forward_idle) * ~first
    forward_gather = exposed_time(states.forward_gather_s, window, lost)
    both = gather + scatter
    late = exposed_time(both[..., None], share * (backward_own + backward_idle), lost)
    reducing = np.divide(scatter, both, out=np.zeros_like(both), where=scatter > 0)
    hidden = (both[..., None] - late)[..., 0]
    moved = cost.offloaded_bytes / activation_bytes_per_s(setting.cluster)
    beyond = _beyond_host(setting, s)[:, None]
    out = np.maximum(forward_own - states.forward_gather_s * beyond, 0.0)[..., None]
    back = np.maximum(backward_own - (both * beyond)[..., None], 0.0)
    away = exposed_time(moved, out, 0.0) + exposed_time(moved, back, 0.0)
    return _Passes(
        forward_gather=forward_gather,
        forward_idle=forward_idle,
        backward_gather=late * (1 - reducing)[..., None],
        backward_reduce=late * reducing[..., None],
        backward_offload=away,
        backward_idle=backward_idle,
        hidden_gather=states.forward_gather_s - forward_gather + hidden * (1 - reducing),
        hidden_reduce=hidden * reducing,
    )


def _beyond_host(setting: Setting, s: Strategies) -> BoolArray:
    """Return whether the ranks that shard a state lie on several hosts that no scale-up link joins, (B,)."""
    cluster = setting.cluster
    reach = np.maximum(s.data_stride * s.dp_shard, s.context_stride * s.cp)
    return np.asarray((s.shards > 1) & (reach > max(cluster.devices_per_host, cluster.tiers[0].fan_out)))


def _idle(host_s: FloatArray, device_s: FloatArray, sync: Num) -> FloatArray:
    """Return what a device waits for its host: what the host takes longer, and a share of what is left."""
    return np.asarray(np.maximum(0.0, host_s - device_s) + sync * np.minimum(host_s, device_s))


def _host(setting: Setting, s: Strategies, cost: LayerCost) -> tuple[FloatArray, FloatArray]:
    """Return the host's time for a forward (B, K) and a backward pass with its recompute (B, K, M).

    The host runs ahead of the device, so what counts is the sum over a layer's pass, not each kernel. The
    ranks of a tensor group wait for the slowest of their hosts, whose time grows with the logarithm of their
    number (the mean largest of ``n`` normal values lies some ``0.5 log2(n)`` deviations above the mean).
    """
    profile = setting.profile
    slowest = (1 + profile.host_spread * np.log2(s.tp))[:, None]
    blocks = np.array([kind.role == "block" for kind in setting.kinds])
    runs = blocks * np.array([kind.backward for kind in setting.kinds])
    split = profile.tensor_host_s * (s.tp > 1)[:, None]
    layer, hook = (
        profile.host_share * each for each in (profile.layer_host_s + split, profile.gradient_hook_s)
    )
    ahead = layer * blocks + profile.forward_host_s * cost.forward_launches
    back = (
        layer * runs + profile.backward_host_s * cost.backward_launches + hook * runs * cost.trained_weights
    )
    again = cost.recompute_launches
    whole = again / np.maximum(cost.forward_launches, 1.0)[..., None]
    repeated = profile.forward_host_s * again + layer[..., None] * blocks[:, None] * whole
    return slowest * ahead, slowest[..., None] * (back[..., None] + repeated)


def _slowed(setting: Setting, s: Strategies, cost: LayerCost) -> LayerCost:
    """Return layer costs with the share that stragglers add: ranks wait for each other in every pass."""
    slow = (1 + setting.profile.jitter * np.log2(s.devices))[:, None]
    return replace(
        cost,
        forward_s=slow * cost.forward_s,
        backward_s=slow * cost.backward_s,
        weight_s=slow * cost.weight_s,
        recompute_s=slow[..., None] * cost.recompute_s,
    )


def build_tables(setting: Setting, s: Strategies) -> Tables:
    """Return the tables of a batch of strategies; one call prices one or a million."""
    cost, where = _slowed(setting, s, _layer_costs(setting, s)), state_spans(setting.cluster, s)
    casts = weight_cast_s(setting, s, cost.low_parameters)
    trained = np.array([kind.backward for kind in setting.kinds])
    cost = replace(cost, forward_s=cost.forward_s + casts, backward_s=cost.backward_s + casts * trained)
    shapes = [shape_of(setting, s, kind) for kind in setting.kinds]
    pairs = zip(setting.kinds, shapes, strict=True)
    tied = np.stack([_tied_parameters(kind, shape) for kind, shape in pairs], axis=-1)
    states = layer_states(setting, s, cost, tied, shapes, where)
    passes = _every_pass(setting, s, cost, states)
    modes, waiting = cost.recompute_s.shape, waiting_bytes(setting, cost)
    handed = transfers(setting, s, shapes, where)
    forward_comm = [cost.comm_forward_s[..., c] for c in range(len(CAUSES))]
    backward_comm = cost.comm_backward_s[..., None, :] + cost.comm_recompute_s
    return Tables(
        forward_parts=_parts(cost.forward_s, *forward_comm, passes.forward_gather, passes.forward_idle),
        backward_parts=_parts(
            np.broadcast_to(cost.backward_s[..., None], modes),
            cost.recompute_s,
            *[backward_comm[..., c] for c in range(len(CAUSES))],
            passes.backward_gather,
            passes.backward_reduce,
            passes.backward_offload,
            passes.backward_idle,
        ),
        weight_s=cost.weight_s,
        reduce_s=states.reduce_s + _tied_reduce(setting, s, tied, where),
        gather_s=states.update_gather_s,
        optimizer_s=states.optimizer_s,
        hidden_comm_s=cost.comm_hidden_s,
        hidden_gather_s=passes.hidden_gather,
        hidden_reduce_s=passes.hidden_reduce,
        parameters=states.parameters,
        states=states.device,
        host_bytes=states.host_bytes,
        saved_bytes=cost.saved_bytes,
        working_bytes=working_bytes(setting, cost, states, waiting),
        waiting_bytes=waiting,
        offloaded_bytes=cost.offloaded_bytes,
        gathered_bytes=states.gathered_bytes,
        transfer_s=handed.path_s,
        pass_s=handed.pass_s,
        flops=(cost.forward_flops + cost.backward_flops)[..., None] + cost.recompute_flops,
    )


def _parts(*parts: FloatArray) -> FloatArray:
    return stacked(parts)


def _tied_reduce(setting: Setting, s: Strategies, tied: FloatArray, where: Spans) -> FloatArray:
    """Return the exchange of tied weights' gradients between stages, on all kinds that hold one, (B, K).

    Two ranks send to each other at once (full duplex) and add: one send-receive of the whole gradient. A
    copy pays its own exchange, the layer that owns the weight (an end without a copy) those of all copies.
    """
    whole = setting.gradient_bytes * _synchronised(setting, tied)
    seconds = collective_time("send_recv", whole, wide(where.pipeline)) * (s.pp > 1)[:, None]
    ends = np.array([kind.role != "block" for kind in setting.kinds])
    copies = np.array([bool(_copies(kind)) for kind in setting.kinds])
    return np.where(ends, np.where(copies, seconds, seconds.sum(axis=-1, keepdims=True)), 0.0)
