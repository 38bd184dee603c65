"""What a pipeline's transfers cost: how long one takes, and whether its stages wait for it.

A stage hands the residual stream of a micro-batch to the next, and its gradient back. Without sequence
parallelism all ranks of a tensor group hold the same tokens: each sends them whole, or a part that the ranks
behind gather again (Megatron-LM's ``--scatter-gather-tensors-in-pipeline``, arXiv 2104.04473, section 4.1).

A stage that waits exchanges tensors with both neighbours when a pass ends, both ways at once, and starts the
next when they have arrived: a transfer is then part of the pass before it (Megatron-LM's
``send_forward_recv_backward`` and its kin). Otherwise it travels beside the next pass, which it slows.

Left out: that the first and the last stage have one neighbour, and that an exchange starts when the later of
its two ranks is ready.
"""

from typing import NamedTuple

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray
from meshwright.costmodels.collectives import collective_time
from meshwright.costmodels.schedule import splits_backward
from meshwright.costmodels.spans import Spans, layer_groups
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.work import Shape


class Transfers(NamedTuple):
    """Seconds, each (B,): ``path_s`` until a receiver may start, ``pass_s`` that each pass takes longer."""

    path_s: FloatArray
    pass_s: FloatArray


def transfers(setting: Setting, s: Strategies, shapes: list[Shape], where: Spans) -> Transfers:
    """Return what handing a micro-batch to the next stage costs, for the shapes of all kinds, fields (B,)."""
    seconds, stands = _seconds(setting, s, shapes, where), waits(setting, s)
    share = np.where(stands, 1.0, setting.profile.overlap_cost)
    return Transfers(np.where(stands, 0.0, seconds), np.asarray(share * seconds))


def waits(setting: Setting, s: Strategies) -> BoolArray:
    """Return where stages wait for their transfers, (B,)."""
    beside = setting.profile.overlap_transfers
    if beside != "interleaved":
        return np.full(len(s), beside == "none")
    plain = {name: not splits_backward(name) for name in set(s.schedule)}
    return np.asarray(np.array([plain[name] for name in s.schedule], dtype=np.bool_) & (s.vpp == 1))


def _seconds(setting: Setting, s: Strategies, shapes: list[Shape], where: Spans) -> FloatArray:
    """Return the seconds of one transfer, (B,)."""
    whole = boundary_bytes(setting, shapes)
    alike = np.where(s.sequence_parallel == 1, 1, s.tp)
    parts = alike if setting.profile.transfers_split else np.ones_like(alike)
    sent = collective_time("send_recv", whole / parts, where.pipeline)
    tensor = layer_groups(setting.cluster, s)["tensor"]
    return np.asarray(sent + collective_time("all_gather", whole * ((parts > 1) & (s.pp > 1)), tensor))


def boundary_bytes(setting: Setting, shapes: list[Shape]) -> FloatArray:
    """Return the bytes that one rank hands to the next stage for a micro-batch, (B,): the widest cut counts.

    A model whose streams differ in width or length pays the same for every cut, which is left out.
    """
    element = setting.precision.element_bytes
    pairs = zip(setting.kinds, shapes, strict=True)
    cuts = [
        (shape.tokens * kind.hidden + shape.context_tokens * kind.carries) * element / shape.sequence_split
        for kind, shape in pairs
        if kind.role != "head"
    ]
    return np.asarray(np.maximum.reduce(cuts), dtype=np.float64)
