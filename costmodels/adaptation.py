"""A layer as a software stack runs it: attention kernel, cross entropy, fusion, low-precision products."""

from dataclasses import replace
from itertools import pairwise

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.attention_kernels import find_attention_kernel
from meshwright.costmodels.fusion import WIDE_BYTES, bias_chain, unfused
from meshwright.costmodels.moe import Exchange, ExpertGemm
from meshwright.costmodels.operators import Boundary, LayerKind, Operator
from meshwright.costmodels.precision import Precision
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.vocabulary import CrossEntropy, LossKernel


def adapt(
    kind: LayerKind,
    profile: Profile,
    loss: LossKernel,
    precision: Precision | None = None,
    pipelined: LossKernel | None = None,
) -> LayerKind:
    """Return the kind as a stack runs it: attention kernel, cross entropy, fusion, low-precision products.

    ``pipelined`` is the cross entropy at the end of a pipeline where that is another than ``loss``.

    The products of blocks run in the recipe's 8- or 4-bit type; embedding, heads (those of layers that
    predict ahead as well) and router do not (Transformer Engine; arXiv 2412.19437, section 3.3.1).
    """
    blocks = kind.role == "block" and kind.low_precision
    low = precision is not None and precision.low_compute is not None and blocks
    wide = precision is not None and precision.element_bytes >= WIDE_BYTES
    heads = {op.name for op, loss_ in pairwise(kind.operators) if isinstance(loss_, CrossEntropy)}
    beside = _products_beside(kind)
    gathered = {product.name for product in beside.values()}

    def swap(op: Operator) -> Operator:
        """Return an operator as the stack runs it."""
        if isinstance(op, Attention):
            kernel = find_attention_kernel(profile.attention)
            return replace(op, flash=kernel.flash, core=kernel.name)
        if isinstance(op, CrossEntropy):
            return replace(op, kernel=loss, parallel=profile.loss_parallel, pipelined=pipelined)
        if isinstance(op, ExpertGemm):
            return replace(
                op,
                low_precision=low,
                bias_chain=bias_chain(op, profile.expert_bias, wide),
                one_by_one=profile.expert_by_expert,
                padded=low and profile.expert_padding,
            )
        if low and isinstance(op, Gemm):
            before = profile.quantised_gathers and op.name in gathered
            return replace(op, low_precision=op.name not in heads, cast_before=before)
        if isinstance(op, Exchange):
            once = profile.expert_dispatch == "deduplicated"
            return replace(op, deduplicated=once, lowered=profile.low_dispatch)
        if isinstance(op, Boundary):
            product = beside.get(op.name)
            cast = low and profile.quantised_gathers and product is not None and product.name not in heads
            each = len(product.outputs) if product is not None and profile.projections_apart else 1
            keeps, beside_products = profile.keeps_gathered, profile.overlap_backward
            return replace(op, keeps=keeps, reductions=each, quantised=cast, beside=beside_products)
        return unfused(op, profile.fusions, wide)

    return replace(kind, operators=tuple(swap(op) for op in kind.operators))


def _products_beside(kind: LayerKind) -> dict[str, Gemm]:
    """Return by the names of boundaries the product that one leads to, or that leads to it."""
    found: dict[str, Gemm] = {}
    for first, then in pairwise(kind.operators):
        if isinstance(first, Boundary) and isinstance(then, Gemm) and then.shard == "column":
            found[first.name] = then
        if isinstance(first, Gemm) and isinstance(then, Boundary) and first.shard == "row":
            found[then.name] = first
    return found
