"""Memory-bound operators as a stack runs them: in one kernel, or as a chain of eager PyTorch operators.

An operator's own bytes are those of one fused kernel. A chain reads and writes every intermediate tensor, so
it moves a multiple of them, keeps more for the backward pass and launches more kernels. The multiples come
from counting the tensors of a bf16 model, in bytes per feature:

norm (``LlamaRMSNorm`` of transformers and its kin, computed in fp32)
    forward cast 6, square 8, mean 4, scale 8, cast 6, weight 4 = 36 against 4 fused; backward weight 6,
    its gradient 8, casts 12, products 38, sum 12, broadcast and reduction 10 = 86 against 6. The fp32 copy
    of the input (4 bytes) is kept in the place of the input (2), and the normalised bf16 tensor (2) beside
    the output: 4 bytes more. A norm with a shift is ``layer_norm``, one kernel in PyTorch as well.
    A 32-bit recipe has nothing to cast: forward 8 + 4 + 8 + 8 = 28 against 8; backward 8, 12, 38, 12 and 10
    = 80 against 12; the normalised tensor is kept beside the output: 4 bytes, which are 2 at 16 bits.
activation (gated: ``silu(gate) * up``)
    forward 4 + 6 = 10 against 6; backward 6 + 6 + 6 = 18 against 10; the activated gate is kept: 2 bytes.
    A plain activation function is one kernel in PyTorch as well.
rotary (``x * cos + rotate_half(x) * sin``)
    forward 2 + 4 + 4 + 4 + 6 = 20 against 4; backward the same. Nothing more is kept: the turned copies take
    the place of the product's output (queries, keys and values are products of their own).
residual (dropout and sum apart)
    with dropout 5 features and a mask against 3 and a mask; without it one sum either way.

Left out: operators that ``torch.compile`` splits, and eager chains of norms in 16 bits.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from meshwright.costmodels.moe import ExpertActivation
from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.costmodels.work import Chain

FUSIONS: Final = ("fused", "eager")
"""How a stack may run a group of operators."""
WIDE_BYTES: Final = 4
"""Of an element from which a recipe has nothing to cast."""


NORM: Final = Chain(36 / 4, 86 / 6, 4.0, 6, 13)
WIDE_NORM: Final = Chain(28 / 8, 80 / 12, 2.0, 4, 11)
GATED: Final = Chain(10 / 6, 18 / 10, 2.0, 2, 3)
ROTARY: Final = Chain(20 / 4, 20 / 4, 0.0, 5, 5)
DROPOUT: Final = Chain(5 / 3, 1.0, 0.0, 2, 2)

GROUPS: Final = ("norm", "activation", "rotary", "residual")
"""Groups of memory-bound operators that a stack fuses or not."""


def chain_of(op: Pointwise | ExpertActivation, wide: bool = False) -> Chain | None:
    """Return the chain that an operator is without fusion; None if it is one kernel either way.

    ``wide`` recipes have elements of 32 bits.
    """
    if isinstance(op, ExpertActivation):
        return GATED if op.reads >= 2 * op.writes else None
    if op.group == "norm":
        return None if op.weights >= 2 * op.writes > 0 else WIDE_NORM if wide else NORM
    if op.group == "activation":
        return GATED if op.reads >= 2 * op.writes else None
    if op.group == "rotary":
        return ROTARY
    return DROPOUT if op.group == "residual" and op.mask_features else None


def unfused(op: Operator, fusions: Mapping[str, str], wide: bool = False) -> Operator:
    """Return an operator as a stack runs it whose groups are ``fused`` or ``eager``; see :func:`chain_of`."""
    if not isinstance(op, Pointwise | ExpertActivation):
        return op
    group = "activation" if isinstance(op, ExpertActivation) else op.group
    chain = chain_of(op, wide) if fusions.get(group) == "eager" else None
    return op if chain is None else replace(op, chain=chain)
