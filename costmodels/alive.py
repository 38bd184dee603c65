"""What is alive while a layer's backward pass runs, which frees what it has used and adds gradients.

At each operator, from the last to the first, there are

- the layer's input, and what the operators up to this one saved: what those behind it saved is gone, and so
  is its own output, which the operator behind it had kept;
- the gradients of its output and input, and of its weight where another kernel adds it to the accumulated one
  (products), or what its own implementation needs (attention cores, scans, the loss);
- the gradient of the stream that passes the block's branches by;
- the weights' gradients of the operators behind it, where they wait for the layer's end to be scattered
  together (FSDP's units, arXiv 2304.11277, section 4.3).

Counted tensor by tensor on transformers' ``LlamaDecoderLayer`` (8B, 4,096 tokens): the fullest moment is the
product of the gate's gradients, with 368 MiB beside what was saved; so it comes out here. Left out: what
chains of kernels hold in fp32 for a moment, gradients of flash attention's operands.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.delta import DeltaRule
from meshwright.costmodels.moe import Exchange, ExpertActivation
from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.costmodels.product import Product
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.scan import ChunkedScan
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.costmodels.work import Shape

FEATURES: Final = (Product, Pointwise, Exchange, ExpertActivation)
"""Operators of features: their gradients count in blocks, as embedding and head are small beside logits."""
HOLDERS: Final = (*FEATURES, Attention, ChunkedScan, CrossEntropy, DeltaRule)
"""Operators that hold more in their backward pass than what is saved."""


def fullest_bytes(
    kind: LayerKind, shape: Shape, profile: Profile, input_bytes: Num, saved: Mapping[str, Num]
) -> Num:
    """Return the most that a layer holds at any operator of its backward pass.

    One that has none, as nothing in it or before it is trained, holds one operator's operands at a time.

    Parameters
    ----------
    input_bytes
        Of the layer's input, which is kept throughout.
    saved
        What every operator keeps for the backward pass, by its name.
    """
    block = kind.role == "block"
    wait = block * (np.asarray(profile.accumulation_bytes) > 0) * (not profile.working_copy)
    held = input_bytes + kind.backward * sum((saved[op.name] for op in kind.operators), start=np.float64(0.0))
    stream = kind.backward * block * shape.tokens * kind.hidden * shape.element_bytes / shape.sequence_split
    behind: Num = 0.0
    most: Num = held
    for op in reversed(kind.operators):
        weight = _weight_bytes(op, shape)
        most = np.maximum(most, held + _transient_bytes(kind, op, shape, profile, weight) + behind + stream)
        held = held - kind.backward * saved[op.name]
        behind = behind + weight * op.trained * wait
    return most


def _weight_bytes(op: Operator, shape: Shape) -> Num:
    """Return the bytes of a product's weight at the recipe's width; its gradient has as many."""
    if not isinstance(op, Product):
        return 0.0
    n, k = op.local_dims(shape)
    return op.groups(shape) * n * k * shape.element_bytes


def _transient_bytes(kind: LayerKind, op: Operator, shape: Shape, profile: Profile, weight: Num) -> Num:
    """Return what an operator holds beside what is saved: activations' gradients, and in blocks a weight's.

    That of a product whose epilogue adds it to the accumulated one never exists; a quantised weight is there
    once more while it is expanded.
    """
    if not isinstance(op, HOLDERS) or (kind.role != "block" and isinstance(op, FEATURES)):
        return 0.0
    apart = op.trained * (np.asarray(profile.accumulation_bytes) > 0)
    expands = isinstance(op, Product) and op.stored_bytes is not None
    return op.transient_bytes(shape) + weight * (apart + expands)
