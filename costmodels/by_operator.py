"""What PyTorch's selective checkpoint keeps of a layer: outputs, told operator by operator.

``torch.utils.checkpoint.create_selective_checkpoint_contexts`` asks a policy for each operator whether its
output is kept; all else is run again in the backward pass, up to the last tensor that this needs. The policy
here is torchtitan's (``distributed/activation_checkpoint.py``, ``SelectiveAC``): the outputs of attention, of
every second product (the first, the third ...; queries, keys, values, gate and up are products of their own)
and of a tensor group's reduce-scatters. Grouped products of experts and their exchange are run again, and the
router is not counted. Left out: an all-reduce (no sequence parallelism) is run again, which is not priced;
an unfused core's products (``bmm``) are taken for what its softmax keeps.
"""

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import Boundary, LayerKind, Operator
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.work import Shape


def kept_shares(kind: LayerKind) -> dict[str, Num]:
    """Return by name the share of an operator's output that is kept; one that is not named keeps nothing."""
    shares: dict[str, Num] = {}
    seen = 0
    for op in kind.operators:
        if isinstance(op, Gemm):
            widths = [part.features for part in op.outputs]
            kept = sum((w for i, w in enumerate(widths, seen) if i % 2 == 0), start=0.0)
            shares[op.name] = kept / sum(widths)
            seen += len(widths)
        elif isinstance(op, Attention) or (isinstance(op, Boundary) and op.direction == "exit"):
            shares[op.name] = 1.0
    return shares


def kept_bytes(kind: LayerKind, shape: Shape) -> Num:
    """Return the bytes of all kept outputs on one rank, the layer's input not among them."""
    shares = kept_shares(kind)
    each = (shares[op.name] * _output_bytes(op, shape) for op in kind.operators if op.name in shares)
    return sum(each, start=0.0 * shape.tokens)


def _output_bytes(op: Operator, shape: Shape) -> Num:
    """Return the bytes of an operator's output on one rank; an all-reduce hands on what is counted before."""
    if isinstance(op, Gemm):
        return op.groups(shape) * op.rows(shape) * op.local_dims(shape)[0] * shape.element_bytes
    if isinstance(op, Boundary):
        whole = shape.tokens * op.features * shape.element_bytes * (shape.tp > 1)
        return whole / shape.sequence_split * shape.sequence_parallel
    return op.saved_bytes(shape)
