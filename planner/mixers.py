"""Mixers of the transformer: standard attention with its variants.

A new mixer is a frozen dataclass with the members of :class:`~meshwright.planner.decoder.Sublayer`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import wide


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Causal attention of grouped queries; a size that is None is the decoder's.

    Attributes
    ----------
    window
        Tokens that a query sees, itself included; None: all before it.
    chunk
        Tokens of a chunk beyond which nothing is seen (Llama-4); None: no chunks.
    sinks
        Whether each head has one learned logit that takes attention away (gpt-oss).
    rotary
        Whether positions rotate queries and keys where the decoder's do (False on NoPE layers).
    rotary_share
        Share of a head's features that is turned.
    gate
        Whether the output is multiplied by a gate projected beside the queries, as wide as they are
        (``feature``) or one for each head (``head``).
    gate_bias
        Whether the gate has a bias where queries, keys and values have one.
    qk_norm
        Whether queries and keys are normalised where the decoder's are.
    heads, kv_heads, head_dim, value_dim
        Sizes; a head's values are as wide as its keys where ``value_dim`` is None.
    """

    window: int | None = None
    chunk: int | None = None
    sinks: bool = False
    rotary: bool = True
    rotary_share: float | None = None
    gate: Literal["feature", "head"] | None = None
    gate_bias: bool = True
    qk_norm: bool = True
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    feeds_products: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Its reach, and whether it goes without rotation."""
        reach = "sliding" if self.window else "chunked" if self.chunk else "attention"
        return reach if self.rotary else f"{reach}.nope"

    @property
    def detail(self) -> str:
        """Its reach in tokens and its key/value heads."""
        reach = (
            f"sliding{self.window}" if self.window else f"chunked{self.chunk}" if self.chunk else "attention"
        )
        heads = f".kv{self.kv_heads}" if self.kv_heads else ""
        return f"{reach}{heads}" if self.rotary else f"{reach}{heads}.nope"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return query, key and value product, norms, rotation, core, gate and output product."""
        heads, kv_heads = self.heads or spec.heads, self.kv_heads or spec.kv_heads
        dim = self.head_dim or spec.head_dim
        query = Part(heads * dim, heads, "attention heads")
        key = Part(kv_heads * dim, kv_heads, "key/value heads", replicable=True)
        values = self.value_dim or dim
        value = Part(kv_heads * values, kv_heads, "key/value heads", replicable=True)
        output = Part(heads * values, heads, "attention heads")
        gate = {None: (), "feature": (output,), "head": (Part(heads, heads, "attention heads"),)}[self.gate]
        share = spec.rotary_share if self.rotary_share is None else self.rotary_share
        h = spec.hidden
        return (
            Boundary("attention_enter", "enter", h),
            *self._projections(spec, query, gate, (key, value)),
            *(qk_norm(spec, heads, kv_heads, dim) if self.qk_norm else ()),
            *(rotary(spec, (heads + kv_heads) * dim, share, heads) if self.rotary else ()),
            self._core(spec, heads, kv_heads, dim),
            *_gate(gate, output),
            Gemm("out", output, (wide(h),), "row", spec.o_bias),
            Boundary("attention_exit", "exit", h),
        )

    def _projections(
        self, spec: DecoderSpec, query: Part, gate: tuple[Part, ...], key_value: tuple[Part, Part]
    ) -> tuple[Operator, ...]:
        """Return one product for all, and one more for a gate that goes without the others' bias."""
        fused, apart = (gate, ()) if self.gate_bias or not spec.qkv_bias else ((), gate)
        h, outputs = wide(spec.hidden), (query, *fused, *key_value)
        return (
            Gemm("qkv", h, outputs, "column", spec.qkv_bias, saves_output=True),
            *(Gemm("gate_product", h, (part,), "column", saves_output=True) for part in apart),
        )

    def _core(self, spec: DecoderSpec, heads: int, kv_heads: int, dim: int) -> Attention:
        return Attention(
            "attention",
            heads,
            kv_heads,
            dim,
            self.value_dim or dim,
            window=self.window,
            dropout=spec.attention_dropout > 0,
            sinks=self.sinks,
            chunk=self.chunk,
        )


def qk_norm(spec: DecoderSpec, heads: int, kv_heads: int, dim: int) -> tuple[Operator, ...]:
    """Return the norm of queries and keys; its output is kept beside its input (the product's output)."""
    if spec.qk_norm is None:
        return ()
    width = (heads + kv_heads) * dim
    per_feature = (spec.norm_weight + spec.qk_norm_bias) * (spec.qk_norm != "plain")
    weights = per_feature * (width if spec.qk_norm == "full" else 2 * dim)
    return (
        Pointwise(
            "qk_norm", "tensor", width, width, width, weights=weights, units=heads, light=True, group="norm"
        ),
    )


def rotary(spec: DecoderSpec, width: int, share: float, heads: int) -> tuple[Operator, ...]:
    """Return the rotation of queries and keys; a rotation's gradient is a rotation and needs no input."""
    turned = round(width * share)
    if spec.positions != "rotary" or not turned:
        return ()
    return (
        Pointwise(
            "rotary",
            "tensor",
            turned,
            turned,
            units=heads,
            backward_ratio=1.0,
            group="rotary",
            scaled=spec.rotary_scaled,
        ),
    )


def _gate(gate: tuple[Part, ...], query: Part) -> tuple[Operator, ...]:
    """Return the sigmoid gate on the core's output; both its inputs are kept by their producers."""
    if not gate:
        return ()
    reads, width = query.features + gate[0].features, query.features
    return (
        Pointwise(
            "gate", "tensor", reads, width, saves=width, units=query.units, light=True, feeds_product=True
        ),
    )
