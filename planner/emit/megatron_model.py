"""The shape of a model as Megatron-LM's arguments, as far as the model's file gave it."""

from typing import Final

from meshwright.costmodels.recompute import has_experts
from meshwright.planner.graph import ModelGraph

POSITIONS: Final = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}


def model_flags(model: ModelGraph, length: int) -> dict[str, str | None]:
    """Return sizes of a dense decoder; a gated feed is said to be SwiGLU."""
    a = model.attributes
    found: dict[str, str | None] = {
        "--num-layers": str(len(model.block_layers)),
        "--hidden-size": str(model.hidden_size),
        "--max-position-embeddings": str(max(length, model.max_sequence_length or 0)),
        "--make-vocab-size-divisible-by": "128",
    }
    sizes = {"--ffn-hidden-size": "ffn", "--num-attention-heads": "heads", "--kv-channels": "head_dim"}
    found |= {flag: str(a[name]) for flag, name in sizes.items() if a.get(name)}
    if a.get("kv_heads") and a["kv_heads"] != a.get("heads"):
        found |= {"--group-query-attention": None, "--num-query-groups": str(a["kv_heads"])}
    if a.get("positions") in POSITIONS:
        found["--position-embedding-type"] = POSITIONS[str(a["positions"])]
    switches = {"--swiglu": a.get("gated") is True, "--untie-embeddings-and-output-weights": not model.tied}
    return found | {flag: None for flag, on in switches.items() if on}


def moe_flags(model: ModelGraph) -> dict[str, str | None]:
    """Return sizes of the experts, and which layers have them; nothing without experts."""
    a = model.attributes
    routed = [has_experts(model.kinds[model.layer_kinds[i]]) for i in model.block_layers]
    if not any(routed):
        return {}
    found: dict[str, str | None] = {}
    sizes = {"--num-experts": "experts", "--moe-router-topk": "topk", "--moe-ffn-hidden-size": "expert_ffn"}
    found |= {flag: str(a[name]) for flag, name in sizes.items() if a.get(name)}
    if a.get("shared"):
        found["--moe-shared-expert-intermediate-size"] = str(a["shared"])
    if not all(routed):
        found["--moe-layer-freq"] = "(" + "+".join(_runs(routed)) + ")"
    return found | {"--moe-grouped-gemm": None, "--moe-token-dispatcher-type": "alltoall"}


def _runs(routed: list[bool]) -> list[str]:
    """Return which layers have experts in Python's notation: ``[0]*3``, ``[1]*58``."""
    found: list[tuple[bool, int]] = []
    for is_routed in routed:
        if found and found[-1][0] == is_routed:
            found[-1] = (is_routed, found[-1][1] + 1)
        else:
            found.append((is_routed, 1))
    return [f"[{int(value)}]*{count}" for value, count in found]


def missing(model: ModelGraph) -> list[str]:
    """Return which of the model's traits the flags do not say."""
    traits = "normalisation, biases, rotary base, latent attention, windows, routing loss"
    return [
        f"Add what the model's shape leaves open ({traits}; `--swiglu` stands for any gated feed): "
        "no flag here says it, and the price does not depend on most of it."
    ]
