"""Multi-head latent attention, and the indexer that makes it sparse."""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.indexer import Indexer
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.pieces import wide


@dataclass(frozen=True, slots=True)
class SparseIndex:
    """The indexer of sparse attention: ``heads`` of ``dim`` features pick ``topk`` keys for each query.

    A layer that is ``shared`` reads the choice of an earlier layer and has no indexer of its own.
    """

    heads: int
    dim: int
    topk: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values are projected down to ``kv_rank`` features and one rotated key of ``rope`` features, and
    up again by heads; queries likewise through ``q_rank``, or directly (None). The down-projections are
    whole on each tensor-parallel rank and work on the tokens of the sequence region; the narrow latents are
    what the group gathers. The up-projections are split by heads.

    Attributes
    ----------
    q_rank, kv_rank
        Widths of the latents.
    nope, rope, value
        Features of a head: of queries and keys without and with rotation, and of values.
    heads
        Heads, None: the decoder's.
    window
        Tokens that a query sees, None: all before it.
    index
        The indexer, None: attention to all keys.
    scaled_latents
        Whether the latents' norms have a scale.
    """

    kv_rank: int
    nope: int
    rope: int
    value: int
    q_rank: int | None = None
    heads: int | None = None
    window: int | None = None
    index: SparseIndex | None = None
    scaled_latents: bool = True
    feeds_products: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Its kind, and its reach where it is limited."""
        if self.index is not None:
            return "latent.shared-index" if self.index.shared else "latent.sparse"
        return "latent.sliding" if self.window else "latent"

    @property
    def detail(self) -> str:
        """The label and the latent's width."""
        return f"{self.label}{self.kv_rank}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return down-projections, norms, up-projections, rotation, core and output product."""
        heads, h = self.heads or spec.heads, spec.hidden
        value = Part(heads * self.value, heads, "attention heads")
        return (
            *self._down(spec),
            *(self._index(spec) if self.index is not None else ()),
            *self._up(spec, heads),
            *self._rotation(spec, heads),
            self._core(spec, heads),
            Gemm("out", value, (wide(h),), "row", spec.o_bias),
            Boundary("attention_exit", "exit", h),
        )

    def _down(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the products and norms that lead to the latents."""
        kv = (wide(self.kv_rank), wide(self.rope))
        norms = [("kv_norm", self.kv_rank)]
        products = [_down("kv_down", spec, kv)]
        if self.q_rank is not None:
            norms.insert(0, ("q_norm", self.q_rank))
            products.insert(0, _down("q_down", spec, (wide(self.q_rank),)))
        return (*products, *(latent_norm(name, width, self.scaled_latents) for name, width in norms))

    def _up(self, spec: DecoderSpec, heads: int) -> tuple[Operator, ...]:
        """Return the up-projections by heads behind the gathered latents (or the gathered input)."""
        query = Part(heads * (self.nope + self.rope), heads, "attention heads")
        key_value = Part(heads * (self.nope + self.value), heads, "attention heads")
        shared = self.kv_rank + self.rope
        up = Gemm("kv_up", wide(self.kv_rank), (key_value,), "column", saves_output=True)
        if self.q_rank is not None:
            enter = Boundary("attention_enter", "enter", shared + self.q_rank)
            return enter, Gemm("q_up", wide(self.q_rank), (query,), "column", saves_output=True), up
        return (
            Boundary("attention_enter", "enter", spec.hidden),
            Gemm("q", wide(spec.hidden), (query,), "column", saves_output=True),
            Boundary("latent_enter", "enter", shared),
            up,
        )

    def _rotation(self, spec: DecoderSpec, heads: int) -> tuple[Operator, ...]:
        """Return the rotation of queries' and the shared key's share, and the keys put together by heads."""
        turned = (heads + 1) * self.rope * (spec.positions == "rotary")
        width = heads * (self.nope + self.rope)
        rotary = Pointwise(
            "rotary", "tensor", turned, turned, units=heads, backward_ratio=1.0, group="rotary"
        )
        keys = Pointwise("keys", "tensor", width, width, saves=width, units=heads, backward_ratio=1.0)
        return (rotary, keys) if turned else (keys,)

    def _core(self, spec: DecoderSpec, heads: int) -> Attention:
        return Attention(
            "attention",
            heads,
            heads,
            self.nope + self.rope,
            self.value,
            window=self.window,
            dropout=spec.attention_dropout > 0,
            topk_keys=None if self.index is None else self.index.topk,
        )

    def _index(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the indexer's products, the norm of its keys, its scores."""
        index, rank = self.index, self.q_rank or spec.hidden
        if index is None or index.shared:
            return ()
        keys = Pointwise(
            "index_norm", "sequence", index.dim, index.dim, saves=index.dim, weights=2 * index.dim
        )
        return (
            whole("index_queries", rank, index.heads * index.dim),
            whole("index_keys", spec.hidden, index.dim),
            whole("index_weights", spec.hidden, index.heads),
            keys,
            Boundary("index_enter", "enter", index.dim),
            Indexer("index", index.heads, index.dim, index.topk),
        )


def whole(name: str, inputs: int, *outputs: int, bias: bool = False) -> Gemm:
    """Return a product that each rank holds whole, on the tokens of the sequence region."""
    parts = tuple(wide(width) for width in outputs)
    return Gemm(name, wide(inputs), parts, "replicated", bias, saves_output=True, on="sequence")


def _down(name: str, spec: DecoderSpec, outputs: tuple[Part, ...]) -> Gemm:
    return whole(name, spec.hidden, *(int(part.features) for part in outputs), bias=spec.qkv_bias)


def latent_norm(name: str, width: int, scaled: bool = True) -> Pointwise:
    """Return the norm of a latent, whole on each rank."""
    weights = width if scaled else 0
    return Pointwise(
        name,
        "sequence",
        width,
        width,
        saves=width,
        weights=weights,
        light=True,
        feeds_product=True,
        group="norm",
    )
