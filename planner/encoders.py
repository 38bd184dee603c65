"""Blocks of encoders, vision towers and encoder-decoders, and the embeddings that feed them.

A :class:`BlockSpec` describes one block: bidirectional or causal self-attention, cross attention where a
``context`` is named, and an MLP, with a norm before each sub-block or behind each sum. What differs from a
decoder-only block (:mod:`meshwright.planner.blocks`) is the norm behind the sum (BERT, BART), attention
without a causal mask, and keys and values made of another stream's tokens.

Left out: additive position biases (T5, Swin; they are read once per score, which fused kernels do on
chip) and the sum of several position embeddings of one token in one kernel.
"""

from dataclasses import dataclass
from typing import Literal

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import Boundary, LayerKind, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.vocabulary import Embedding
from meshwright.planner.pieces import added, dense, dropout, norm, vocabulary, wide

Biases = tuple[bool, bool, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """One transformer block; the defaults are those of a vision transformer.

    Attributes
    ----------
    hidden, heads, head_dim, ffn
        Sizes; ``ffn`` is the width of one branch of a gated MLP.
    kv_heads
        Heads of keys and values, None: as many as queries have.
    place
        Whether norms stand before the sub-blocks (``pre``), behind the sums (``post``), or before and,
        within the residual, behind them (``both``).
    norm_weight, norm_bias
        Whether a norm has a scale and a shift (LayerNorm: both; RMSNorm: the scale).
    first_norm
        Whether attention's own norm exists (ModernBERT's first layer has none).
    qkv_biases, out_bias, mlp_bias, down_bias
        Biases of the products; Whisper's keys have none. The MLP's second one follows the first unless said.
    gated
        Whether the MLP multiplies two branches.
    causal, window
        What attention sees: all tokens, those before, or at most ``window`` on each side (itself included).
    rotary
        Whether queries and keys are rotated.
    qk_norm_weights
        Weights of a norm of queries and keys, None without one.
    layer_scale
        Whether each branch is scaled by a weight a feature (DINOv2, BEiT, InternVL); gates count alike.
    extra_weights
        Further weights of the block that meet each token's features once or never (gates, bias tables).
    self_attention
        Whether it attends to its own stream (Mllama's cross-attention layers do not).
    context
        Features of the stream that cross attention reads, None without cross attention.
    attention_dropout, hidden_dropout
        Probabilities; zero costs nothing.
    """

    hidden: int
    heads: int
    head_dim: int
    ffn: int
    kv_heads: int | None = None
    place: Literal["pre", "post", "both"] = "pre"
    norm_weight: bool = True
    norm_bias: bool = True
    first_norm: bool = True
    qkv_biases: Biases = (True, True, True)
    out_bias: bool = True
    mlp_bias: bool = True
    down_bias: bool | None = None
    gated: bool = False
    causal: bool = False
    window: int | None = None
    rotary: bool = False
    qk_norm_weights: int | None = None
    layer_scale: bool = False
    extra_weights: int = 0
    self_attention: bool = True
    context: int | None = None
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0

    @property
    def query(self) -> Part:
        """Query heads as tensor parallelism splits them."""
        return Part(self.heads * self.head_dim, self.heads, "attention heads")

    @property
    def key(self) -> Part:
        """Heads of keys, and of values, as tensor parallelism splits them."""
        heads = self.heads if self.kv_heads is None else self.kv_heads
        return Part(heads * self.head_dim, heads, "key/value heads", replicable=True)


def _norm(spec: BlockSpec, name: str, **kept: bool) -> Pointwise:
    return norm(name, spec.hidden, bias=spec.norm_bias, weight=spec.norm_weight, **kept)


def _residual(spec: BlockSpec, name: str, *, saves: bool) -> Pointwise:
    """Return the sum of stream and branch, its dropout and layer scale fused in."""
    h = spec.hidden
    mask = h if spec.hidden_dropout > 0 else 0
    return Pointwise(
        f"{name}_residual",
        "sequence",
        2 * h,
        h,
        saves=h * saves,
        mask_features=mask,
        weights=h * spec.layer_scale,
        backward_ratio=1.0,
        group="residual",
    )


def _products(
    name: str, inputs: int, parts: dict[str, tuple[Part, bool]], *, context: bool = False
) -> tuple[Gemm, ...]:
    """Return one product for all parts that have a bias and one for those that have none."""
    made = []
    for bias in (True, False):
        chosen = {letter: part for letter, (part, has) in parts.items() if has is bias}
        if chosen:
            whole = name if len(chosen) == len(parts) else name + "_" + "".join(chosen)
            on: Literal["own", "context"] = "context" if context else "own"
            made.append(
                Gemm(whole, wide(inputs), tuple(chosen.values()), "column", bias, saves_output=True, on=on)
            )
    return tuple(made)


def _qk_norm(spec: BlockSpec, name: str, width: int) -> tuple[Pointwise, ...]:
    """Return the norm of queries and keys, if there is one."""
    if spec.qk_norm_weights is None:
        return ()
    weights, units = spec.qk_norm_weights, spec.heads
    return (
        Pointwise(
            name, "tensor", width, width, width, weights=weights, units=units, light=True, group="norm"
        ),
    )


def _self_attention(spec: BlockSpec) -> tuple[Operator, ...]:
    """Return the operators from the normalised input to the output product."""
    kv_heads = spec.heads if spec.kv_heads is None else spec.kv_heads
    q, k, v = spec.qkv_biases
    width = (spec.heads + kv_heads) * spec.head_dim
    between = [*_qk_norm(spec, "qk_norm", width)]
    if spec.rotary:
        between.append(
            Pointwise("rotary", "tensor", width, width, units=spec.heads, backward_ratio=1.0, group="rotary")
        )
    return (
        *_products("qkv", spec.hidden, {"q": (spec.query, q), "k": (spec.key, k), "v": (spec.key, v)}),
        *between,
        Attention(
            "attention",
            spec.heads,
            kv_heads,
            spec.head_dim,
            spec.head_dim,
            causal=spec.causal,
            window=spec.window,
            dropout=spec.attention_dropout > 0,
        ),
        Gemm("out", spec.query, (wide(spec.hidden),), "row", spec.out_bias),
    )


def _cross_attention(spec: BlockSpec, context: int) -> tuple[Operator, ...]:
    """Return queries of this stream, keys and values of the context's tokens, core and output product.

    A norm of queries and keys is priced for the queries, and its weights are counted, where attention to the
    own stream has none.
    """
    kv_heads = spec.heads if spec.kv_heads is None else spec.kv_heads
    q, k, v = spec.qkv_biases
    dims = (spec.head_dim, spec.head_dim)
    return (
        *_products("cross_q", spec.hidden, {"q": (spec.query, q)}),
        Boundary("context_enter", "enter", context, on="context"),
        *_products("cross_kv", context, {"k": (spec.key, k), "v": (spec.key, v)}, context=True),
        *(() if spec.self_attention else _qk_norm(spec, "cross_qk_norm", spec.heads * spec.head_dim)),
        Attention(
            "cross_attention",
            spec.heads,
            kv_heads,
            *dims,
            causal=False,
            dropout=spec.attention_dropout > 0,
            cross=True,
        ),
        Gemm("cross_out", spec.query, (wide(spec.hidden),), "row", spec.out_bias),
    )


def _mlp(spec: BlockSpec) -> tuple[Operator, ...]:
    """Return up (and gate), activation and down products; a gated activation's backward moves 5 f for 3 f."""
    f, branches = spec.ffn, 1 + spec.gated
    down_bias = spec.mlp_bias if spec.down_bias is None else spec.down_bias
    part = Part(f, f, "ffn columns")
    name = "gate_up" if spec.gated else "up"
    ratio = 5 / 3 if spec.gated else 1.5
    return (
        Gemm(name, wide(spec.hidden), (part,) * branches, "column", spec.mlp_bias, saves_output=True),
        Pointwise(
            "activation",
            "tensor",
            branches * f,
            f,
            f,
            units=f,
            backward_ratio=ratio,
            light=True,
            group="activation",
        ),
        Gemm("down", part, (wide(spec.hidden),), "row", down_bias),
    )


def _sub_block(
    spec: BlockSpec, name: str, inner: tuple[Operator, ...], *, last: bool, has_norm: bool = True
) -> tuple[Operator, ...]:
    """Return norm, sub-block and sum in the order that ``place`` says.

    A norm behind the sum keeps its input (the sum) and hands its output on; the last one's output is the
    next layer's checkpoint, as the last sum is before it.
    """
    pre: tuple[Operator, ...] = ()
    if has_norm and spec.place != "post":
        pre = (_norm(spec, f"pre_{name}_norm"),)
    inside = (_norm(spec, f"post_{name}_norm", keeps_input=True),) if spec.place == "both" else ()
    post = spec.place == "post"
    behind = (_norm(spec, f"{name}_norm", saves=not last),) if post else ()
    return (
        *pre,
        Boundary(f"{name}_enter", "enter", spec.hidden),
        *inner,
        Boundary(f"{name}_exit", "exit", spec.hidden),
        *inside,
        _residual(spec, name, saves=post or not last),
        *behind,
    )


def block_kind(spec: BlockSpec, name: str, stream: str = "text") -> LayerKind:
    """Return the layer kind of a block: self-attention, cross attention if there is a context, MLP.

    With cross attention it hands the context's features on to the stages behind it.
    """
    own: tuple[Operator, ...] = ()
    cross: tuple[Operator, ...] = ()
    if spec.self_attention:
        own = _sub_block(spec, "attention", _self_attention(spec), last=False, has_norm=spec.first_norm)
    if spec.context is not None:
        cross = _sub_block(spec, "cross", _cross_attention(spec, spec.context), last=False)
    extra = (Pointwise("extra", "sequence", 0, 0, weights=spec.extra_weights),) if spec.extra_weights else ()
    operators = (
        *own,
        *cross,
        *_sub_block(spec, "mlp", _mlp(spec), last=True),
        *extra,
    )
    return LayerKind(name, "block", operators, spec.hidden, stream, carries=spec.context or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """A token embedding with what is added to it.

    Attributes
    ----------
    vocab, hidden
        Rows, and features of what leaves the layer.
    width
        Features of the table where a projection leads to ``hidden`` (ELECTRA); None: the same.
    position_rows, type_rows
        Rows of learned positions and of segment types; zero without them.
    norm, norm_bias, norm_place
        Whether the sum is normalised, with or without a shift.
    tied
        Whether the table is another layer's (a decoder that shares its encoder's): not counted again.
    extra_weights
        Weights counted here because every block shares them (T5's position bias).
    dropout
        A probability; zero costs nothing.
    """

    vocab: int
    hidden: int
    width: int | None = None
    position_rows: int = 0
    type_rows: int = 0
    norm: bool = False
    norm_bias: bool = True
    tied: bool = False
    extra_weights: int = 0
    dropout: float = 0.0


def embedding_kind(
    spec: EmbeddingSpec, name: str = "embedding", stream: str = "text", carries: int = 0
) -> LayerKind:
    """Return the layer kind of a token embedding: table, positions, norm, dropout, projection."""
    width = spec.hidden if spec.width is None else spec.width
    rows = spec.position_rows + spec.type_rows
    operators: list[Operator] = [
        Embedding("tokens", vocabulary(spec.vocab), width, tied=spec.tied),
        Boundary("embedding_exit", "exit", width),
    ]
    if rows:
        operators.append(added("positions", width, weights=rows * width))
    if spec.norm:
        operators.append(norm("embedding_norm", width, bias=spec.norm_bias, keeps_input=True))
    if spec.dropout > 0:
        operators.append(dropout("dropout", width))
    if width != spec.hidden:
        operators.append(dense("project_in", width, spec.hidden))
    if spec.extra_weights:
        operators.append(Pointwise("shared_bias", "sequence", 0, 0, weights=spec.extra_weights))
    return LayerKind(name, "embedding", tuple(operators), spec.hidden, stream, carries)
