"""Mixers that carry a state from token to token: Mamba, Mamba-2, and two mixers side by side.

A scan stands between a product that leads in and one that leads out, behind a short convolution, and its
output is multiplied by a gate. The projections take part in tensor parallelism as an MLP's do: columns in,
rows out.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.costmodels.convolution import CausalConvolution
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.reduction import PartialSum
from meshwright.costmodels.scan import ChunkedScan, SelectiveScan
from meshwright.planner.decoder import DecoderSpec, Sublayer
from meshwright.planner.feeds import GATED_BACKWARD
from meshwright.planner.pieces import wide


def between(hidden: int, inner: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return operators of the tensor region between its boundaries."""
    return Boundary("mixer_enter", "enter", hidden), *inner, Boundary("mixer_exit", "exit", hidden)


def gated(name: str, part: Part, *, weights: int = 0) -> Pointwise:
    """Return the gate on a scan's output, with the norm that is fused into it where it has ``weights``."""
    width = part.features
    return Pointwise(
        name,
        "tensor",
        2 * width,
        width,
        saves=width,
        weights=weights,
        units=part.units,
        backward_ratio=GATED_BACKWARD,
        light=True,
        feeds_product=True,
    )


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba's mixer (arXiv 2312.00752, section 3.4): input and gate, convolution, selective scan.

    Attributes
    ----------
    channels, state
        Inner width and states a channel.
    rank
        Width from which the time step is projected.
    conv_width, conv_bias
        Of the convolution.
    bias
        Whether the products that lead in and out have one.
    norms
        Whether time step, B and C are normalised, with weights (Jamba) or without (Falcon-Mamba).

    Channels are split over ``tp``: the product that makes time step, B and C then sums over ranks.
    """

    channels: int
    state: int
    rank: int
    conv_width: int = 4
    conv_bias: bool = True
    bias: bool = False
    norms: Literal["none", "plain", "weighted"] = "none"
    label: ClassVar[str] = "mamba"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its channels."""
        return f"mamba{self.channels}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return in, convolution, time step with B and C, scan and out; fused kernels keep no convolution."""
        part = Part(self.channels, self.channels, "scan channels")
        selected = self.rank + 2 * self.state
        return between(
            spec.hidden,
            (
                Gemm("mamba_in", wide(spec.hidden), (part, part), "column", self.bias, saves_output=True),
                CausalConvolution(
                    "mamba_conv",
                    (part,),
                    self.conv_width,
                    self.conv_bias,
                    saves_output=self.norms == "weighted",
                ),
                Gemm("mamba_select", part, (wide(selected),), "row", saves_output=True),
                PartialSum("mamba_select_sum", selected),
                *self._norm(selected),
                Gemm("mamba_step", wide(self.rank), (part,), "column", True, saves_output=True),
                SelectiveScan("mamba_scan", self.channels, self.state),
                Gemm("mamba_out", part, (wide(spec.hidden),), "row", self.bias),
            ),
        )

    def _norm(self, width: int) -> tuple[Operator, ...]:
        if self.norms == "none":
            return ()
        weights = width if self.norms == "weighted" else 0
        norm = Pointwise(
            "mamba_norm", "tensor", width, width, saves=width, weights=weights, light=True, group="norm"
        )
        return (norm,)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2's mixer (arXiv 2405.21060, section 7): one product in, convolution, scan in chunks, gate.

    Attributes
    ----------
    heads, head_dim
        Of the inner width.
    groups, state
        Heads of B and C and their width.
    conv_width, conv_bias, bias
        Of the convolution and of the products.
    out_bias
        Whether the product that leads out has a bias, None: as the one that leads in.
    chunk
        Tokens of a chunk.
    norm
        Whether the gated output is normalised, with a weight a feature.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv_width: int = 4
    conv_bias: bool = True
    bias: bool = False
    chunk: int = 256
    norm: bool = True
    out_bias: bool | None = None
    label: ClassVar[str] = "mamba2"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its heads."""
        return f"mamba2-{self.heads}x{self.head_dim}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return in, convolution, scan, gate and out; the fused kernels convolve again in backward."""
        width = self.heads * self.head_dim
        x = Part(width, self.heads, "scan heads")
        step = Part(self.heads, self.heads, "scan heads")
        group = Part(self.groups * self.state, self.groups, "scan groups", replicable=True)
        scan = ChunkedScan("mamba_scan", self.heads, self.head_dim, self.groups, self.state, self.chunk)
        return between(
            spec.hidden,
            (
                Gemm(
                    "mamba_in",
                    wide(spec.hidden),
                    (x, x, group, group, step),
                    "column",
                    self.bias,
                    saves_output=True,
                ),
                CausalConvolution(
                    "mamba_conv", (x, group, group), self.conv_width, self.conv_bias, saves_output=False
                ),
                scan,
                gated("mamba_gate", x, weights=width * self.norm),
                Gemm(
                    "mamba_out",
                    x,
                    (wide(spec.hidden),),
                    "row",
                    self.bias if self.out_bias is None else self.out_bias,
                ),
            ),
        )


@dataclass(frozen=True, slots=True)
class Beside:
    """Mixers that read the same input and are added (Falcon-H1): one pair of boundaries for all.

    Their operators' names differ.
    """

    mixers: tuple[Sublayer, ...]

    @property
    def label(self) -> str:
        """Their labels."""
        return "+".join(m.label for m in self.mixers)

    @property
    def detail(self) -> str:
        """Their details."""
        return "+".join(m.detail for m in self.mixers)

    @property
    def feeds_products(self) -> bool:
        """Whether products alone read the input."""
        return all(m.feeds_products for m in self.mixers)

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return one mixer after the other; partial sums are added before one collective."""
        inner = (op for m in self.mixers for op in m.operators(spec) if not isinstance(op, Boundary))
        return between(spec.hidden, tuple(inner))
