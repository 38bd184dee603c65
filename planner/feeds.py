"""Feeds: what treats each token alone, the dense MLP."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import wide

GATED_BACKWARD = 5 / 3
"""A gated activation reads both branches; its backward pass reads them and the gradient and writes two
gradients: 5 f for the forward pass' 3 f."""
PLAIN_BACKWARD = 1.5
"""The same of one branch: input and gradient read, one gradient written: 3 f for 2 f."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense MLP; a width that is None is the decoder's ``ffn``."""

    width: int | None = None
    label: ClassVar[str] = "dense"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its width."""
        return f"dense{self.width or ''}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return up (and gate), activation and down products between their boundaries."""
        body = mlp(spec, self.width or spec.ffn, "")
        return Boundary("mlp_enter", "enter", spec.hidden), *body, Boundary("mlp_exit", "exit", spec.hidden)


def mlp(spec: DecoderSpec, width: int, prefix: str) -> tuple[Operator, ...]:
    """Return up (and gate), activation and down products, collectives left out."""
    branches = 1 + spec.gated
    part = Part(width, width, "ffn columns")
    return (
        Gemm(
            prefix + ("gate_up" if spec.gated else "up"),
            wide(spec.hidden),
            (part,) * branches,
            "column",
            spec.mlp_bias,
            saves_output=True,
        ),
        Pointwise(
            f"{prefix}activation",
            "tensor",
            branches * width,
            width,
            saves=width,
            weights=spec.activation_weights,
            units=width,
            backward_ratio=GATED_BACKWARD if spec.gated else PLAIN_BACKWARD,
            light=True,
            feeds_product=True,
            group="activation",
            gate=spec.gate,
        ),
        Gemm(f"{prefix}down", part, (wide(spec.hidden),), "row", spec.mlp_bias),
    )
