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
    *Clamped branches* (GPT-OSS, DeepSeek-V4): forward 4 + 4 more; backward a mask and a choice (``where``) of
    one bound 3 + 5, two masks, their conjunction and a choice of two bounds 3 + 3 + 3 + 5, together 22 more;
    the clamped branches are kept beside the product's output: 4 bytes more. GPT-OSS scales the gate for a
    sigmoid and adds one to the other branch: forward 4 + 4 + 6 + 4 + 6 = 24 in the place of 10; backward four
    products, the sigmoid's gradient, a scaling and a sum 6 x 4 + 6 + 4 + 6 = 40 in the place of 18; the
    sigmoid is kept too: 2 more.
clamp (in front of a fused activation, whose input is one tensor)
    the clamps as above and a join: forward 8 + 8 = 16 beyond 6; backward 22 and the join of the branches'
    gradients 8 = 30 beyond 10; the joined tensor is kept beside the product's output: 4 bytes.
rotary (``x * cos + rotate_half(x) * sin``)
    forward 2 + 4 + 4 + 4 + 6 = 20 against 4; backward two products 8, a negation 2, two halves in tensors of
    zeros 6, two sums 12 = 28. Nothing more is kept: the turned copies take the place of the product's output
    (queries, keys and values are products of their own). *Complex* (pairs as one number of fp32, torchtitan):
    cast 6, product 8, cast 6 either way. Megatron-LM's own, which stands in for a fused kernel where turned
    features are *scaled* too (YaRN's attention factor): a join with what is not turned 4 more forward, and
    backward instead of the halves a join 4 and what the turned part was cut from 4.
residual (dropout and sum apart)
    with dropout 5 features and a mask against 3 and a mask; without it one sum either way.

Biases of experts that are added behind the second product, weighted by each token's probability in fp32
(Megatron-Core's ``TEGroupedMLP._apply_bias``), in bytes per element of the output: forward bias times
probability 4, sum 2 + 4 + 4, concatenation 8, cast 6 = 28; backward casts 6 + 6, products for the gradients
of bias and probability 8 + 8, their sums 4 + 4, concatenation 4 = 40. At 32 bits nothing is cast: 24 and 32.
The dispatch of PyTorch was seen to do these operators (2.13, CPU).

Of these bytes some are moved by kernels without vector loads
(:class:`~meshwright.costmodels.work.Strided`): every kernel of ``rotate_half`` (4.5 elements a feature
forward, 5.5 backward; Megatron-LM's has contiguous products to add, 3.5 each way), the product of complex
numbers (half an element), clamps of slices (2 forward; backward their masks and choices, 5), the
products of a bias with probabilities (1) and of both with the gradient (2).

Left out: such kernels of eager norms and of experts whose branches interleave, the join of the branches'
gradients where an eager stack makes both by one product (8 bytes; 28
where they interleave), clamps that a module traced from code does outside its experts, operators that
``torch.compile`` splits, and eager chains of norms in 16 bits.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from meshwright.costmodels.moe import ExpertActivation, ExpertGemm
from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.costmodels.work import IN_EPILOGUE, BiasChain, Chain, Gate, Strided

FUSIONS: Final = ("fused", "eager", "complex")
"""How a stack may run a group of operators; rotations alone may be ``complex``."""
WIDE_BYTES: Final = 4
"""Of an element from which a recipe has nothing to cast."""


NORM: Final = Chain(36 / 4, 86 / 6, 4.0, 6, 13)
WIDE_NORM: Final = Chain(28 / 8, 80 / 12, 2.0, 4, 11)
GATED: Final = Chain(10 / 6, 18 / 10, 2.0, 2, 3)
ROTARY: Final = Chain(20 / 4, 28 / 4, 0.0, 5, 9, Strided(20, 4.5), Strided(26, 5.5))
COMPLEX_ROTARY: Final = Chain(20 / 4, 20 / 4, 0.0, 3, 3, Strided(8, 0.5), Strided(8, 0.5))
SCALED_ROTARY: Final = Chain(24 / 4, 28 / 4, 0.0, 6, 9, Strided(14, 3.5), Strided(14, 3.5))
DROPOUT: Final = Chain(5 / 3, 1.0, 0.0, 2, 2)

GROUPS: Final = ("norm", "activation", "clamp", "rotary", "scaled_rotary", "residual")
"""Groups of memory-bound operators that a stack fuses or not."""

_MASKS: Final = {False: 22 / 2, True: 36 / 4}
"""Elements moved by the backward pass of both branches' clamps, of 16 and (``True``) 32 bits: masks are of a
byte either way, (q + 1) x 3 + 3 + (1 + 2 q) x 2 bytes for elements of ``q`` bytes."""
_CLAMPED: Final[Mapping[bool, Mapping[Gate, Chain]]] = {
    wide: {
        "plain": GATED,
        "clamped": Chain((4 + 5) / 3, (masks + 9) / 5, 6.0, 4, 11),
        "clamped_offset": Chain((4 + 12) / 3, (masks + 20) / 5, 8.0, 7, 15),
    }
    for wide, masks in _MASKS.items()
}
"""Eager gated activations."""
_CLAMPS: Final = {
    wide: Chain((8 + 3) / 3, (masks + 4 + 5) / 5, 4.0, 4, 10, Strided(8, 2), Strided(19, 5))
    for wide, masks in _MASKS.items()
}
"""Clamps in front of a fused activation, and that kernel."""
EXPERT_BIASES: Final[Mapping[str, Mapping[bool, BiasChain]]] = {
    "epilogue": {False: IN_EPILOGUE, True: IN_EPILOGUE},
    "weighted": {
        False: BiasChain(28, 40, 2, 6, 2, 3, Strided(4, 1), Strided(16, 2)),
        True: BiasChain(24, 32, 2, 4, 1, 2, Strided(4, 1), Strided(16, 2)),
    },
}
"""How a stack adds the biases of the experts' second product, of 16 and (``True``) 32 bits."""


def chain_of(
    op: Pointwise | ExpertActivation, fusions: Mapping[str, str], wide: bool = False
) -> Chain | None:
    """Return the chain that an operator is where groups are ``fused`` or ``eager``; None: one kernel.

    ``wide`` recipes have elements of 32 bits.
    """
    group = "activation" if isinstance(op, ExpertActivation) else op.group
    if group == "activation":
        return _activation(op, fusions, wide)
    assert isinstance(op, Pointwise)
    if group == "rotary" and fusions.get("rotary") != "eager":
        return _rotary(op, fusions)
    if fusions.get(group) != "eager":
        return None
    if group == "norm":
        return None if op.weights >= 2 * op.writes > 0 else WIDE_NORM if wide else NORM
    if group == "rotary":
        return ROTARY
    return DROPOUT if group == "residual" and op.mask_features else None


def _rotary(op: Pointwise, fusions: Mapping[str, str]) -> Chain | None:
    """Return the chain of a rotation by complex numbers, or of one that no fused kernel scales."""
    if fusions.get("rotary") == "complex":
        return COMPLEX_ROTARY
    return SCALED_ROTARY if op.scaled and fusions.get("scaled_rotary") == "eager" else None


def _activation(op: Pointwise | ExpertActivation, fusions: Mapping[str, str], wide: bool) -> Chain | None:
    """Return the chain of an activation: the whole eager, its clamps alone, or none."""
    if op.reads < 2 * op.writes:
        return None
    if fusions.get("activation") == "eager":
        return _CLAMPED[wide][op.gate]
    return _CLAMPS[wide] if op.gate != "plain" and fusions.get("clamp") == "eager" else None


def unfused(op: Operator, fusions: Mapping[str, str], wide: bool = False) -> Operator:
    """Return an operator as a stack runs it whose groups are ``fused`` or ``eager``; see :func:`chain_of`."""
    if not isinstance(op, Pointwise | ExpertActivation):
        return op
    chain = chain_of(op, fusions, wide)
    return op if chain is None else replace(op, chain=chain)


def bias_chain(op: ExpertGemm, how: str, wide: bool = False) -> BiasChain:
    """Return what adds the biases of one of the experts' products: none in the first one, or without any."""
    return EXPERT_BIASES[how][wide] if op.bias and op.shard == "row" else IN_EPILOGUE
