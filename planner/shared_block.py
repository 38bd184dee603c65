"""A transformer block that several layers share, before a mixer of their own (Zamba2, arXiv 2411.15242)."""

from dataclasses import dataclass

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.shared import SharedGemm
from meshwright.planner.decoder import DecoderSpec, Sublayer
from meshwright.planner.feeds import GATED_BACKWARD
from meshwright.planner.mixers import rotary
from meshwright.planner.pieces import wide


@dataclass(frozen=True, slots=True)
class BehindSharedBlock:
    """Attention and MLP with shared weights, a product of the layer's own, then ``mixer`` on the sum.

    The block reads the layer's input beside the token embedding, twice ``hidden`` wide. What each layer adds
    to the shared products (``adapter`` of low rank) and the product behind them are its own.

    Attributes
    ----------
    mixer
        What stands behind the block.
    owner
        Whether this layer counts the shared weights (the first to use a block); others use them for nothing.
    adapter
        Rank of the layer's own part of gate and up product.
    attention_adapter
        Whether queries, keys and values have such a part as well.
    bias
        Whether the MLP's products have biases.

    Left out: the copy of the shared weights, and the sum of their gradients, where a pipeline cuts between
    two layers that share them.
    """

    mixer: Sublayer
    owner: bool
    adapter: int
    attention_adapter: bool = False
    bias: bool = False

    @property
    def label(self) -> str:
        """``shared`` and the mixer's."""
        return f"shared+{self.mixer.label}"

    @property
    def detail(self) -> str:
        """The label, and whether it owns what is shared."""
        return f"{'owned' if self.owner else 'shared'}+{self.mixer.label}"

    @property
    def feeds_products(self) -> bool:
        """The sum of block and input goes into the mixer."""
        return self.mixer.feeds_products

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the shared block, the layer's product behind it, the sum, and the mixer."""
        h = spec.hidden
        return (
            *self._attention(spec),
            *self._mlp(spec),
            Gemm("block_linear", wide(h), (wide(h),), "replicated", on="sequence", saves_output=True),
            Pointwise("block_sum", "sequence", 2 * h, h, saves=h, backward_ratio=1.0),
            *self.mixer.operators(spec),
        )

    def _gemm(
        self, name: str, inputs: Part, outputs: tuple[Part, ...], *, row: bool = False, bias: bool = False
    ) -> Gemm:
        kind = Gemm if self.owner else SharedGemm
        return kind(name, inputs, outputs, "row" if row else "column", bias, saves_output=not row)

    def _norm(self, name: str, width: int) -> Pointwise:
        weights = width if self.owner else 0
        return Pointwise(name, "sequence", width, width, saves=width, weights=weights, light=True)

    def _adapter(self, name: str, inputs: int, outputs: tuple[Part, ...]) -> tuple[Operator, ...]:
        """Return a low-rank part of a product for each of its outputs' groups, added to it."""
        down = Gemm(f"{name}_down", wide(inputs), (wide(self.adapter),), "replicated", saves_output=True)
        return down, Gemm(f"{name}_up", wide(self.adapter), outputs, "column")

    def _attention(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return attention over input and embedding, twice ``hidden`` wide."""
        h, dim, double = spec.hidden, spec.head_dim, 2 * spec.hidden
        query = Part(spec.heads * dim, spec.heads, "attention heads")
        key = Part(spec.kv_heads * dim, spec.kv_heads, "key/value heads", replicable=True)
        names = ("block_q", "block_k", "block_v") if self.attention_adapter else ()
        adapted = (self._adapter(n, double, (query,)) for n in names)
        return (
            Pointwise("block_concat", "sequence", double, double, backward_ratio=1.0),
            self._norm("block_norm", double),
            Boundary("block_enter", "enter", double),
            self._gemm("qkv", wide(double), (query, key, key)),
            *(op for ops in adapted for op in ops),
            *rotary(spec, (spec.heads + spec.kv_heads) * dim, spec.rotary_share, spec.heads),
            Attention("attention", spec.heads, spec.kv_heads, dim, dim, dropout=spec.attention_dropout > 0),
            self._gemm("out", query, (wide(h),), row=True),
            Boundary("block_exit", "exit", h),
        )

    def _mlp(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the gated MLP with the layer's own part of gate and up."""
        h, f = spec.hidden, spec.ffn
        part = Part(f, f, "ffn columns")
        return (
            self._norm("block_mlp_norm", h),
            Boundary("block_mlp_enter", "enter", h),
            self._gemm("gate_up", wide(h), (part, part), bias=self.bias),
            *self._adapter("block_gate_up", h, (part, part)),
            Pointwise(
                "activation",
                "tensor",
                2 * f,
                f,
                saves=f,
                units=f,
                backward_ratio=GATED_BACKWARD,
                light=True,
                feeds_product=True,
            ),
            self._gemm("down", part, (wide(h),), row=True, bias=self.bias),
            Boundary("block_mlp_exit", "exit", h),
        )
