"""Prices per layer kind and recompute mode: what a plan's stages are sums of.

Every operator is priced once for each distinct (tp, micro-batch, sequence parallelism) and gathered; what
depends on the data-parallel group is added for each strategy. A stage's time and memory are then sums of
counts times these tables, the same for the event simulation, for CP-SAT and for the referees.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray, Num
from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.layer import LayerCost, price_layer
from meshwright.costmodels.memory import StateBytes, optimizer_traffic, state_bytes
from meshwright.costmodels.operators import Gemm, LayerKind
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.work import Shape
from meshwright.hardware.span import GroupSpan, group_span

FORWARD = ("forward", "tensor_parallel", "parameter_gather", "host")
BACKWARD = ("backward", "recompute", "tensor_parallel", "parameter_gather", "gradient_reduction", "host")


class Spans(NamedTuple):
    """Where the data and pipeline groups of each strategy lie: fields of shape (B, tiers)."""

    data: GroupSpan
    pipeline: GroupSpan


@dataclass(frozen=True)
class Tables:
    """Prices of one layer of each kind; B strategies, K kinds, M modes.

    Attributes
    ----------
    forward_parts
        Seconds of a forward pass by cause, (B, K, causes in :data:`FORWARD`).
    backward_parts
        Seconds of a backward pass by cause, (B, K, M, causes in :data:`BACKWARD`).
    reduce_s, gather_s
        Once a step: gradient reduction, and gathering of updated parameters, (B, K).
    optimizer_s
        Once a step, (B, K).
    hidden_tensor_s, hidden_gather_s, hidden_reduce_s
        Communication that overlap hides in one forward and backward pass, (B, K).
    parameters
        On one rank, (B, K).
    states
        Bytes per parameter, fields (B, 1).
    saved_bytes, working_bytes
        (B, K, M).
    unit_bytes
        Parameters gathered and gradients not yet scattered while a layer runs, (B, K).
    transfer_s
        From one stage to the next, (B,).
    pass_s
        Compute lost in every pass of a chunk to the transfer beside it, (B,).
    flops
        Executed by one micro-batch on one rank, forward and backward with recompute, (B, K, M).
    """

    forward_parts: FloatArray
    backward_parts: FloatArray
    reduce_s: FloatArray
    gather_s: FloatArray
    optimizer_s: FloatArray
    hidden_tensor_s: FloatArray
    hidden_gather_s: FloatArray
    hidden_reduce_s: FloatArray
    parameters: FloatArray
    states: StateBytes
    saved_bytes: FloatArray
    working_bytes: FloatArray
    unit_bytes: FloatArray
    transfer_s: FloatArray
    pass_s: FloatArray
    flops: FloatArray

    def take(self, rows: IntArray) -> "Tables":
        """Return the tables of some strategies."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "states"}
        states = StateBytes(**{f.name: getattr(self.states, f.name)[rows] for f in fields(StateBytes)})
        return Tables(**arrays, states=states)

    @cached_property
    def forward_s(self) -> FloatArray:
        """Seconds of a forward pass, (B, K)."""
        return np.asarray(self.forward_parts.sum(axis=-1))

    @cached_property
    def backward_s(self) -> FloatArray:
        """Seconds of a backward pass, (B, K, M)."""
        return np.asarray(self.backward_parts.sum(axis=-1))

    @cached_property
    def state_bytes(self) -> FloatArray:
        """Bytes of all states of one layer, (B, K)."""
        return self.parameters * self.states.total


def _shape(setting: Setting, strategies: Strategies) -> Shape:
    return Shape(
        sequences=strategies.micro_batch_size,
        sequence_length=setting.sequence_length,
        tp=strategies.tp,
        sequence_parallel=strategies.sequence_parallel,
        element_bytes=setting.precision.element_bytes,
        vocab_multiple=setting.vocab_multiple,
    )


def spans(setting: Setting, s: Strategies) -> Spans:
    """Return where the data and pipeline groups lie on the topology."""
    cluster = setting.cluster
    return Spans(group_span(cluster, s.dp, s.data_stride), group_span(cluster, s.pp, s.pipeline_stride))


def _layer_costs(setting: Setting, s: Strategies) -> LayerCost:
    """Return layer costs with a kinds axis: (B, K) and (B, K, M), each distinct triple priced once."""
    triples = np.stack([s.tp, s.micro_batch_size, s.sequence_parallel], axis=-1)
    _, first, back = np.unique(triples, axis=0, return_index=True, return_inverse=True)
    few = s.take(first)
    tensor = group_span(setting.cluster, few.tp, np.ones_like(few.tp))
    shape, rates, profile = _shape(setting, few), setting.rates, setting.profile
    costs = [price_layer(kind, shape, rates, tensor, profile) for kind in setting.kinds]
    back = back.reshape(-1)
    size = len(first)

    def gathered(name: str) -> FloatArray:
        rows = [getattr(c, name) for c in costs]
        return np.stack([np.broadcast_to(r, (size, *r.shape[1:])) for r in rows], axis=1)[back]

    return LayerCost(**{f.name: gathered(f.name) for f in fields(LayerCost)})


def _wide(span: GroupSpan) -> GroupSpan:
    """Return the span with a kinds axis: (B, 1, tiers)."""
    return GroupSpan(
        sizes=span.sizes[:, None],
        bandwidth_bytes_per_s=span.bandwidth_bytes_per_s[:, None],
        latency_s=span.latency_s[:, None],
    )


def _tied_parameters(kind: LayerKind, shape: Shape) -> Num:
    """Return the local parameters of a kind that are a copy of another layer's."""
    copies = (op.local_parameters(shape) for op in kind.operators if isinstance(op, Gemm) and op.tied)
    return sum(copies, start=np.zeros(np.shape(shape.tp)))


class _Passes(NamedTuple):
    """What every pass waits for beside its own work: fields (B, K), those of the backward pass (B, K, M)."""

    forward_gather: FloatArray
    forward_idle: FloatArray
    backward_gather: FloatArray
    backward_reduce: FloatArray
    backward_idle: FloatArray
    hidden_gather: FloatArray
    hidden_reduce: FloatArray


def _every_pass(setting: Setting, cost: LayerCost, gather: FloatArray, scatter: FloatArray) -> _Passes:
    """Return the host's gaps, and what ZeRO's traffic of every pass adds beside compute and gaps.

    The backward pass overlaps with gathering and scattering together; what stays exposed is told apart by
    their shares.
    """
    profile = setting.profile
    forward_own = cost.forward_s + cost.tensor_forward_s
    backward_own = (cost.backward_s + cost.tensor_backward_s)[..., None] + cost.recompute_s
    backward_own = backward_own + cost.tensor_recompute_s
    host = profile.layer_host_s * np.array([kind.role == "block" for kind in setting.kinds])
    forward_idle = np.maximum(0.0, host - forward_own)
    backward_idle = np.maximum(0.0, host[:, None] - backward_own)
    share, lost = profile.overlap_parameters, profile.overlap_cost
    forward_gather = exposed_time(gather, share * (forward_own + forward_idle), lost)
    both = gather + scatter
    late = exposed_time(both[..., None], share * (backward_own + backward_idle), lost)
    reducing = np.divide(scatter, both, out=np.zeros_like(both), where=scatter > 0)
    hidden = (both[..., None] - late)[..., 0]
    return _Passes(
        forward_gather=forward_gather,
        forward_idle=forward_idle,
        backward_gather=late * (1 - reducing)[..., None],
        backward_reduce=late * reducing[..., None],
        backward_idle=backward_idle,
        hidden_gather=gather - forward_gather + hidden * (1 - reducing),
        hidden_reduce=hidden * reducing,
    )


def build_tables(setting: Setting, s: Strategies) -> Tables:
    """Return the tables of a batch of strategies; one call prices one or a million."""
    cost, where, shape, profile = (
        _layer_costs(setting, s),
        spans(setting, s),
        _shape(setting, s),
        setting.profile,
    )
    stage, data = s.zero_stage[:, None], _wide(where.data)
    element, gradient = float(setting.precision.element_bytes), setting.gradient_bytes
    tied = np.stack([_tied_parameters(kind, shape) for kind in setting.kinds], axis=-1)
    parameters = cost.parameters - tied * (s.pp == 1)[:, None]

    gather = collective_time("all_gather", element * parameters, data)
    scatter = collective_time("reduce_scatter", gradient * parameters, data)
    passes = _every_pass(setting, cost, gather * (stage == 3), scatter * (stage >= 2))
    modes = cost.recompute_s.shape
    reduce = collective_time("all_reduce", gradient * parameters, data) * (stage == 0) + scatter * (
        stage == 1
    )
    states = state_bytes(stage, s.dp[:, None], setting.precision, setting.optimizer, profile, gradient)
    rates = setting.rates
    touched = optimizer_traffic(setting.precision, setting.optimizer, gradient) * parameters
    touched = touched / np.where(stage >= 1, s.dp[:, None], 1)
    transfer = collective_time("send_recv", _boundary_bytes(setting, s, shape), where.pipeline)
    unit = (1 + profile.prefetch_units) * element * parameters * (stage == 3) + gradient * parameters * (
        stage >= 2
    )
    return Tables(
        forward_parts=_parts(
            cost.forward_s, cost.tensor_forward_s, passes.forward_gather, passes.forward_idle
        ),
        backward_parts=_parts(
            np.broadcast_to(cost.backward_s[..., None], modes),
            cost.recompute_s,
            cost.tensor_backward_s[..., None] + cost.tensor_recompute_s,
            passes.backward_gather,
            passes.backward_reduce,
            passes.backward_idle,
        ),
        reduce_s=reduce + _tied_reduce(setting, s, tied, where.pipeline),
        gather_s=gather * ((stage == 1) | (stage == 2)),
        optimizer_s=touched / (rates.memory_bytes_per_s * profile.optimizer_fraction),
        hidden_tensor_s=cost.tensor_hidden_s,
        hidden_gather_s=passes.hidden_gather,
        hidden_reduce_s=passes.hidden_reduce,
        parameters=parameters,
        states=states,
        saved_bytes=cost.saved_bytes,
        working_bytes=cost.working_bytes,
        unit_bytes=unit,
        transfer_s=transfer,
        pass_s=profile.overlap_cost * transfer,
        flops=(cost.forward_flops + cost.backward_flops)[..., None] + cost.recompute_flops,
    )


def _boundary_bytes(setting: Setting, s: Strategies, shape: Shape) -> FloatArray:
    """Return the bytes that one rank hands to the next stage for a micro-batch, (B,)."""
    width = setting.kinds[0].hidden * setting.precision.element_bytes
    return np.asarray(shape.tokens * width / shape.sequence_split, dtype=np.float64)


def _parts(*parts: FloatArray) -> FloatArray:
    return np.stack(np.broadcast_arrays(*parts), axis=-1)


def _tied_reduce(setting: Setting, s: Strategies, tied: FloatArray, span: GroupSpan) -> FloatArray:
    """Return the exchange of a tied weight's gradients between first and last stage, on both kinds, (B, K).

    The two ranks send to each other at once (full duplex) and add: one send-receive of the whole gradient.
    """
    seconds = collective_time("send_recv", setting.gradient_bytes * tied.sum(axis=-1), span) * (s.pp > 1)
    ends = np.array([kind.role != "block" for kind in setting.kinds])
    return np.where(ends, seconds[:, None], 0.0)
