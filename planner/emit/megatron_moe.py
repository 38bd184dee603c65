"""A decoder's mixture of experts as Megatron-LM's arguments, and what of it no argument says."""

from collections.abc import Iterator
from itertools import groupby

from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.experts import Experts
from meshwright.planner.graph import ModelGraph
from meshwright.planner.pattern import layers_of

Flags = dict[str, str | None]
"""Flags with their values; None: a switch."""


def moe_flags(model: ModelGraph, spec: DecoderSpec) -> Flags:
    """Return sizes of the experts, which layers have them, and how tokens choose; nothing without experts."""
    feeds = [layer.feed for layer in layers_of(spec)]
    routed = [isinstance(feed, Experts) for feed in feeds]
    one = next((feed for feed in feeds if isinstance(feed, Experts)), None)
    if one is None:
        return {}
    found: Flags = {
        "--num-experts": str(one.experts),
        "--moe-router-topk": str(one.topk),
        "--moe-ffn-hidden-size": str(one.width),
    }
    if one.shared:
        found["--moe-shared-expert-intermediate-size"] = str(one.shared)
        found |= {"--moe-shared-expert-gate": None} if one.shared_gate else {}
    if one.latent:
        found["--moe-latent-size"] = str(one.latent)
    if not all(routed):
        found["--moe-layer-freq"] = runs(routed)
    return {
        **found,
        **_router(model, one),
        "--moe-grouped-gemm": None,
        "--moe-token-dispatcher-type": "alltoall",
    }


def _router(model: ModelGraph, experts: Experts) -> Flags:
    """Return scores, groups, scale and balance of the router."""
    a = model.attributes
    sigmoid = a.get("router_score") == "sigmoid"
    found: Flags = {}
    if sigmoid:
        found["--moe-router-score-function"] = "sigmoid"
    elif a.get("router_normalised") is False:
        found["--moe-router-pre-softmax"] = None
    if experts.groups and experts.node_limit and experts.groups > 1:
        found["--moe-router-num-groups"] = str(experts.groups)
        found["--moe-router-group-topk"] = str(experts.node_limit)
    if a.get("router_scale") not in (None, 1, 1.0):
        found["--moe-router-topk-scaling-factor"] = str(a["router_scale"])
    if a.get("router_choice") == "noaux_tc":
        # A bias that is moved outside the gradient balances the load (arXiv 2412.19437, section 2.1.2).
        balance: Flags = {"--moe-router-load-balancing-type": "none", "--moe-router-dtype": "fp32"}
        return {**found, "--moe-router-enable-expert-bias": None, **balance}
    if "router_loss" in a:
        found["--moe-router-load-balancing-type"] = "aux_loss"
        found["--moe-aux-loss-coeff"] = str(a["router_loss"])
    return found


def moe_unsaid(model: ModelGraph, spec: DecoderSpec) -> Iterator[str]:
    """Return which traits of the experts no flag says, or the model's file does not."""
    found = {layer.feed for layer in layers_of(spec) if isinstance(layer.feed, Experts)}
    if not found:
        return
    a, normalised = model.attributes, model.attributes.get("router_normalised")
    score = a.get("router_score")
    traits = {
        "experts of several sizes": len(found) > 1,
        "biases of experts": any(f.bias or f.output_bias for f in found),
        "the router's bias": any(f.router_bias for f in found),
        "the norm behind the experts": any(f.output_norm for f in found),
        f"the router's score {score}": score not in (None, "softmax", "sigmoid"),
        "sigmoid scores that are not normalised": score == "sigmoid" and normalised is False,
    }
    yield from (trait for trait, given in traits.items() if given)
    if a.get("router_choice") != "noaux_tc" and "router_loss" not in a:
        yield "the loss that balances the router (not in the model's file)"


def runs(pattern: list[bool]) -> str:
    """Return which layers have a trait in Python's notation: ``([0]*3+[1]*58)``."""
    return "(" + "+".join(f"[{int(value)}]*{len(list(same))}" for value, same in groupby(pattern)) + ")"
