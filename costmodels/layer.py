"""The price of one layer of a kind: seconds, bytes and FLOPs on one rank for one micro-batch.

Sums the operators' work (roofline) and traffic (collectives), for each recompute mode
(:mod:`meshwright.costmodels.recompute`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num, stacked
from meshwright.costmodels.beside import windows
from meshwright.costmodels.collectives import collective_time, dispatch_time
from meshwright.costmodels.exchange import exchange_s, stalled_s
from meshwright.costmodels.moe import Exchange
from meshwright.costmodels.operators import LayerKind, Operator
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.precision import CAST_SHARES
from meshwright.costmodels.product import Gemm, Product
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.recompute import MODES, mode_bytes, repeated_shares
from meshwright.costmodels.roofline import DeviceRates, total_time
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.costmodels.work import Group, Shape, Traffic, Work
from meshwright.hardware.span import GroupSpan

CAUSES = ("tensor_parallel", "context_parallel", "expert_parallel")
"""Causes of a layer's own communication, in the order of the last axis of its arrays."""

_CAUSE: Mapping[Group, int] = {"tensor": 0, "ulysses": 1, "ring": 1, "expert": 2, "expert_tensor": 2}

PLACES = 2
"""Parameters are told by where they live: 0 dense (split by ``tp``), 1 experts (by ``ep`` and ``etp``)."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one micro-batch, one rank. Last axes where marked: M modes, C causes, P places.

    Attributes
    ----------
    forward_s, backward_s
        Arithmetic and memory time, (...).
    weight_s
        The part of ``backward_s`` that only weight gradients wait for, (...).
    recompute_s
        (..., M).
    comm_forward_s, comm_backward_s, comm_hidden_s
        Exposed communication by cause, and what overlap hides of it, (..., C).
    comm_recompute_s
        (..., M, C).
    saved_bytes
        Kept between forward and backward, the layer's input included, (..., M).
    working_bytes
        Alive only while the layer runs, (..., M).
    offloaded_bytes
        Sent to host memory and back, (..., M).
    recorded_bytes
        What the forward pass hands to collectives of a tensor group, (...).
    parameters
        Trained ones on one rank, (..., P).
    frozen_bytes
        Bytes of the frozen ones as they are stored, (..., P).
    low_parameters
        Those that low-precision products read, trained or frozen, (..., P).
    forward_flops, backward_flops
        Executed on one rank, (...).
    recompute_flops
        (..., M).
    forward_launches, backward_launches
        Kernels and collectives that the host issues (none that graphs replay), (...).
    recompute_launches
        (..., M).
    trained_weights
        Tensors with a gradient: one an operator, its bias and parts included, (...).
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    recompute_s: FloatArray
    comm_forward_s: FloatArray
    comm_backward_s: FloatArray
    comm_hidden_s: FloatArray
    comm_recompute_s: FloatArray
    saved_bytes: FloatArray
    working_bytes: FloatArray
    offloaded_bytes: FloatArray
    recorded_bytes: FloatArray
    parameters: FloatArray
    frozen_bytes: FloatArray
    low_parameters: FloatArray
    forward_flops: FloatArray
    backward_flops: FloatArray
    recompute_flops: FloatArray
    forward_launches: FloatArray
    backward_launches: FloatArray
    recompute_launches: FloatArray
    trained_weights: FloatArray


class _Pass(NamedTuple):
    """What each operator costs in one pass, by its name: seconds, FLOPs, launches, exposed seconds."""

    seconds: dict[str, Num]
    flops: dict[str, Num]
    launches: dict[str, Num]
    exposed: dict[str, FloatArray]
    hidden: FloatArray


def _total(ops: Sequence[Operator], each: Mapping[str, Num]) -> Num:
    """Return the sum over operators of what each (by its name) costs."""
    return sum((each[op.name] for op in ops), start=np.float64(0.0))


def _partly(shares: Mapping[str, Num], each: Mapping[str, Num]) -> Num:
    """Return the sum of shares of what operators (by their names) cost."""
    return sum((share * each[name] for name, share in shares.items()), start=np.float64(0.0))


def _partly_by_cause(shares: Mapping[str, Num], each: Mapping[str, FloatArray]) -> FloatArray:
    """Return the same of what is told by cause, (..., C)."""
    parts = (np.asarray(share)[..., None] * each[name] for name, share in shares.items())
    return np.asarray(sum(parts, start=np.float64(0.0)))


def traffic_time(traffic: Traffic, groups: Mapping[Group, GroupSpan], profile: Profile) -> Num:
    """Return the seconds of one collective; zero where its group is not in use."""
    if traffic.group not in groups:
        return np.float64(0.0)
    span = groups[traffic.group]
    if traffic.collective == "dispatch":
        seconds = dispatch_time(
            traffic.bytes,
            traffic.copies,
            span,
            deduplicated=traffic.deduplicated,
            node_limit=traffic.node_limit,
            expert_groups=traffic.expert_groups,
        )
    else:
        seconds = collective_time(traffic.collective, traffic.bytes, span)
    return seconds / (profile.layer_rate * profile.backend_rate(traffic.collective))


def _by_cause(cause: int, seconds: Num) -> FloatArray:
    """Return seconds as an array whose last axis tells causes."""
    return np.asarray(np.asarray(seconds)[..., None] * (np.arange(len(CAUSES)) == cause))


def _pass(
    kind: LayerKind,
    shape: Shape,
    rates: DeviceRates,
    groups: Mapping[Group, GroupSpan],
    profile: Profile,
    *,
    backward: bool,
) -> _Pass:
    """Return the cost of every operator in one direction: what recompute modes repeat is priced once."""
    seconds, flops, launches, exposed = {}, {}, {}, {}
    hidden = np.zeros(len(CAUSES))
    share = (_tensor_share(shape, profile), 0.0, profile.overlap_experts)
    beside = windows(kind, shape, rates, profile) if backward else {}
    for op in kind.operators:
        works = op.backward(shape) if backward else op.forward(shape)
        seconds[op.name] = total_time(works, rates, profile, backward)
        seconds[op.name] = seconds[op.name] + _cast_time(op, shape, rates, backward)
        if isinstance(op, Product) and op.stored_bytes is not None:
            expansion = total_time(tuple(w for w in works if w.kernel == "memory"), rates, profile)
            seconds[op.name] = seconds[op.name] + expansion * (1 / profile.expand_fraction - 1)
        if isinstance(op, Exchange):
            seconds[op.name] = exchange_s(op, seconds[op.name], shape, profile, backward=backward)
        flops[op.name] = sum((w.flops for w in works), start=np.float64(0.0))
        launches[op.name] = _launches(op, works, shape, profile)
        own = np.zeros(len(CAUSES))
        for traffic in op.traffic(shape)[backward]:
            if traffic.group not in groups:
                continue
            needs = traffic_time(traffic, groups, profile)
            cause = _CAUSE[traffic.group]
            launches[op.name] = launches[op.name] + (np.asarray(needs) > 0) * _issued(op, profile)
            late = needs * (1 - share[cause])
            if traffic.hidden_behind == "self":
                late = exposed_time(needs, seconds[op.name], profile.overlap_cost)
            elif traffic.hidden_behind != "none":
                late = exposed_time(needs, beside[op.name][traffic.hidden_behind], profile.overlap_cost)
            own = own + _by_cause(cause, late)
            hidden = hidden + _by_cause(cause, needs - late)
        exposed[op.name] = own
    for name, late in {} if backward else stalled_s(kind, seconds, launches, profile).items():
        seconds[name] = seconds[name] + late
    return _Pass(seconds, flops, launches, exposed, hidden)


def _tensor_share(shape: Shape, profile: Profile) -> Num:
    """Return the share of tensor-parallel traffic that hides behind the products next to it."""
    held = profile.overlap_narrow | (np.asarray(shape.product_bytes) >= 1)
    return profile.overlap_tensor * held


def _issued(op: Operator, profile: Profile) -> Num:
    """Return the share of an operator's kernels that the host issues: the rest are replayed from graphs."""
    return profile.expert_host_share if op.expert or isinstance(op, Exchange) else profile.host_share


def _launches(op: Operator, works: Sequence[Work], shape: Shape, profile: Profile) -> Num:
    """Return the kernels that the host issues for an operator's work, casts included."""
    each = [w.kernels * (np.asarray(w.bytes) > 0) for w in works]
    return _issued(op, profile) * sum([*each, _casts(op, shape)], start=np.float64(0.0))


def _casts(op: Operator, shape: Shape) -> Num:
    """Return the kernels that quantise an operand in one direction."""
    if not isinstance(op, Product) or not op.low_precision:
        return np.float64(0.0)
    return shape.cast_kernels * op.kernels(shape)


def _cast_time(op: Operator, shape: Shape, rates: DeviceRates, backward: bool) -> Num:
    """Return what quantising the operands of a low-precision product costs.

    The forward pass casts the input, the backward pass the output's gradient, each to two copies
    (:meth:`~meshwright.costmodels.precision.Precision.cast_bytes`). Weights are told by
    :mod:`meshwright.costmodels.weight_casts`. Left out: kernels that fuse the cast into the norm before.
    """
    if not isinstance(op, Product) or not op.low_precision or rates.low_peak_flops_per_s is None:
        return np.float64(0.0)
    n, k = op.local_dims(shape)
    groups = op.groups(shape)
    elements = groups * op.rows(shape) * (n if backward else k)
    moved = elements * _cast_bytes(op, shape, backward)
    share = CAST_SHARES.get(rates.architecture, 1.0)
    launch = rates.kernel_launch_s * _casts(op, shape)
    return launch + moved / (rates.memory_bytes_per_s * rates.memory_fraction * share)


def _cast_bytes(op: Operator, shape: Shape, backward: bool) -> Num:
    """Return the bytes that casting one element of an operand moves on one rank, its share of the group's."""
    if not isinstance(op, Gemm) or not op.cast_before or op.shard != ("row" if backward else "column"):
        return shape.cast_bytes
    split = np.asarray(shape.sequence_split)
    return np.where(split > 1, shape.sent_bytes / split + shape.turned_bytes, shape.cast_bytes)


def _weight_seconds(kind: LayerKind, shape: Shape, rates: DeviceRates, profile: Profile) -> Num:
    """Return the seconds of weight gradients in the backward pass."""
    works = (w for op in kind.operators for w in op.backward(shape) if w.weight_gradient)
    return total_time(tuple(works), rates, profile, True)


def _accumulation_s(kind: LayerKind, shape: Shape, rates: DeviceRates, profile: Profile) -> Num:
    """Return the seconds to add a micro-batch's gradients to the accumulated ones."""
    trained = (op.local_parameters(shape) for op in kind.operators if op.trained)
    moved = profile.accumulation_bytes * sum(trained, start=np.float64(0.0))
    return moved / (rates.memory_bytes_per_s * rates.memory_fraction)


def _head_repeat(kind: LayerKind) -> tuple[Operator, ...]:
    """Return the products that a chunked cross entropy computes again."""
    repeats = any(isinstance(op, CrossEntropy) and op.kernel.repeats_head for op in kind.operators)
    return tuple(op for op in kind.operators if isinstance(op, Gemm)) if repeats else ()


def _trained_weights(kind: LayerKind, shape: Shape) -> Num:
    """Return the operators with a weight that is trained."""
    own = (np.asarray(op.local_parameters(shape)) > 0 for op in kind.operators if op.trained)
    return sum((1.0 * held for held in own), start=np.float64(0.0))


def _recorded(kind: LayerKind, shape: Shape) -> Num:
    """Return the bytes that the forward pass hands to collectives of its tensor group, whole tensors each."""
    moved = (t.bytes for op in kind.operators for t in op.traffic(shape)[0] if t.group == "tensor")
    return sum(moved, start=np.float64(0.0))


def _parameters(kind: LayerKind, shape: Shape) -> dict[str, Num]:
    """Return trained parameters, frozen bytes and low-precision parameters by place, each (..., P)."""
    trained, frozen, low = ([np.float64(0.0)] * PLACES for _ in range(3))
    for op in kind.operators:
        own, place = op.local_parameters(shape), int(op.expert)
        if op.trained:
            trained[place] = trained[place] + own
        else:
            width = shape.element_bytes if op.stored_bytes is None else op.stored_bytes
            frozen[place] = frozen[place] + own * width
        if isinstance(op, Product) and op.low_precision:
            low[place] = low[place] + own
    return {"parameters": _stack(trained), "frozen_bytes": _stack(frozen), "low_parameters": _stack(low)}


def price_layer(
    kind: LayerKind,
    shape: Shape,
    rates: DeviceRates,
    groups: Mapping[Group, GroupSpan],
    profile: Profile,
) -> LayerCost:
    """Return the cost of one layer.

    Parameters
    ----------
    kind
        Already adapted to the stack (:func:`~meshwright.costmodels.adaptation.adapt`).
    shape
        The micro-batch and its split; fields broadcast to (...).
    rates
        Of the device; fields broadcast to (...).
    groups
        Where the groups that the layer talks over lie, each of shape (..., tiers); one that is missing has
        a single member.
    profile
        Of the stack.
    """
    ahead = _pass(kind, shape, rates, groups, profile, backward=False)
    back = _pass(kind, shape, rates, groups, profile, backward=True)
    again = [repeated_shares(kind, mode, profile) for mode in MODES]
    head = _head_repeat(kind)
    runs = float(kind.backward)
    adding = _accumulation_s(kind, shape, rates, profile)
    backward_s = runs * (_total(kind.operators, back.seconds) + _total(head, ahead.seconds) + adding)
    flops = {name: runs * value for name, value in back.flops.items()}
    held = mode_bytes(kind, shape, profile)
    cost: dict[str, Num] = {
        "forward_s": _total(kind.operators, ahead.seconds),
        "backward_s": backward_s,
        "weight_s": runs * (_weight_seconds(kind, shape, rates, profile) + adding),
        "recompute_s": _stack([_partly(part, ahead.seconds) for part in again]),
        "comm_forward_s": _total(kind.operators, ahead.exposed),
        "comm_backward_s": runs * _total(kind.operators, back.exposed),
        "comm_hidden_s": ahead.hidden + runs * back.hidden,
        "comm_recompute_s": _modes([_partly_by_cause(part, ahead.exposed) for part in again]),
        "saved_bytes": _stack(held.saved),
        "working_bytes": _stack(held.working),
        "offloaded_bytes": _stack(held.offloaded),
        "recorded_bytes": _recorded(kind, shape),
        **_parameters(kind, shape),
        "forward_flops": _total(kind.operators, ahead.flops),
        "backward_flops": _total(kind.operators, flops) + runs * _total(head, ahead.flops),
        "recompute_flops": _stack([_partly(part, ahead.flops) for part in again]),
        "forward_launches": _total(kind.operators, ahead.launches),
        "backward_launches": runs * (_total(kind.operators, back.launches) + _total(head, ahead.launches)),
        "recompute_launches": _stack([_partly(part, ahead.launches) for part in again]),
        "trained_weights": _trained_weights(kind, shape),
    }
    return _broadcast(cost)


_M, _C, _P = (len(MODES),), (len(CAUSES),), (PLACES,)
_AXES: Mapping[str, tuple[int, ...]] = {
    "recompute_s": _M,
    "saved_bytes": _M,
    "working_bytes": _M,
    "offloaded_bytes": _M,
    "recompute_flops": _M,
    "recompute_launches": _M,
    "comm_forward_s": _C,
    "comm_backward_s": _C,
    "comm_hidden_s": _C,
    "comm_recompute_s": (*_M, *_C),
    "parameters": _P,
    "frozen_bytes": _P,
    "low_parameters": _P,
}
"""Last axes of the fields of a :class:`LayerCost`; none for the others."""


def _broadcast(cost: Mapping[str, Num]) -> LayerCost:
    """Return all fields broadcast to one leading shape."""
    own = {name: _AXES.get(name, ()) for name in cost}
    arrays = {name: np.asarray(v, dtype=np.float64) for name, v in cost.items()}
    lead = np.broadcast_shapes(*(v.shape[: v.ndim - len(own[name])] for name, v in arrays.items()))
    return LayerCost(**{name: np.broadcast_to(v, (*lead, *own[name])) for name, v in arrays.items()})


def _modes(values: Sequence[Num]) -> FloatArray:
    """Return arrays (..., C) stacked on an axis of modes before the last, (..., M, C)."""
    return stacked([np.zeros(len(CAUSES)), *values], tail=1)[..., 1:, :]


def _stack(values: Sequence[Num]) -> FloatArray:
    """Return values broadcast together and stacked on a last axis."""
    return stacked(values)
