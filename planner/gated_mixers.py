"""Mixers of a convolution or a recurrence between gates, and a plain product in a mixer's or feed's place."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.costmodels.convolution import CausalConvolution
from meshwright.costmodels.operators import Boundary, Operator
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.recurrence import GatedRecurrence
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import wide
from meshwright.planner.recurrent import between, gated


@dataclass(frozen=True, slots=True)
class RecurrentBlock:
    """Griffin's recurrent block (arXiv 2402.19427, section 2.3): convolution and RG-LRU beside a gate.

    Attributes
    ----------
    width, heads
        Inner width and blocks of the gates.
    conv_width
        Of the convolution.

    All products have biases.
    """

    width: int
    heads: int
    conv_width: int = 4
    label: ClassVar[str] = "recurrent"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its width."""
        return f"recurrent{self.width}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return both branches' product, convolution, recurrence, gate, out."""
        part, h = Part(self.width, self.heads, "recurrent heads"), spec.hidden
        return between(
            h,
            (
                Gemm("recurrent_in", wide(h), (part, part), "column", True, saves_output=True),
                CausalConvolution("recurrent_conv", (part,), self.conv_width, True),
                GatedRecurrence("recurrence", self.width, self.heads),
                gated("recurrent_gate", part),
                Gemm("recurrent_out", part, (wide(h),), "row", True),
            ),
        )


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """LFM2's mixer: a convolution of ``width`` tokens between two gates, as wide as the model."""

    width: int
    bias: bool = False
    label: ClassVar[str] = "conv"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its reach."""
        return f"conv{self.width}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return both gates and the input, gate, convolution, gate, out."""
        h = spec.hidden
        part = Part(h, h, "convolution channels")
        return between(
            h,
            (
                Gemm("conv_in", wide(h), (part,) * 3, "column", self.bias, saves_output=True),
                gated("conv_gate_in", part),
                CausalConvolution("conv", (part,), self.width, self.bias),
                gated("conv_gate_out", part),
                Gemm("conv_out", part, (wide(h),), "row", self.bias),
            ),
        )


@dataclass(frozen=True, slots=True)
class SquareProduct:
    """One product of the model's width in the place of a mixer or a feed (models found by search).

    Row-parallel: each rank multiplies its share of the gathered input.
    """

    place: Literal["attention", "mlp"]
    bias: bool = False
    label: ClassVar[str] = "linear"
    detail: ClassVar[str] = "linear"
    feeds_products: ClassVar[bool] = True

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the product between its boundaries."""
        h, name = spec.hidden, f"{self.place}_linear"
        part = Part(h, h, "hidden features")
        return (
            Boundary(f"{self.place}_enter", "enter", h),
            Gemm(name, part, (wide(h),), "row", self.bias),
            Boundary(f"{self.place}_exit", "exit", h),
        )
