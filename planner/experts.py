"""The mixture of experts as a feed: router, exchange, grouped products, and shared experts beside them."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.moe import Exchange, ExpertActivation, ExpertGemm, Router
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.feeds import GATED_BACKWARD, PLAIN_BACKWARD, mlp
from meshwright.planner.pieces import stream_norm, wide


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of which each token visits a few, and shared ones that all tokens visit.

    Attributes
    ----------
    experts, topk
        Routed experts, and how many of them a token visits.
    width
        Inner width of one routed expert (one branch of a gated one).
    shared
        Inner width of all shared experts together, 0: none.
    shared_gate
        Whether a learned sigmoid scales the shared experts' output (Qwen2-MoE).
    bias
        Whether the routed experts' products have biases.
    router_bias
        Whether the router has a learned bias for each expert; one that is corrected outside the gradient
        (DeepSeek-V3) is no parameter.
    output_bias
        Whether one bias is added to the experts' sum.
    output_norm
        Whether the sum of routed and shared experts is normalised (A.X-K1).
    latent
        Width to which tokens are projected before they are sent to the experts; None: ``hidden``.
    node_limit, groups
        Groups of experts that a token may visit, and how many there are; None: any.
    """

    experts: int
    topk: int
    width: int
    shared: int = 0
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    output_bias: bool = False
    output_norm: bool = False
    latent: int | None = None
    node_limit: int | None = None
    groups: int | None = None
    label: ClassVar[str] = "moe"
    feeds_products: ClassVar[bool] = False  # the router reads its input too

    @property
    def detail(self) -> str:
        """Its number of experts and their width."""
        return f"moe{self.experts}x{self.width}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return router, dispatch, the experts' products, combine, and the shared experts."""
        width = self.latent or spec.hidden
        extra = spec.hidden if self.output_bias else 0
        inward, outward = self._latent(spec)
        return (
            Router("router", spec.hidden, self.experts, self.topk, self.router_bias, extra),
            *inward,
            Exchange("dispatch", "dispatch", width, self.topk, self.node_limit, self.groups),
            *self._products(spec, width),
            Exchange("combine", "combine", width, self.topk, self.node_limit, self.groups),
            *outward,
            *(self._shared(spec) if self.shared else ()),
            *((stream_norm(spec, "experts_norm", keeps_input=True),) if self.output_norm else ()),
        )

    def _latent(self, spec: DecoderSpec) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """Return the projections to the experts' width and back, none where it is the decoder's."""
        if self.latent is None:
            return (), ()
        h, narrow = wide(spec.hidden), wide(self.latent)
        down = Gemm("expert_in", h, (narrow,), "replicated", spec.mlp_bias, on="sequence")
        return (down,), (Gemm("expert_out", narrow, (h,), "replicated", spec.mlp_bias, on="sequence"),)

    def _products(self, spec: DecoderSpec, hidden: int) -> tuple[Operator, ...]:
        """Return the grouped products and the activation between them."""
        f, branches = self.width, 1 + spec.gated
        inner, outer = Part(f, f, "expert columns", axis="expert_tensor"), wide(hidden)
        up = "expert_gate_up" if spec.gated else "expert_up"
        ratio = GATED_BACKWARD if spec.gated else PLAIN_BACKWARD
        first = ExpertGemm(
            up, self.experts, self.topk, outer, (inner,) * branches, "column", self.bias, saves_output=True
        )
        middle = ExpertActivation("expert_activation", self.topk, branches * f, f, f, f, ratio, spec.gate)
        last = ExpertGemm("expert_down", self.experts, self.topk, inner, (outer,), "row", self.bias)
        return first, middle, last

    def _shared(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the shared experts as one dense MLP between boundaries, gated and added."""
        h = spec.hidden
        gate: tuple[Operator, ...] = ()
        if self.shared_gate:
            score = Gemm("shared_gate", wide(h), (wide(1),), "replicated", on="sequence", saves_output=True)
            gate = score, Pointwise("shared_scale", "sequence", h + 1, h, saves=h, light=True)
        return (
            Boundary("shared_enter", "enter", h),
            *mlp(spec, self.shared, "shared_"),
            Boundary("shared_exit", "exit", h),
            *gate,
            Pointwise("shared_sum", "sequence", 2 * h, h, backward_ratio=1.0),
        )
