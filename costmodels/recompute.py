"""What each recompute mode keeps of a layer for its backward pass, and what it runs again.

- ``none`` keeps every saved tensor.
- ``selective`` drops what light operators save (norms, activation functions) and, where scores go through
  memory, the attention core's, and runs these again in the backward pass (arXiv 2205.05198, section 5).
- ``moe`` drops the whole expert sub-block as well, router to combine (Megatron ``--recompute-modules moe``).
- ``offload`` moves what ``none`` keeps to host memory and back; nothing runs again.
- ``full`` keeps the layer's input alone and runs the layer forward again (arXiv 1604.06174); stacks whose
  checkpoint stops early (PyTorch) skip the last product and its collective.

A kind may say itself which operators ``selective`` runs again (``LayerKind.again``, from a list of
:mod:`~meshwright.costmodels.modules`), or that a policy tells operator by operator which outputs are kept
(:mod:`~meshwright.costmodels.by_operator`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.alive import fullest_bytes
from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.by_operator import kept_bytes, kept_shares
from meshwright.costmodels.modules import EXPERT
from meshwright.costmodels.moe import ExpertGemm
from meshwright.costmodels.operators import LayerKind, Operator
from meshwright.costmodels.product import Product
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.work import Shape

MODES = ("none", "selective", "moe", "offload", "full")


def has_experts(kind: LayerKind) -> bool:
    """Return whether a kind holds routed experts: the only ones with a ``moe`` mode of their own."""
    return any(isinstance(op, ExpertGemm) for op in kind.operators)


def _chosen(kind: LayerKind, op: Operator, mode: str) -> bool:
    """Return whether ``selective`` (``moe``) recompute runs an operator again."""
    if mode == "moe" and isinstance(op, EXPERT):
        return True
    if kind.again is not None:
        return op.name in kind.again
    return op.light or (isinstance(op, Attention) and not op.flash)


def repeated(kind: LayerKind, mode: str, profile: Profile) -> tuple[Operator, ...]:
    """Return the operators that a recompute mode runs again (none for embedding and head)."""
    if mode in ("none", "offload") or kind.role != "block" or not kind.backward:
        return ()
    if mode != "full" and not kind.by_operator:
        return tuple(op for op in kind.operators if _chosen(kind, op, mode))
    products = [i for i, op in enumerate(kind.operators) if isinstance(op, Product)]
    stop = len(kind.operators) if profile.recompute_exit or not products else products[-1]
    return kind.operators[:stop]


def repeated_shares(kind: LayerKind, mode: str, profile: Profile) -> dict[str, Num]:
    """Return by name what share of an operator a recompute mode runs again; none where it is not named."""
    partly = kind.by_operator and mode != "full"
    kept = kept_shares(kind) if partly else {}
    return {op.name: 1.0 - kept.get(op.name, 0.0) for op in repeated(kind, mode, profile)}


def input_bytes(kind: LayerKind, shape: Shape) -> Num:
    """Return the bytes of a layer's input on one rank (none for the embedding, whose input is ids)."""
    whole = shape.tokens * kind.hidden * shape.element_bytes / shape.sequence_split
    return 0.0 * whole if kind.role == "embedding" else whole


def saved_bytes(kind: LayerKind, mode: str, shape: Shape, each: Mapping[str, Num] | None = None) -> Num:
    """Return the bytes that a layer keeps on the device for its backward pass under a recompute mode.

    Parameters
    ----------
    each
        What every operator saves, by its name (:func:`saved_by_operator`), if at hand.
    """
    kept = input_bytes(kind, shape)
    if not kind.backward:
        return 0.0 * kept
    if mode == "full" and kind.role == "block":
        return kept
    if mode == "offload" and kind.role == "block":
        return 0.0 * kept
    saved = saved_by_operator(kind, shape) if each is None else each
    partly = mode in ("selective", "moe") and kind.role == "block"
    if partly and kind.by_operator:
        return kept + kept_bytes(kind, shape)
    for op in kind.operators:
        if partly and _chosen(kind, op, mode):
            core = isinstance(op, Attention) and not op.light
            kept = kept + (saved[op.name] - op.core_bytes(shape) if core else 0)  # type: ignore[attr-defined]
        else:
            kept = kept + saved[op.name]
    return kept


def saved_by_operator(kind: LayerKind, shape: Shape) -> dict[str, Num]:
    """Return the bytes that each operator keeps for its backward pass, by its name."""
    return {op.name: op.saved_bytes(shape) for op in kind.operators}


class ModeBytes(NamedTuple):
    """Bytes of a layer under each recompute mode, in the order of :data:`MODES`.

    ``saved`` bytes stay on the device between forward and backward pass, ``offloaded`` ones in host memory;
    ``working`` ones live only while the layer runs (restored tensors, gradients of one product, logits).
    With ``offload`` the neighbour's tensors travel while the layer's own are in use. Keys and values that
    come from other ranks, and a quantised weight that is expanded for its product, count as working.
    """

    saved: tuple[Num, ...]
    working: tuple[Num, ...]
    offloaded: tuple[Num, ...]


def mode_bytes(kind: LayerKind, shape: Shape, profile: Profile) -> ModeBytes:
    """Return what a layer saves, holds and offloads under each mode."""
    each = saved_by_operator(kind, shape)
    saved = {mode: saved_bytes(kind, mode, shape, each) for mode in MODES}
    everything, moves = saved["none"], kind.role == "block"
    beyond = fullest_bytes(kind, shape, profile, input_bytes(kind, shape), each) - everything
    keys = _key_bytes(kind, shape)
    return ModeBytes(
        tuple(kept + _handed(kind, m, profile) * keys for m, kept in saved.items()),
        tuple((2 if m == "offload" else 1) * (everything - kept) + beyond for m, kept in saved.items()),
        tuple(everything if m == "offload" and moves else 0.0 * shape.tokens for m in MODES),
    )


def _key_bytes(kind: LayerKind, shape: Shape) -> Num:
    """Return the bytes of a layer's keys and values."""
    cores = (op.key_bytes(shape) for op in kind.operators if isinstance(op, Attention))
    return sum(cores, start=np.float64(0.0))


def _handed(kind: LayerKind, mode: str, profile: Profile) -> Num:
    """Return how often a step's outputs keep the keys and values of a block, beside what is saved.

    Where the core's own inputs are kept for the backward pass, one copy is these.
    """
    own = kind.backward and mode not in ("full", "offload")
    return np.maximum(np.asarray(profile.kept_keys) - own, 0.0)
