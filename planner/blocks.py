"""Decoder blocks: from a handful of sizes and switches to layer kinds made of operators.

A :class:`~meshwright.planner.decoder.DecoderSpec` describes a decoder; :func:`decoder_graph` turns it into a
:class:`~meshwright.planner.graph.ModelGraph`: embedding, blocks (one kind for each distinct pair of
:mod:`mixer <meshwright.planner.mixers>` and :mod:`feed <meshwright.planner.feeds>`), head.

What is kept for the backward pass belongs to the operator that produces it. The input of a layer (the
residual stream, ``hidden`` per token) is kept by nobody here: it is the checkpoint that the memory model
adds once per layer. With it a GPT block keeps ``s b h (34 + 5 a s / h)`` bytes at 16 bits (arXiv
2205.05198, equation 1) and a SwiGLU block with grouped queries and flash attention
``b s (8 h + 4 a d + 4 g d + 6 f + 4 a)``.

Left out: logit soft-capping and the scalar multipliers of Granite, Cohere and Gemma (they fuse into their
neighbours).
"""

from collections.abc import Mapping
from typing import Final, Literal

from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Boundary, LayerKind, Operator, Pointwise
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.vocabulary import CrossEntropy, Embedding
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.feeds import Mlp
from meshwright.planner.graph import ModelGraph
from meshwright.planner.hyper import collapse, collapse_head, spread
from meshwright.planner.mtp import mtp_kind
from meshwright.planner.pattern import Layer, attributes, kind_names, layer_behind, layers_of
from meshwright.planner.pieces import optional_norm, residual, stream_norm, wide

PARALLEL_EDGES: Final[tuple[tuple[str, Literal["enter", "exit"]], ...]] = (
    ("attention_enter", "enter"),
    ("block_exit", "exit"),
)


def _sequential_block(spec: DecoderSpec, layer: Layer) -> tuple[Operator, ...]:
    """Return mixer, residual, feed, residual; the sum in the middle is kept."""
    mixed: tuple[Operator, ...] = ()
    if layer.mixer is not None:
        mixed = (
            *collapse(spec, "attention"),
            *optional_norm(spec, "pre_attention", feeds_product=layer.mixer.feeds_products),
            *layer.mixer.operators(spec),
            *optional_norm(spec, "post_attention"),
            spread(spec, "attention_residual", kept=layer.feed is not None),
        )
    if layer.feed is None:
        return mixed
    return (
        *mixed,
        *collapse(spec, "mlp"),
        *optional_norm(spec, "pre_mlp", feeds_product=layer.feed.feeds_products),
        *layer.feed.operators(spec),
        *optional_norm(spec, "post_mlp"),
        spread(spec, "mlp_residual", kept=False),
    )


def _parallel_block(spec: DecoderSpec, layer: Layer) -> tuple[Operator, ...]:
    """Return mixer and feed on the same input: partial sums are added before one collective.

    A feed that exchanges tokens (experts) keeps its own boundaries, and so does the mixer beside it.
    """
    assert layer.mixer is not None and layer.feed is not None
    mixer, feed = layer.mixer.operators(spec), layer.feed.operators(spec)
    after = optional_norm(spec, "pre_mlp", feeds_product=layer.feed.feeds_products)
    before = optional_norm(
        spec, "pre_attention", feeds_product=layer.mixer.feeds_products and layer.feed.feeds_products
    )
    if isinstance(layer.feed, Mlp):
        second = (*after, Boundary("mlp_enter", "enter", spec.hidden)) if after else ()
        inner = tuple(op for op in (*mixer, *feed) if not isinstance(op, Boundary))
        enter, leave = (Boundary(n, d, spec.hidden) for n, d in PARALLEL_EDGES)
        return (*before, enter, *second, *inner, leave, residual(spec, "residual", branches=2))
    return (*before, *mixer, *after, *feed, residual(spec, "residual", branches=2))


def block_kind(spec: DecoderSpec, layer: Layer, name: str = "decoder") -> LayerKind:
    """Return the layer kind of a decoder block with this mixer and feed."""
    both = layer.mixer is not None and layer.feed is not None
    build = _parallel_block if spec.parallel and both else _sequential_block
    return LayerKind(name, "block", build(spec, layer), spec.residual_streams * spec.hidden)


def _embedding_kind(spec: DecoderSpec) -> LayerKind:
    """Return the token embedding, its projection, positions, norm and dropout, where there are any."""
    h, width = spec.hidden, spec.embedding_width
    operators: list[Operator] = [
        Embedding("tokens", spec.vocabulary, width),
        Boundary("embedding_exit", "exit", width),
    ]
    if width != h:
        operators.append(Gemm("project_in", wide(width), (wide(h),), "replicated"))
    if spec.positions == "learned":
        operators.append(Pointwise("positions", "sequence", 2 * h, h, weights=spec.position_rows * h))
    if spec.embedding_norm:
        operators.append(stream_norm(spec, "embedding_norm", keeps_input=True))
    if spec.embedding_dropout > 0:
        operators.append(Pointwise("dropout", "sequence", h, h, mask_features=h, backward_ratio=1.0))
    return LayerKind("embedding", "embedding", tuple(operators), spec.residual_streams * h)


def _head_kind(spec: DecoderSpec) -> LayerKind:
    """Return the final norm, the projection to the vocabulary and the cross entropy."""
    h, width = spec.hidden, spec.embedding_width
    operators: list[Operator] = [*collapse_head(spec)]
    if spec.final_norm:
        operators.append(stream_norm(spec, "final_norm"))
    if width != h:
        operators.append(Gemm("project_out", wide(h), (wide(width),), "replicated", saves_output=True))
    operators += [
        Boundary("head_enter", "enter", width),
        Gemm("lm_head", wide(width), (spec.vocabulary,), "column", spec.head_bias, tied=spec.tied),
        CrossEntropy("loss", spec.vocabulary, FULL_LOGITS),
    ]
    return LayerKind("head", "head", tuple(operators), h)


def decoder_graph(
    spec: DecoderSpec,
    name: str,
    *,
    family: str = "llama",
    block_class: str | None = None,
    notes: tuple[str, ...] = (),
    mtp: bool = False,
    words: Mapping[str, float | str | bool] | None = None,
) -> ModelGraph:
    """Return the chain embedding, blocks, head; one block kind for each distinct pair of mixer and feed.

    With ``mtp`` the layers for multi-token prediction that the model's file names stand before the head;
    without it their parameters are told apart (:attr:`~meshwright.planner.graph.ModelGraph.mtp_parameters`).
    ``words`` are what else the file says (:mod:`meshwright.planner.importers.words`).
    """
    layers = layers_of(spec)
    distinct = tuple(dict.fromkeys(layers))
    blocks = tuple(block_kind(spec, *pair) for pair in zip(distinct, kind_names(distinct), strict=True))
    further = mtp_kind(spec, block_kind(spec, layer_behind(spec))) if spec.mtp_layers else None
    added = (further,) if further is not None and mtp else ()
    kinds = (_embedding_kind(spec), *blocks, *added, _head_kind(spec))
    order = (
        0,
        *(1 + distinct.index(layer) for layer in layers),
        *(1 + len(blocks),) * spec.mtp_layers * len(added),
        len(kinds) - 1,
    )
    last = len(order) - 1
    return ModelGraph(
        name=name,
        family=family,
        kinds=kinds,
        layer_kinds=order,
        edges=tuple((i, i + 1) for i in range(last)),
        hidden_size=spec.hidden,
        vocab_size=spec.vocab,
        tied=((0, last),) if spec.tied else (),
        max_sequence_length=spec.max_sequence_length,
        block_class=block_class,
        notes=notes,
        mtp_parameters=0 if further is None else spec.mtp_layers * further.parameters(),
        mtp_included=bool(added),
        attributes={**(words or {}), **attributes(spec)},
        spec=spec,
    )
