"""Mixers of linear attention: gated delta nets, Kimi's delta attention, lightning attention."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.convolution import CausalConvolution
from meshwright.costmodels.delta import DeltaRule
from meshwright.costmodels.operators import Operator
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.scan import ChunkedScan
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import wide
from meshwright.planner.recurrent import between, gated


def _keys(heads: int, dim: int) -> Part:
    return Part(heads * dim, heads, "linear key heads", replicable=True)


def _values(heads: int, dim: int) -> Part:
    return Part(heads * dim, heads, "linear value heads")


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """A gated delta net (arXiv 2412.06464): queries, keys, values and gate, convolution, delta rule, gate.

    Attributes
    ----------
    key_heads, value_heads, key_dim, value_dim
        Heads of queries and keys, of values, and their widths.
    conv_width
        Of the convolution over queries, keys and values.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    label: ClassVar[str] = "delta"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its heads."""
        return f"delta{self.value_heads}x{self.value_dim}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return in, decays and strengths, convolution, delta rule, gated norm, out."""
        h, k = spec.hidden, _keys(self.key_heads, self.key_dim)
        v, gate = _values(self.value_heads, self.value_dim), _values(self.value_heads, 1)
        rule = DeltaRule("delta_rule", self.value_heads, self.key_heads, self.key_dim, self.value_dim)
        return between(
            h,
            (
                Gemm("delta_in", wide(h), (k, k, v, v), "column", saves_output=True),
                Gemm("delta_decay", wide(h), (gate, gate), "column", saves_output=True),
                CausalConvolution("delta_conv", (k, k, v), self.conv_width),
                rule,
                gated("delta_gate", v, weights=self.value_dim),
                Gemm("delta_out", v, (wide(h),), "row"),
            ),
        )


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """Kimi delta attention (arXiv 2510.26692): a decay for each feature of a key, from low-rank products.

    Attributes
    ----------
    heads, head_dim
        Of queries, keys and values alike; ``head_dim`` is also the rank of decay and gate.
    conv_width
        Of the convolution over queries, keys and values.
    """

    heads: int
    head_dim: int
    conv_width: int = 4
    label: ClassVar[str] = "delta"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its heads."""
        return f"delta{self.heads}x{self.head_dim}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return in, strengths, decay and gate (down and up), convolution, delta rule, gated norm, out."""
        h, dim = spec.hidden, self.head_dim
        v, strength = _values(self.heads, dim), _values(self.heads, 1)
        rule = DeltaRule("delta_rule", self.heads, self.heads, dim, dim, head_weights=dim + 1, gates=dim)
        return between(
            h,
            (
                Gemm("delta_in", wide(h), (v, v, v), "column", saves_output=True),
                Gemm("delta_strength", wide(h), (strength,), "column", saves_output=True),
                Gemm("delta_down", wide(h), (wide(dim), wide(dim)), "replicated", saves_output=True),
                Gemm("delta_decay", wide(dim), (v,), "column", saves_output=True),
                Gemm("delta_gate_up", wide(dim), (v,), "column", saves_output=True),
                CausalConvolution("delta_conv", (v, v, v), self.conv_width),
                rule,
                gated("delta_gate", v, weights=dim),
                Gemm("delta_out", v, (wide(h),), "row"),
            ),
        )


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Lightning attention (arXiv 2401.04658; MiniMax-01, arXiv 2501.08313): one fixed decay a head.

    ``chunk`` tokens are one block of products.
    """

    heads: int
    head_dim: int
    chunk: int = 256
    label: ClassVar[str] = "lightning"
    feeds_products: ClassVar[bool] = True

    @property
    def detail(self) -> str:
        """Its heads."""
        return f"lightning{self.heads}x{self.head_dim}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return query, key and value product with the gate's, scan, gated norm, out."""
        h, dim = spec.hidden, self.head_dim
        v = _values(self.heads, dim)
        scan = ChunkedScan("scan", self.heads, dim, self.heads, dim, self.chunk, head_weights=0)
        return between(
            h,
            (
                Gemm("linear_qkv", wide(h), (v, v, v, v), "column", saves_output=True),
                scan,
                gated("linear_gate", v, weights=int(v.features)),
                Gemm("linear_out", v, (wide(h),), "row"),
            ),
        )
