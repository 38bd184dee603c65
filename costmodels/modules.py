"""Modules of a layer that selective recompute may name, as Megatron-LM's ``--recompute-modules`` names them.

Every operator of a block belongs to the modules that its kind, name and place say; a list of modules stands
for all operators of any of them. Where no list is given, selective recompute takes ``norms``, ``activations``
and the cores whose scores go through memory (:mod:`meshwright.costmodels.recompute`); the mode ``moe`` adds
the module of that name.

===================  ==============================================================================
``core_attn``        the attention core; flash attention's frees its log-sum-exp alone
``layernorm``        the norms before mixer and feed
``mla_up_proj``      up-projections of latent attention, their rotation, queries and keys put together
``mlp``              a dense feed from its gathered input to its last product
``moe``              router, exchanges, experts' products and activation
``moe_act``          the experts' activation
``shared_experts``   the experts that every token visits
``norms``            all norms (none of Megatron-LM's modules)
``activations``      all activation functions (none of Megatron-LM's modules)
``by_operator``      all but the outputs that PyTorch's selective checkpoint keeps in torchtitan
                     (:mod:`~meshwright.costmodels.by_operator`; none of Megatron-LM's modules)
===================  ==============================================================================

Source: Megatron-Core ``TransformerConfig.recompute_modules``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.moe import Exchange, ExpertActivation, ExpertGemm, Router
from meshwright.costmodels.operators import LayerKind, Operator

EXPERT: Final = (Router, Exchange, ExpertGemm, ExpertActivation)
"""Operators between a layer's tokens and its routed experts."""

_UP: Final = ("q_up", "kv_up", "rotary", "keys")
_MLP: Final = ("mlp_enter", "gate_up", "up", "activation", "down", "mlp_exit")


def _is_norm(op: Operator) -> bool:
    return op.light and getattr(op, "group", "") == "norm"


MODULES: Final[Mapping[str, Callable[[Operator], bool]]] = {
    "core_attn": lambda op: isinstance(op, Attention),
    "layernorm": lambda op: _is_norm(op) and op.name in ("pre_attention_norm", "pre_mlp_norm"),
    "mla_up_proj": lambda op: op.name in _UP,
    "mlp": lambda op: op.name in _MLP,
    "moe": lambda op: isinstance(op, EXPERT),
    "moe_act": lambda op: isinstance(op, ExpertActivation),
    "shared_experts": lambda op: op.name.startswith("shared_"),
    "norms": _is_norm,
    "activations": lambda op: isinstance(op, ExpertActivation) or getattr(op, "group", "") == "activation",
    "by_operator": lambda op: not isinstance(op, Attention),
}
"""What belongs to each module, operator by operator."""


def _present(kind: LayerKind, module: str) -> bool:
    """Return whether a kind has a module: a rotation alone is no up-projection of a latent."""
    return module != "mla_up_proj" or any(op.name == "kv_up" for op in kind.operators)


def operators_of(kind: LayerKind, modules: Iterable[str]) -> frozenset[str]:
    """Return the names of a kind's operators that belong to any of some modules."""
    told = [MODULES[name] for name in modules if _present(kind, name)]
    return frozenset(op.name for op in kind.operators if any(belongs(op) for belongs in told))


def modules_of(kind: LayerKind) -> tuple[str, ...]:
    """Return the modules that a kind has."""
    return tuple(name for name in MODULES if operators_of(kind, (name,)))
