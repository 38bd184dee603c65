"""States of one layer under ZeRO: where their bytes lie, and what moves them between passes and steps.

Dense states shard over ``dp_shard x cp``, expert states over the ranks that hold the same experts; copies
(``dp_replicate``) add an all-reduce of each shard (hybrid sharding). A secondary copy (ZeRO++ ``hpz``,
arXiv 2306.10209) lets the backward pass gather from few neighbours. Offloaded weights come up over the host
link before they are gathered. Where optimizer states are away, shards of gradients (ZeRO 2 and 3) go down as
each layer's backward pass ends, and are summed off the device (ZeRO-Offload, arXiv 2101.06840, section 4.1;
``torch.distributed.fsdp.CPUOffloadPolicy``). Left out: what the host takes to sum them; beside drives they
are counted with the states there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.layer import PLACES, LayerCost
from meshwright.costmodels.memory import StateBytes, optimizer_traffic, state_bytes
from meshwright.costmodels.offload import home_bytes_per_s, host_link_bytes_per_s, host_update_s
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.product import Product
from meshwright.costmodels.spans import Spans, wide
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.work import Collective, Shape


@dataclass(frozen=True)
class LayerStates:
    """States of one layer of each kind and their traffic; every field has shape (B, K).

    Attributes
    ----------
    parameters
        Trained ones on one rank.
    device, host_bytes
        Bytes on the device by item, and off it: in host memory, or on its drives.
    gathered_bytes
        Weights gathered while a layer runs: its own, and those fetched ahead of it.
    placeholder_bytes
        Gradients in name only, one for each weight of the largest block (of experts: left out, as all of one
        shape share one); the same for every kind.
    unreduced_bytes, pending_bytes
        A layer's gradients before they are scattered: as its backward pass leaves them, and the copies in
        which the layer behind it still sends its own.
    withheld_bytes
        The head's gradient beside a block, where a unit of both ends sends it with the embedding's.
    forward_gather_s, backward_gather_s, scatter_s
        In every pass of a micro-batch; the last with the way of shards off the device.
    reduce_s, update_gather_s, optimizer_s
        Once a step.
    """

    parameters: FloatArray
    device: StateBytes
    host_bytes: FloatArray
    gathered_bytes: FloatArray
    placeholder_bytes: FloatArray
    unreduced_bytes: FloatArray
    pending_bytes: FloatArray
    withheld_bytes: FloatArray
    forward_gather_s: FloatArray
    backward_gather_s: FloatArray
    scatter_s: FloatArray
    reduce_s: FloatArray
    update_gather_s: FloatArray
    optimizer_s: FloatArray


@dataclass(frozen=True)
class _Place:
    """One place's share of a layer, (B, K), the ranks that share it and those that hold copies, (B, 1)."""

    parameters: FloatArray
    weight_bytes: FloatArray
    frozen_bytes: FloatArray
    shards: IntArray
    index: int


def _places(setting: Setting, s: Strategies, cost: LayerCost, tied: FloatArray) -> list[_Place]:
    """Return dense and expert states; a tied copy has no weight of its own without a pipeline."""
    recipe = setting.precision
    element = float(recipe.element_bytes)
    narrow = element if recipe.weight_bytes is None else recipe.weight_bytes
    found = []
    for index, shards in zip(range(PLACES), (s.shards, s.expert_shards), strict=True):
        own, frozen = cost.parameters[..., index], cost.frozen_bytes[..., index]
        twins = tied * (s.pp == 1)[:, None] * (index == 0)
        trained = np.minimum(twins, own)
        own, frozen = own - trained, np.maximum(frozen - (twins - trained) * element, 0.0)
        weights = element * own + (narrow - element) * np.minimum(cost.low_parameters[..., index], own)
        found.append(_Place(own, weights, frozen, shards[:, None], index))
    return found


def _collective(
    setting: Setting, name: Collective, moved: Sequence[FloatArray], where: Spans, copies: bool
) -> FloatArray:
    """Return the seconds of a collective over both places' groups, one after the other, (B, K)."""
    spans = (where.replicas, where.expert_replicas) if copies else (where.shards, where.expert_shards)
    times = [collective_time(name, b, wide(span)) for b, span in zip(moved, spans, strict=True)]
    rate = setting.profile.data_rate * setting.profile.backend_rate(name)
    return np.asarray(sum(times) / rate)


def layer_states(
    setting: Setting,
    s: Strategies,
    cost: LayerCost,
    tied: FloatArray,
    shapes: Sequence[Shape],
    where: Spans,
) -> LayerStates:
    """Return the states of one layer of each kind.

    Parameters
    ----------
    cost
        Prices of one layer, fields (B, K, ...).
    tied
        Local parameters that copy another layer's, (B, K).
    shapes
        Of each kind, fields (B,).
    where
        Where the groups lie.
    """
    stage, gradient = s.zero_stage[:, None], setting.gradient_bytes
    places = _places(setting, s, cost, tied)
    whole = [p.weight_bytes + p.frozen_bytes for p in places]
    gather = _collective(setting, "all_gather", whole, where, copies=False)
    near = _near(setting, whole, where)
    lift = _lift(setting, s, whole, places) * (stage == 3)
    grads = [gradient * p.parameters for p in places]
    shard_grads = [g / p.shards for g, p in zip(grads, places, strict=True)]
    scatter = _collective(setting, "reduce_scatter", grads, where, copies=False)
    copies = _collective(setting, "all_reduce", shard_grads, where, copies=True)
    summed = _collective(setting, "all_reduce", grads, where, copies=False)
    flat = summed + _collective(setting, "all_reduce", grads, where, copies=True)
    whole_grads = (stage >= 1) & (stage <= setting.profile.reduce_whole_stage)
    scatter = np.where(whole_grads & (stage >= 2), summed, scatter)
    late, kept = _late(setting, s), _stays(setting, s)
    device, host = _bytes(setting, s, cost, places)
    updated = _collective(setting, "all_gather", [p.weight_bytes for p in places], where, copies=False)
    updated = updated + _owners_send(setting, s)
    return LayerStates(
        parameters=np.asarray(sum(p.parameters for p in places)),
        device=device,
        host_bytes=host,
        gathered_bytes=_gathered(setting, whole) * (stage == 3) * ~kept,
        placeholder_bytes=_placeholders(setting, places),
        unreduced_bytes=_unreduced(setting, places) * _left_whole(setting, stage) * ~late,
        pending_bytes=_pending(setting, s, grads, shard_grads) * (stage >= 2) * ~late,
        withheld_bytes=_withheld(setting, s, cost),
        forward_gather_s=gather * (stage == 3) + lift,
        backward_gather_s=np.where(s.hpz[:, None] > 1, near, gather) * (stage == 3) + lift,
        scatter_s=scatter * (stage >= 2) * ~late + _drop(setting, s, shard_grads),
        reduce_s=np.where(
            (stage == 0) | (whole_grads & (stage == 1)), flat, copies + scatter * ((stage == 1) | late)
        ),
        update_gather_s=updated * ((stage == 1) | (stage == 2)),
        optimizer_s=_update(setting, s, places, shapes, where),
    )


def _owners_send(setting: Setting, s: Strategies) -> FloatArray:
    """Return what sending parameters owner by owner adds to their bytes, (B, K): told at the embedding."""
    first = np.array([kind.role == "embedding" for kind in setting.kinds])
    return np.asarray(setting.profile.owner_send_s * first * (s.shards * (s.shards > 1))[:, None])


def _late(setting: Setting, s: Strategies) -> BoolArray:
    """Return where gradients are scattered with the last micro-batch only, (B, 1)."""
    added = (s.num_microbatches > 1)[:, None] & setting.profile.accumulates_whole
    return _stays(setting, s) | ((s.zero_stage >= 2)[:, None] & added)


def _stays(setting: Setting, s: Strategies) -> BoolArray:
    """Return where gathered weights stay until the last micro-batch's gradients are scattered, (B, 1)."""
    return np.asarray((s.zero_stage >= 2) & (s.pp > 1) & setting.profile.reduce_last)[:, None]


def _gathered(setting: Setting, whole: Sequence[FloatArray]) -> FloatArray:
    """Return the weights that are whole while a layer runs, (B, K); none is fetched ahead beside the loss.

    A root unit is whole beside every layer.
    """
    block = np.array([kind.role == "block" for kind in setting.kinds])
    each: FloatArray = np.asarray(sum(whole))
    if not setting.profile.root_unit:
        return np.asarray((1 + setting.profile.prefetch_units * block) * each)
    root = (each * ~block).sum(axis=-1, keepdims=True)
    return np.asarray((1 + setting.profile.prefetch_units) * each * block + root)


def _unreduced(setting: Setting, places: Sequence[_Place]) -> FloatArray:
    """Return a layer's gradients as its backward pass leaves them, in the type of its weights, (B, K)."""
    width = float(setting.precision.element_bytes)
    if setting.profile.working_copy:
        width = setting.gradient_bytes
    return np.asarray(sum(width * p.parameters for p in places))


def _left_whole(setting: Setting, stage: IntArray) -> BoolArray:
    """Return where a layer's gradients exist beside the accumulated ones, (B, K).

    Where these are shards, and at the head whose product makes a placeholder each time.
    """
    head = np.array([kind.role == "head" for kind in setting.kinds])
    return np.asarray((stage >= 2) | (head & setting.profile.placeholders))


def _placeholders(setting: Setting, places: Sequence[_Place]) -> FloatArray:
    block = np.array([kind.role == "block" for kind in setting.kinds]) & setting.profile.placeholders
    size = float(setting.precision.element_bytes) * places[0].parameters * block
    return np.broadcast_to(size.max(axis=-1, keepdims=True), size.shape)


def _pending(
    setting: Setting, s: Strategies, grads: Sequence[FloatArray], shards: Sequence[FloatArray]
) -> FloatArray:
    """Return the copies in which a block's gradients are sent, (B, K), and what arrives of them.

    That is the gradient's shard itself with one micro-batch, else it is added to the accumulated one. Where a
    working copy is kept they leave through buckets. The embedding sends its own when all else of the
    micro-batch is gone: left out.
    """
    block = np.array([kind.role != "embedding" for kind in setting.kinds])
    added = (s.num_microbatches > 1)[:, None]
    moved = sum(grads) + added * np.asarray(sum(shards))
    return np.asarray(moved * block * (not setting.profile.working_copy))


def _withheld(setting: Setting, s: Strategies, cost: LayerCost) -> FloatArray:
    """Return the gradient of the head that a root unit holds back while blocks run, (B, K).

    The unit's weights are views of one parameter (FSDP's ``FlatParameter``), whose gradient exists once each
    view has its own, the embedding's at last. Left out: that moment, as activations are gone.
    """
    head, block = (np.array([k.role == role for k in setting.kinds]) for role in ("head", "block"))
    whole = setting.precision.element_bytes * (cost.parameters[..., 0] * head).sum(axis=-1, keepdims=True)
    waits = setting.profile.root_unit & (s.zero_stage >= 2) & (s.pp == 1)
    return np.asarray(whole * block * waits[:, None])


def _lift(
    setting: Setting, s: Strategies, whole: Sequence[FloatArray], places: Sequence[_Place]
) -> FloatArray:
    """Return the seconds to bring a rank's shard of offloaded weights to the device, (B, K)."""
    shard = sum(b / p.shards for b, p in zip(whole, places, strict=True))
    return np.asarray(s.weights_away[:, None] * shard / home_bytes_per_s(setting.cluster, s.on_nvme)[:, None])


def _gradients_away(setting: Setting, s: Strategies) -> BoolArray:
    """Return where shards of gradients lie off the device, with the states, (B, 1)."""
    return np.asarray((s.states_away & (s.zero_stage >= 2))[:, None] & ~_late(setting, s))


def _drop(setting: Setting, s: Strategies, shards: Sequence[FloatArray]) -> FloatArray:
    """Return the seconds to bring a rank's shard of gradients off the device, (B, K)."""
    moved = np.asarray(sum(shards)) * _gradients_away(setting, s)
    return np.asarray(moved / host_link_bytes_per_s(setting.cluster))


def _bytes(
    setting: Setting, s: Strategies, cost: LayerCost, places: Sequence[_Place]
) -> tuple[StateBytes, FloatArray]:
    """Return the bytes of states on the device by item, and off it, (B, K)."""
    recipe, stage, late = setting.precision, s.zero_stage[:, None], _late(setting, s)
    buckets = 1 + (setting.profile.gradient_buckets & (stage == 0) & (s.shards > 1)[:, None])
    buckets = buckets + (setting.profile.flat_gradients & (stage == 1))
    block = np.array([kind.role == "block" for kind in setting.kinds])
    total = StateBytes(*(np.zeros_like(places[0].parameters) for _ in range(4)))
    extra = recipe.low_weight_bytes - recipe.element_bytes
    for p in places:
        each = state_bytes(
            stage,
            p.shards,
            recipe,
            setting.optimizer,
            setting.profile,
            setting.gradient_bytes * buckets,
            block,
            late,
            _stays(setting, s),
        )
        own = p.parameters
        trained = each.map(lambda v, own=own: v * own)  # type: ignore[misc]
        kept = np.where(stage == 3, 0.0 if not setting.profile.working_copy else 1 / p.shards, 1.0)
        low = np.minimum(cost.low_parameters[..., p.index], p.parameters)
        still = p.frozen_bytes / np.where(stage == 3, p.shards, 1)
        if not setting.profile.working_copy:  # gathered weights that stay have their shard beside them
            still = still + np.where((stage == 2) & (p.shards > 1), p.frozen_bytes / p.shards, 0.0)
        nothing = np.zeros_like(still)
        total = total + trained + StateBytes(extra * low * kept + still, nothing, nothing, nothing)
    away = _gradients_away(setting, s)
    return _placed(s, total, places[0].weight_bytes + places[0].frozen_bytes, away)


def _near(setting: Setting, whole: Sequence[FloatArray], where: Spans) -> FloatArray:
    """Return the seconds to gather dense weights from their secondary copy, and experts from their own group.

    Data neighbours may hold different experts, so experts have no secondary copy.
    """
    nothing = np.zeros_like(whole[0])
    dense = collective_time("all_gather", whole[0], wide(where.secondary)) / setting.profile.data_rate
    experts = _collective(setting, "all_gather", [nothing, whole[1]], where, copies=False)
    return np.asarray(dense + experts)


def _placed(
    s: Strategies, total: StateBytes, whole: FloatArray, gradients_away: BoolArray
) -> tuple[StateBytes, FloatArray]:
    """Return states split between device and home, with the secondary copy of dense weights on the device."""
    states_away, weights_away = s.states_away[:, None], s.weights_away[:, None]
    secondary = np.where(s.hpz[:, None] > 1, whole / s.hpz[:, None], 0.0)
    host = (total.master_weights + total.optimizer_moments) * states_away + total.weights * weights_away
    host = host + total.gradients * gradients_away
    device = StateBytes(
        total.weights * ~weights_away + secondary,
        total.gradients * ~gradients_away,
        total.master_weights * ~states_away,
        total.optimizer_moments * ~states_away,
    )
    return device, np.asarray(host)


def _update(
    setting: Setting, s: Strategies, places: Sequence[_Place], shapes: Sequence[Shape], where: Spans
) -> FloatArray:
    """Return the seconds of the optimizer step, (B, K): a pass over the states, on device or host."""
    rates, recipe, optimizer = setting.rates, setting.precision, setting.optimizer
    block = np.array([kind.role == "block" for kind in setting.kinds])
    traffic = optimizer_traffic(recipe, optimizer, setting.gradient_bytes, block)
    passes = setting.profile.gradient_passes + recipe.unscaling_passes
    traffic = traffic + passes * setting.gradient_bytes
    split = (s.zero_stage >= 1)[:, None]
    share = sum(p.parameters / np.where(split, p.shards, 1) for p in places)
    at_device = traffic * share / (rates.memory_bytes_per_s * setting.profile.optimizer_fraction)
    last = setting.gradient_bytes * ~_gradients_away(setting, s)
    moved = (last + recipe.element_bytes) * share
    at_host = host_update_s(setting.cluster, traffic * share, moved, s.on_nvme[:, None])
    seconds = np.where(s.states_away[:, None], at_host, at_device)
    return np.asarray(seconds + _orthogonalise(setting, split, places, shapes, where))


def _orthogonalise(
    setting: Setting, split: BoolArray, places: Sequence[_Place], shapes: Sequence[Shape], where: Spans
) -> FloatArray:
    """Return what an optimizer of whole matrices adds, (B, K): it gathers them and multiplies (Muon).

    ZeRO deals the flat buffer of all weights, so a rank's share holds few matrices and it computes theirs
    alone (arXiv 2502.16982, section 2.3). Left out: a matrix that several shares cut, which each computes.
    """
    optimizer, rates = setting.optimizer, setting.rates
    if not optimizer.newton_schulz_steps:
        return np.zeros_like(places[0].parameters)
    pairs = zip(setting.kinds, shapes, strict=True)
    own = np.stack([_matrix_flops(setting, kind, shape) for kind, shape in pairs], axis=-2)
    shares = np.stack([np.where(split, p.shards, 1)[:, 0] for p in places], axis=-1)
    flops = (own / shares[:, None]).sum(axis=-1)
    block = np.array([kind.role == "block" for kind in setting.kinds])
    moved = [optimizer.gather_bytes * p.parameters * block * split for p in places]
    gathered = _collective(setting, "all_gather", moved, where, copies=False)
    return np.asarray(flops / (rates.peak_flops_per_s * rates.gemm_fraction) + gathered)


def _matrix_flops(setting: Setting, kind: LayerKind, shape: Shape) -> FloatArray:
    """Return the FLOPs of orthogonalising the matrices of one layer on one rank by place, (B, P)."""
    total = np.zeros((*np.shape(shape.tp), PLACES))
    for op in kind.operators:
        if isinstance(op, Product) and op.trained and kind.role == "block":
            n, k = op.local_dims(shape)
            groups = op.groups(shape)
            total[..., int(op.expert)] += groups * setting.optimizer.matrix_flops(n, k)
    return total
