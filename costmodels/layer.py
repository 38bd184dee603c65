"""The price of one layer of a kind: seconds, bytes and FLOPs on one rank for one micro-batch.

Sums the operators' work (roofline) and tensor-parallel traffic (collectives), for each recompute mode:

- ``none`` keeps every saved tensor.
- ``selective`` drops what light operators save (norms, activation functions) and, where scores go through
  memory, the attention core's, and runs these again in the backward pass (arXiv 2205.05198, section 5).
- ``full`` keeps the layer's input alone and runs the layer forward again (arXiv 1604.06174); stacks whose
  checkpoint stops early (PyTorch) skip the last product and its collective.

Left out: selective recompute of single products, and offloading of activations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.operators import Gemm, LayerKind, Operator
from meshwright.costmodels.overlap import exposed_time
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.roofline import DeviceRates, total_time
from meshwright.costmodels.vocabulary import CrossEntropy, LossKernel
from meshwright.costmodels.work import Shape, Traffic
from meshwright.hardware.span import GroupSpan

MODES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one micro-batch, one rank. Arrays of shape (...), or (..., modes) where marked.

    Attributes
    ----------
    forward_s, backward_s, recompute_s
        Arithmetic and memory time; recompute is per mode.
    tensor_forward_s, tensor_backward_s, tensor_recompute_s
        Exposed tensor-parallel communication; recompute is per mode.
    tensor_hidden_s
        What overlap hides of it.
    saved_bytes
        Kept between forward and backward, per mode, the layer's input included.
    working_bytes
        Alive only while the layer's backward pass runs, per mode.
    parameters
        On one tensor-parallel rank.
    forward_flops, backward_flops, recompute_flops
        Executed on one rank; recompute is per mode.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    tensor_forward_s: FloatArray
    tensor_backward_s: FloatArray
    tensor_recompute_s: FloatArray
    tensor_hidden_s: FloatArray
    saved_bytes: FloatArray
    working_bytes: FloatArray
    parameters: FloatArray
    forward_flops: FloatArray
    backward_flops: FloatArray
    recompute_flops: FloatArray


def adapt(kind: LayerKind, profile: Profile, loss: LossKernel) -> LayerKind:
    """Return the kind as a stack runs it: its attention kernel and its cross entropy."""

    def swap(op: Operator) -> Operator:
        if isinstance(op, Attention):
            return replace(op, flash=profile.flash_attention)
        if isinstance(op, CrossEntropy):
            return replace(op, kernel=loss)
        return op

    return replace(kind, operators=tuple(swap(op) for op in kind.operators))


def _total(ops: Sequence[Operator], each: Mapping[str, Num]) -> Num:
    """Return the sum over operators of what each (by its name) costs."""
    return sum((each[op.name] for op in ops), start=np.float64(0.0))


def _seconds(kind: LayerKind, shape: Shape, rates: DeviceRates, profile: Profile) -> dict[str, Num]:
    """Return the forward seconds of each operator: what recompute modes repeat is priced once."""
    return {op.name: total_time(op.forward(shape), rates, profile) for op in kind.operators}


def _flops(kind: LayerKind, shape: Shape, *, backward: bool = False) -> dict[str, Num]:
    """Return the FLOPs of each operator."""
    passes = {op.name: op.backward(shape) if backward else op.forward(shape) for op in kind.operators}
    return {name: sum((w.flops for w in works), start=np.float64(0.0)) for name, works in passes.items()}


def _backward_seconds(kind: LayerKind, shape: Shape, rates: DeviceRates, profile: Profile) -> Num:
    times = (total_time(op.backward(shape), rates, profile, True) for op in kind.operators)
    return sum(times, start=np.float64(0.0))


def _communication(traffics: Sequence[Traffic], span: GroupSpan) -> tuple[Num, Num]:
    """Return (seconds on the critical path, seconds behind a product)."""
    times = [(t, collective_time(t.collective, t.bytes, span)) for t in traffics]
    open_s = sum((s for t, s in times if not t.hidden_behind_gemm), start=np.float64(0.0))
    return open_s, sum((s for t, s in times if t.hidden_behind_gemm), start=np.float64(0.0))


def backward_traffic(ops: Sequence[Operator], shape: Shape) -> tuple[Traffic, ...]:
    """Return the backward collectives of operators."""
    return tuple(t for op in ops for t in op.traffic(shape)[1])


def repeated(kind: LayerKind, mode: str, profile: Profile) -> tuple[Operator, ...]:
    """Return the operators that a recompute mode runs again (none for embedding and head)."""
    if mode == "none" or kind.role != "block":
        return ()
    if mode == "selective":
        return tuple(op for op in kind.operators if op.light or _unfused(op))
    gemms = [i for i, op in enumerate(kind.operators) if isinstance(op, Gemm)]
    stop = len(kind.operators) if profile.recompute_exit or not gemms else gemms[-1]
    return kind.operators[:stop]


def _unfused(op: Operator) -> bool:
    return isinstance(op, Attention) and not op.flash


def input_bytes(kind: LayerKind, shape: Shape) -> Num:
    """Return the bytes of a layer's input on one rank (none for the embedding, whose input is ids)."""
    whole = shape.tokens * kind.hidden * shape.element_bytes / shape.sequence_split
    return 0.0 * whole if kind.role == "embedding" else whole


def saved_bytes(kind: LayerKind, mode: str, shape: Shape) -> Num:
    """Return the bytes that a layer keeps for its backward pass under a recompute mode."""
    kept = input_bytes(kind, shape)
    if mode == "full" and kind.role == "block":
        return kept
    for op in kind.operators:
        if mode == "selective" and kind.role == "block" and (op.light or _unfused(op)):
            kept = kept + (op.saved_bytes(shape) - op.core_bytes(shape) if isinstance(op, Attention) else 0)
        else:
            kept = kept + op.saved_bytes(shape)
    return kept


def _working_bytes(kind: LayerKind, mode: str, shape: Shape) -> Num:
    """Return what lives only in the backward pass: recomputed tensors, gradients of one product, logits."""
    restored = saved_bytes(kind, "none", shape) - saved_bytes(kind, mode, shape)
    gradients: Num = 0.0
    for op in kind.operators:
        if isinstance(op, CrossEntropy):
            gradients = np.maximum(gradients, op.transient_bytes(shape))
        elif isinstance(op, Gemm) and kind.role == "block":
            n, k = op.local_dims(shape)
            gradients = np.maximum(gradients, shape.tokens * (n + k) * shape.element_bytes)
    return restored + gradients


def _head_repeat(kind: LayerKind) -> tuple[Operator, ...]:
    """Return the products that a chunked cross entropy computes again."""
    repeats = any(isinstance(op, CrossEntropy) and op.kernel.repeats_head for op in kind.operators)
    return tuple(op for op in kind.operators if isinstance(op, Gemm)) if repeats else ()


def price_layer(
    kind: LayerKind, shape: Shape, rates: DeviceRates, span: GroupSpan, profile: Profile
) -> LayerCost:
    """Return the cost of one layer.

    Parameters
    ----------
    kind
        Already adapted to the stack (:func:`adapt`).
    shape
        The micro-batch and its split; fields broadcast to (...).
    rates
        Of the device; fields broadcast to (...).
    span
        Of the tensor-parallel group, shape (..., tiers).
    profile
        Of the stack.
    """
    again = [repeated(kind, mode, profile) for mode in MODES]
    head = _head_repeat(kind)
    seconds, flops = _seconds(kind, shape, rates, profile), _flops(kind, shape)
    wgrad = _backward_seconds(kind, shape, rates, profile)
    gathers = {op.name: _communication(op.traffic(shape)[0], span)[0] for op in kind.operators}
    forward_open = _total(kind.operators, gathers)
    backward_open, behind = _communication(backward_traffic(kind.operators, shape), span)
    hide = profile.overlap_tensor
    late = exposed_time(behind, 0.5 * wgrad, profile.overlap_cost)
    cost = {
        "forward_s": _total(kind.operators, seconds),
        "backward_s": wgrad + _total(head, seconds),
        "recompute_s": _stack([_total(ops, seconds) for ops in again]),
        "tensor_forward_s": (1 - hide) * forward_open,
        "tensor_backward_s": (1 - hide) * backward_open + late,
        "tensor_recompute_s": _stack([(1 - hide) * _total(ops, gathers) for ops in again]),
        "tensor_hidden_s": hide * (forward_open + backward_open) + behind - late,
        "saved_bytes": _stack([saved_bytes(kind, m, shape) for m in MODES]),
        "working_bytes": _stack([_working_bytes(kind, m, shape) for m in MODES]),
        "parameters": sum((op.local_parameters(shape) for op in kind.operators), start=np.float64(0.0)),
        "forward_flops": _total(kind.operators, flops),
        "backward_flops": _total(kind.operators, _flops(kind, shape, backward=True)) + _total(head, flops),
        "recompute_flops": _stack([_total(ops, flops) for ops in again]),
    }
    lead = np.broadcast_shapes(*(np.shape(v)[: -1 if _per_mode(k) else None] for k, v in cost.items()))
    full = {k: np.broadcast_to(v, (*lead, len(MODES)) if _per_mode(k) else lead) for k, v in cost.items()}
    return LayerCost(**{k: np.asarray(v, dtype=np.float64) for k, v in full.items()})


def _per_mode(name: str) -> bool:
    return "recompute" in name or name in ("saved_bytes", "working_bytes")


def _stack(values: Sequence[Num]) -> FloatArray:
    """Return values broadcast together and stacked on a last axis (modes)."""
    return np.stack(np.broadcast_arrays(*[np.asarray(v, dtype=np.float64) for v in values]), axis=-1)
