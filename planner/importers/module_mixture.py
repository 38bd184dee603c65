"""A mixture of experts in a trace: the experts' module, its router, and what lies between them."""

import math
from dataclasses import dataclass

from meshwright.costmodels.moe import Exchange, ExpertActivation, ExpertGemm, Router
from meshwright.costmodels.operators import Operator
from meshwright.costmodels.part import Part
from meshwright.costmodels.work import Gate
from meshwright.planner.feeds import GATED_BACKWARD, PLAIN_BACKWARD
from meshwright.planner.importers.module_nodes import Node
from meshwright.planner.importers.module_sharding import Links
from meshwright.planner.importers.module_trace import TraceError
from meshwright.planner.pieces import wide

BOUND = ("limit", "swiglu_limit", "activation_func_clamp_value")
SCALE = ("alpha", "swiglu_alpha", "glu_linear_offset")
TOPK = ("top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sizes of a mixture of experts.

    Attributes
    ----------
    experts, topk, hidden, width, branches, bias
        As :class:`~meshwright.planner.experts.Experts` has them; ``branches`` is 2 for gated experts.
    router_bias
        Whether the router's product has biases.
    weights
        Parameters of the router.
    absorbed
        Nodes (where they run) that the router stands for: its product, softmax, top-k.
    gate
        How the activation joins its branches.
    """

    experts: int
    topk: int
    hidden: int
    width: int
    branches: int
    bias: bool
    routed: bool
    router_bias: bool
    weights: tuple[str, ...]
    absorbed: tuple[int, ...]
    groups: tuple[int, int] | tuple[None, None] = (None, None)
    gate: Gate = "plain"

    def operators(self, trained: bool) -> tuple[Operator, ...]:
        """Return router, dispatch, products and combine."""
        inner, outer = Part(self.width, self.width, "expert columns", axis="expert_tensor"), wide(self.hidden)
        f, e, k = self.width, self.experts, self.topk
        gated = self.branches > 1
        up = "expert_gate_up" if gated else "expert_up"
        ratio = GATED_BACKWARD if gated else PLAIN_BACKWARD
        router = Router("router", self.hidden, e, k, self.router_bias, trained=trained)
        return (
            *((router,) if self.routed else ()),
            Exchange("dispatch", "dispatch", self.hidden, k, *self.groups),
            ExpertGemm(
                up,
                e,
                k,
                outer,
                (inner,) * self.branches,
                "column",
                self.bias,
                saves_output=True,
                trained=trained,
            ),
            ExpertActivation("expert_activation", k, self.branches * f, f, f, f, ratio, self.gate),
            ExpertGemm("expert_down", e, k, inner, (outer,), "row", self.bias, trained=trained),
            Exchange("combine", "combine", self.hidden, k, *self.groups),
        )


def mixture_of(links: Links, node: Node) -> Mixture:
    """Return the mixture that a module of experts belongs to.

    Raises
    ------
    TraceError
        The number of experts that a token visits cannot be told.
    """
    layout, flow, op = node.layout, links.flow, node.ops[0]
    assert layout is not None
    hidden = next(flow.value(i).shape[-1] for i in op.inputs if flow.value(i).floating)
    up = sum(_other(pair, hidden) for _, pair in layout.up)
    width = _other(layout.down[0][1], hidden)
    router, absorbed = _router(links, node, layout.experts)
    routed = router is not None and router.product is not None and router.product.inputs == hidden
    return Mixture(
        experts=layout.experts,
        topk=_topk(links, node, layout.experts),
        hidden=hidden,
        width=width,
        branches=max(1, up // width),
        bias=len(layout.biases) >= 2,
        routed=routed,
        router_bias=bool(routed and router and router.product and router.product.biases),
        weights=tuple(w for n in links.nodes if routed and n.at in absorbed for w in _weights(n)),
        absorbed=absorbed if routed else (),
        groups=_expert_groups(links, node),
        gate=_gate(links, node),
    )


def _weights(node: Node) -> tuple[str, ...]:
    product = node.product
    return node.weights if product is None else (*node.weights, *product.weights, *product.biases)


def _other(pair: tuple[int, int], hidden: int) -> int:
    """Return the width of a matrix that is not the hidden one (either, if both are)."""
    return pair[0] if pair[1] == hidden else pair[1]


def _topk(links: Links, node: Node, experts: int) -> int:
    """Return the experts that a token visits: the width of the routing indices, or an attribute."""
    values = [links.flow.value(i) for i in node.ops[0].inputs]
    for value in values:
        if not value.floating and len(value.shape) >= 2 and 1 <= value.shape[-1] < experts:
            return value.shape[-1]
    said = links.flow.trace.attribute(node.scope, *TOPK)
    if isinstance(said, int) and 1 <= said <= experts:
        return said
    raise TraceError(
        node.scope,
        f"how many of its {experts} experts a token visits is not said",
        f"an integer attribute {TOPK[0]!r} on the module, or routing indices of shape (tokens, top_k)",
    )


def _expert_groups(links: Links, node: Node) -> tuple[int, int] | tuple[None, None]:
    """Return the groups of experts that a token may visit and all, where the module says so."""
    groups = links.flow.trace.attribute(node.scope, "n_group")
    limit = links.flow.trace.attribute(node.scope, "topk_group")
    limited = isinstance(groups, int) and isinstance(limit, int) and 1 <= limit < groups
    return (limit, groups) if limited else (None, None)


def _gate(links: Links, node: Node) -> Gate:
    """Return how the experts' activation joins its branches, as the module's bound and scale say."""
    own = links.flow.trace.attributes.get(node.scope, {})
    bounded, scaled = (any(_number(own.get(name)) for name in names) for names in (BOUND, SCALE))
    return "plain" if not bounded else "clamped_offset" if scaled else "clamped"


def _number(value: object) -> bool:
    """Return whether a value is a finite number other than zero."""
    return isinstance(value, int | float) and math.isfinite(value) and value != 0


def _router(links: Links, node: Node, experts: int) -> tuple[Node | None, tuple[int, ...]]:
    """Return the product that scores the experts, and all nodes between it and them."""
    router: Node | None = None
    between: list[int] = []
    todo, seen = list(node.reads), set[int]()
    while todo:
        maker = links.maker.get(todo.pop())
        if maker is None or maker.at in seen:
            continue
        seen.add(maker.at)
        if maker.kind == "product" and maker.product is not None and maker.product.outputs == experts:
            router = maker
        elif maker.kind == "pointwise" and _leads(links, maker, node):
            between.append(maker.at)
            todo += maker.reads
    return router, () if router is None else (router.at, *between)


def _leads(links: Links, node: Node, experts: Node) -> bool:
    """Return whether all that a node writes ends in the experts, and part of it began in a router."""
    sinks = [r.sink for r in links.reach(node)]
    origins = [o for root in node.reads for o in links.origins(root)]
    scored = any(
        o.product is not None and o.product.outputs == experts.layout.experts
        for o in origins
        if experts.layout
    )
    return scored and all(s is experts or s is None for s in sinks)
