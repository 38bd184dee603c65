"""Attention over compressed keys (DeepSeek-V4): one key/value head, a window, and a summary of the rest."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.indexer import Indexer
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.latent import SparseIndex, latent_norm, whole
from meshwright.planner.pieces import wide


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Queries through a latent, one shared key that is its own value, and an output product by groups.

    Beside ``window`` tokens a query sees one entry for every ``stride`` earlier tokens: a softmax-weighted
    sum of their projections, two overlapping series where an indexer picks among them (compressed sparse
    attention), one where all are read (heavily compressed attention). What all heads share is computed whole
    on each tensor-parallel rank.

    Attributes
    ----------
    q_rank
        Width of the queries' latent.
    window
        Tokens seen uncompressed.
    groups, group_rank
        The output product is a block-diagonal one of ``groups`` groups of heads to ``group_rank`` features
        each, and a full one behind it.
    rope
        Features of a head that are rotated (and turned back in the output).
    stride
        Tokens that make one compressed entry, None: the window is all.
    index
        The indexer that picks compressed entries, None: all are read.
    """

    q_rank: int
    window: int
    groups: int
    group_rank: int
    rope: int
    stride: int | None = None
    index: SparseIndex | None = None
    feeds_products: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """How what lies before the window is seen."""
        reach: Literal["sliding", "compressed", "sparse"]
        reach = "sliding" if self.stride is None else "compressed" if self.index is None else "sparse"
        return reach

    @property
    def detail(self) -> str:
        """The label and the stride."""
        return f"{self.label}{self.stride or self.window}"

    def operators(self, spec: DecoderSpec) -> tuple[Operator, ...]:
        """Return the latents, the compressed entries, core and grouped output product."""
        h, d, heads = spec.hidden, spec.head_dim, spec.heads
        query = Part(heads * d, heads, "attention heads")
        groups = Part(self.groups * self.group_rank, self.groups, "output groups")
        turned = heads * self.rope
        return (
            whole("q_down", h, self.q_rank),
            whole("kv", h, d),
            latent_norm("q_norm", self.q_rank),
            latent_norm("kv_norm", d),
            *(self._compressor("compress", h, d) if self.stride else ()),
            *self._indexer(h),
            Boundary("attention_enter", "enter", self.q_rank + d + self._entries(d)),
            Gemm("q_up", wide(self.q_rank), (query,), "column", saves_output=True),
            Pointwise("query_norm", "tensor", heads * d, heads * d, saves=heads * d, units=heads, light=True),
            Pointwise(
                "rotary", "tensor", turned + self.rope, turned + self.rope, units=heads, backward_ratio=1.0
            ),
            self._core(spec),
            Pointwise("turn_back", "tensor", turned, turned, units=heads, backward_ratio=1.0),
            Gemm("out_groups", query, (wide(self.group_rank),), "row"),
            Pointwise("out_latent", "tensor", 0, 0, saves=groups.features, units=self.groups),
            Gemm("out", groups, (wide(h),), "row"),
            Boundary("attention_exit", "exit", h),
        )

    @property
    def _series(self) -> int:
        """Overlapping series of compressed entries."""
        return 1 if self.index is None else 2

    def _entries(self, width: int) -> int:
        """Return the features of compressed entries for each token, rounded up."""
        return -(-width // self.stride) if self.stride else 0

    def _core(self, spec: DecoderSpec) -> Attention:
        return Attention(
            "attention",
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            spec.head_dim,
            window=self.window,
            dropout=spec.attention_dropout > 0,
            topk_keys=None if self.index is None else self.index.topk,
            sinks=True,
            stride=self.stride,
        )

    def _compressor(self, name: str, hidden: int, width: int) -> tuple[Operator, ...]:
        """Return the products for entries and their weights, and the weighted sums with their norm."""
        assert self.stride is not None
        wider = self._series * width
        entry = self._entries(width)
        weights = self.stride * wider + width
        return (
            whole(f"{name}_products", hidden, wider, wider),
            Pointwise(f"{name}_sums", "sequence", 2 * wider, entry, saves=entry, weights=weights),
        )

    def _indexer(self, hidden: int) -> tuple[Operator, ...]:
        """Return the indexer's own compressed keys, its queries and its scores."""
        if self.index is None or self.stride is None:
            return ()
        heads, dim = self.index.heads, self.index.dim
        return (
            *self._compressor("index", hidden, dim),
            whole("index_queries", self.q_rank, heads * dim),
            whole("index_weights", hidden, heads),
            Boundary("index_enter", "enter", self._entries(dim)),
            Indexer("index_scores", heads, dim, self.index.topk, self.stride),
        )
