"""What each recompute mode keeps of a layer for its backward pass, and what it runs again.

- ``none`` keeps every saved tensor.
- ``selective`` drops what light operators save (norms, activation functions) and, where scores go through
  memory, the attention core's, and runs these again in the backward pass (arXiv 2205.05198, section 5).
- ``moe`` drops the whole expert sub-block as well, router to combine (Megatron ``--recompute-modules moe``).
- ``offload`` moves what ``none`` keeps to host memory and back; nothing runs again.
- ``full`` keeps the layer's input alone and runs the layer forward again (arXiv 1604.06174); stacks whose
  checkpoint stops early (PyTorch) skip the last product and its collective.

Left out: selective recompute of single products.
"""

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.delta import DeltaRule
from meshwright.costmodels.moe import Exchange, ExpertActivation, ExpertGemm, Router
from meshwright.costmodels.operators import Gemm, LayerKind, Operator
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.scan import ChunkedScan
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.costmodels.work import Shape

MODES = ("none", "selective", "moe", "offload", "full")

_EXPERT = (Router, Exchange, ExpertGemm, ExpertActivation)


def has_experts(kind: LayerKind) -> bool:
    """Return whether a kind holds routed experts: the only ones with a ``moe`` mode of their own."""
    return any(isinstance(op, ExpertGemm) for op in kind.operators)


def _chosen(op: Operator, mode: str) -> bool:
    """Return whether ``selective`` (``moe``) recompute runs an operator again."""
    if mode == "moe" and isinstance(op, _EXPERT):
        return True
    return op.light or (isinstance(op, Attention) and not op.flash)


def repeated(kind: LayerKind, mode: str, profile: Profile) -> tuple[Operator, ...]:
    """Return the operators that a recompute mode runs again (none for embedding and head)."""
    if mode in ("none", "offload") or kind.role != "block" or not kind.backward:
        return ()
    if mode != "full":
        return tuple(op for op in kind.operators if _chosen(op, mode))
    products = [i for i, op in enumerate(kind.operators) if isinstance(op, Gemm | ExpertGemm)]
    stop = len(kind.operators) if profile.recompute_exit or not products else products[-1]
    return kind.operators[:stop]


def input_bytes(kind: LayerKind, shape: Shape) -> Num:
    """Return the bytes of a layer's input on one rank (none for the embedding, whose input is ids)."""
    whole = shape.tokens * kind.hidden * shape.element_bytes / shape.sequence_split
    return 0.0 * whole if kind.role == "embedding" else whole


def saved_bytes(kind: LayerKind, mode: str, shape: Shape) -> Num:
    """Return the bytes that a layer keeps on the device for its backward pass under a recompute mode."""
    kept = input_bytes(kind, shape)
    if not kind.backward:
        return 0.0 * kept
    if mode == "full" and kind.role == "block":
        return kept
    if mode == "offload" and kind.role == "block":
        return 0.0 * kept
    partly = mode in ("selective", "moe") and kind.role == "block"
    for op in kind.operators:
        if partly and _chosen(op, mode):
            core = isinstance(op, Attention) and not op.light
            kept = kept + (op.saved_bytes(shape) - op.core_bytes(shape) if core else 0)  # type: ignore[attr-defined]
        else:
            kept = kept + op.saved_bytes(shape)
    return kept


def offloaded_bytes(kind: LayerKind, mode: str, shape: Shape) -> Num:
    """Return the bytes that go to host memory and come back in one forward and backward pass."""
    if mode != "offload" or kind.role != "block":
        return 0.0 * shape.tokens
    return saved_bytes(kind, "none", shape)


def working_bytes(kind: LayerKind, mode: str, shape: Shape) -> Num:
    """Return what lives only while the layer runs: restored tensors, gradients of one product, logits.

    With ``offload`` the neighbour's tensors travel while the layer's own are in use. Keys and values that
    come from other ranks, and a quantised weight that is expanded for its product, count as well.
    """
    restored = saved_bytes(kind, "none", shape) - saved_bytes(kind, mode, shape)
    transient: Num = 0.0
    for op in kind.operators:
        transient = np.maximum(transient, _transient(kind, op, shape))
    return (2 if mode == "offload" else 1) * restored + transient


def _transient(kind: LayerKind, op: Operator, shape: Shape) -> Num:
    """Return what one operator holds beside what is saved."""
    if isinstance(op, CrossEntropy | Attention | ChunkedScan | DeltaRule):
        return op.transient_bytes(shape)
    if not isinstance(op, Gemm | ExpertGemm) or kind.role != "block":
        return 0.0
    n, k = op.local_dims(shape)
    groups = op.local_experts(shape) if isinstance(op, ExpertGemm) else 1
    expanded = groups * n * k * shape.element_bytes * (op.stored_bytes is not None)
    return groups * op.rows(shape) * (n + k) * shape.element_bytes + expanded
