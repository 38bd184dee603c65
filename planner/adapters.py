"""Low-rank adapters beside a product: ``y = W x + B (A dropout(x))`` (LoRA, arXiv 2106.09685).

One adapter stands beside each linear module that the framework has, as PEFT and torchtune place them: a
product that the graph fuses (queries, keys and values; gate and up) gets one a part, unless the family's
own class is fused as well (:data:`FUSED`).

Sharding follows the product (Megatron-Bridge, torchtune): beside a column-parallel product ``A`` is whole
on each rank and ``B`` column-parallel; beside a row-parallel one ``A`` is row-parallel and ``B`` whole, its
result being added to the partial sums before they are reduced.

Kept for the backward pass: the product's input (by whom it was kept before), ``rank`` features of each
adapter's inner result, and with dropout a mask and a copy of the input for each adapter.
Left out: the reduction over ``tp`` of the gradients of weights that are whole on each rank (``rank`` rows),
and PEFT's casts to fp32 of inputs of fp32 adapters outside autocast.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.costmodels.moe import ExpertGemm
from meshwright.costmodels.operators import Operator, Pointwise, Region
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.planner.tuning import ALL_LINEAR, ATTENTION, EXPERTS, MLP, Tuning

_FUSED_QKV: Final = (
    "bloom chatglm codegen dbrx falcon gpt2 gpt_bigcode gpt_neox internlm2 mpt nomic_bert persimmon phi3 "
    "phi3small qwen"
)
FUSED: Final[Mapping[str, frozenset[str]]] = {
    "qkv": frozenset(_FUSED_QKV.split()),
    "gate_up": frozenset(("chatglm", "glm", "glm4", "phi3", "phi3small")),
}
"""Families (``model_type``) whose classes compute these products by one linear module."""

_PREFIXES: Final = ("shared_", "expert_", "cross_", "mlp_", "attention_")
"""Parts of a layer that hold products of the same names."""
_MODULES: Final = {"out": "o", "q_down": "q_a", "q_up": "q_b", "kv_down": "kv_a", "kv_up": "kv_b"}
"""Frameworks' names of products that the graph calls otherwise."""
_FEED: Final = ("gate_up", "up", "down")


@dataclass(frozen=True, slots=True)
class Module:
    """A linear module of the framework: all outputs of a product, or some of them."""

    name: str
    outputs: tuple[Part, ...]


def modules(op: Gemm | ExpertGemm, family: str) -> tuple[Module, ...]:
    """Return the linear modules that a product stands for.

    The last word of its name says what it fuses: ``qkv``, ``kv``, ``gate_up``; a gate beside the queries
    (Qwen3-Next) belongs to their module.
    """
    stem = _stem(op.name)
    last = stem.rsplit("_", 1)[-1]
    if stem == "gate_up":
        letters, group = ["gate", "up"], "gate_up"
    elif len(last) > 1 and set(last) <= set("qkv"):
        letters, group = list(last), "qkv"
    else:
        return (Module(_MODULES.get(stem, stem), op.outputs),)
    extra = len(op.outputs) - len(letters)
    if family in FUSED[group] or extra < 0:
        return (Module(stem, op.outputs),)
    first = Module(letters[0], op.outputs[: 1 + extra])
    rest = zip(letters[1:], op.outputs[1 + extra :], strict=True)
    return first, *(Module(letter, (part,)) for letter, part in rest)


def _stem(name: str) -> str:
    """Return a product's name without the part of the layer that it belongs to."""
    return next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)


def is_feed(name: str) -> bool:
    """Return whether a product belongs to an MLP (else to attention or another mixer), by its name."""
    return _stem(name) in _FEED


def targeted(
    op: Gemm | ExpertGemm, family: str, targets: Sequence[str]
) -> tuple[tuple[frozenset[str], Module], ...]:
    """Return the modules of a product that get adapters, each with the targets that name it."""
    groups = [EXPERTS] if op.expert else [ALL_LINEAR, MLP if is_feed(op.name) else ATTENTION]
    found = []
    for module in modules(op, family):
        own = [] if op.expert else [module.name]
        names = {*groups, *own, op.name}
        hits = frozenset(t for t in targets if t in names or _plain(t) in own)
        if hits:
            found.append((hits, module))
    return tuple(found)


def _plain(target: str) -> str:
    """Return a module's name without the ending that PEFT's users write (``q_proj``)."""
    return target.removesuffix("_with_mqa").removesuffix("_proj")


def adapters(op: Gemm | ExpertGemm, chosen: Sequence[Module], tuning: Tuning) -> tuple[Operator, ...]:
    """Return what runs beside a product for the modules that have adapters, in front of its own kernel."""
    if isinstance(op, ExpertGemm):
        return tuple(_expert_pairs(op, chosen, tuning.rank))
    return (*_dropout(op, len(chosen), tuning.dropout), *_pairs(op, chosen, tuning.rank))


def addition(op: Gemm | ExpertGemm, chosen: Sequence[Module]) -> tuple[Operator, ...]:
    """Return the sum of the product's and the adapters' results.

    Forward it reads both and writes one; backward the input's gradients are added likewise, once for each
    adapter. An expert's sums are left out (they are fused into its grouped kernel or small beside it).
    """
    if isinstance(op, ExpertGemm) or op.on == "context":
        return ()
    wide = sum(p.features for module in chosen for p in module.outputs)
    units = chosen[0].outputs[0].units if op.shard == "column" else 1
    region: Region = "sequence" if op.on == "sequence" else "tensor"
    ratio = len(chosen) * op.inputs.features / wide
    return (Pointwise(f"{op.name}.lora_sum", region, 2 * wide, wide, units=units, backward_ratio=ratio),)


def _pairs(op: Gemm, chosen: Sequence[Module], rank: int) -> Iterator[Gemm]:
    inner = Part(rank, rank, "adapter ranks")
    into: Literal["row", "replicated"] = "row" if op.shard == "row" else "replicated"
    out: Literal["column", "replicated"] = "column" if op.shard == "column" else "replicated"
    for module in chosen:
        name = f"{op.name}.{module.name}"
        yield Gemm(f"{name}.lora_a", op.inputs, (inner,), into, saves_output=True, light=op.light, on=op.on)
        yield Gemm(f"{name}.lora_b", inner, module.outputs, out, light=op.light, on=op.on)


def _expert_pairs(op: ExpertGemm, chosen: Sequence[Module], rank: int) -> Iterator[ExpertGemm]:
    """Yield an adapter for each expert; what its product does not split is whole on each ``etp`` rank."""
    inner = Part(rank, 1, "adapter ranks", replicable=True, axis="expert_tensor")
    for module in chosen:
        name = f"{op.name}.{module.name}"
        yield ExpertGemm(
            f"{name}.lora_a", op.experts, op.topk, op.inputs, (inner,), op.shard, saves_output=True
        )
        yield ExpertGemm(f"{name}.lora_b", op.experts, op.topk, inner, module.outputs, op.shard)


def _dropout(op: Gemm, copies: int, probability: float) -> tuple[Pointwise, ...]:
    """Return the dropped-out input, one copy and mask for each adapter."""
    if not probability or op.on == "context":
        return ()
    wide, units = copies * op.inputs.features, op.inputs.units if op.shard == "row" else 1
    return (
        Pointwise(
            f"{op.name}.lora_dropout",
            "sequence" if op.on == "sequence" else "tensor",
            wide,
            wide,
            saves=wide,
            mask_features=wide,
            units=units,
            backward_ratio=1.0,
        ),
    )
