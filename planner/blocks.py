"""Decoder blocks: from a handful of sizes and switches to layer kinds made of operators.

A :class:`~meshwright.planner.decoder.DecoderSpec` describes a dense decoder; :func:`decoder_graph` turns it
into a :class:`~meshwright.planner.graph.ModelGraph`: embedding, blocks (one kind for each attention window),
head.

What is kept for the backward pass belongs to the operator that produces it. The input of a layer (the
residual stream, ``hidden`` per token) is kept by nobody here: it is the checkpoint that the memory model
adds once per layer. With it a GPT block keeps ``s b h (34 + 5 a s / h)`` bytes at 16 bits (arXiv
2205.05198, equation 1) and a SwiGLU block with grouped queries and flash attention
``b s (8 h + 4 a d + 4 g d + 6 f + 4 a)``.

Left out: logit soft-capping and the scalar multipliers of Granite, Cohere and Gemma (they fuse into their
neighbours), and the layers of SmolLM3 and Cohere2 that skip the rotary embedding (priced with it).
"""

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Boundary, Gemm, LayerKind, Operator, Part, Pointwise
from meshwright.costmodels.vocabulary import CrossEntropy, Embedding
from meshwright.planner.decoder import DecoderSpec, NormPlace
from meshwright.planner.graph import ModelGraph


def _norm(spec: DecoderSpec, name: str, *, keeps_input: bool = False) -> Pointwise:
    """Return a norm over ``hidden``; a post-norm keeps its input, which nobody else does."""
    h = spec.hidden
    weights = h * (spec.norm_weight + spec.norm_bias)
    return Pointwise(name, "sequence", h, h, saves=h, weights=weights, light=not keeps_input)


def _optional_norm(spec: DecoderSpec, place: NormPlace) -> tuple[Operator, ...]:
    if place not in spec.norms:
        return ()
    return (_norm(spec, f"{place}_norm", keeps_input=place.startswith("post")),)


def _wide(features: int) -> Part:
    """Return features that are whole on each rank (or split in any way: the residual stream)."""
    return Part(features, features, "hidden features")


def _residual(spec: DecoderSpec, name: str, *, branches: int = 1, saves: int = 0) -> Pointwise:
    """Return the sum of the residual stream and its branches, with their dropout fused in.

    Its backward pass hands the gradient on: as many bytes as forward.
    """
    h = spec.hidden
    mask = branches * h if spec.hidden_dropout > 0 else 0
    reads = (1 + branches) * h
    return Pointwise(name, "sequence", reads, h, saves=saves, mask_features=mask, backward_ratio=1.0)


def _qk_norm(spec: DecoderSpec) -> tuple[Operator, ...]:
    """Return the norm of queries and keys; its output is kept beside its input (the product's output)."""
    if spec.qk_norm is None:
        return ()
    width = (spec.heads + spec.kv_heads) * spec.head_dim
    per_feature = spec.norm_weight + spec.qk_norm_bias
    weights = per_feature * (width if spec.qk_norm == "full" else 2 * spec.head_dim)
    norm = Pointwise(
        "qk_norm", "tensor", width, width, saves=width, weights=weights, units=spec.heads, light=True
    )
    return (norm,)


def _rotary(spec: DecoderSpec) -> tuple[Operator, ...]:
    """Return the rotation of queries and keys; a rotation's gradient is a rotation and needs no input."""
    if spec.positions != "rotary":
        return ()
    width = (spec.heads + spec.kv_heads) * spec.head_dim
    return (Pointwise("rotary", "tensor", width, width, units=spec.heads, backward_ratio=1.0),)


def _attention(spec: DecoderSpec, window: int | None) -> tuple[Operator, ...]:
    """Return the operators from the normalised input to the output product, collectives left out."""
    query = Part(spec.heads * spec.head_dim, spec.heads, "attention heads")
    key = Part(spec.kv_heads * spec.head_dim, spec.kv_heads, "key/value heads", replicable=True)
    core = Attention(
        "attention",
        spec.heads,
        spec.kv_heads,
        spec.head_dim,
        spec.head_dim,
        window=window,
        dropout=spec.attention_dropout > 0,
    )
    return (
        Gemm("qkv", _wide(spec.hidden), (query, key, key), "column", spec.qkv_bias, saves_output=True),
        *_qk_norm(spec),
        *_rotary(spec),
        core,
        Gemm("out", query, (_wide(spec.hidden),), "row", spec.o_bias),
    )


def _mlp(spec: DecoderSpec) -> tuple[Operator, ...]:
    """Return up (and gate), activation and down products, collectives left out.

    A gated activation reads both branches; its backward pass reads them and the gradient and writes two
    gradients: 5 f for the forward pass' 3 f.
    """
    f, branches = spec.ffn, 1 + spec.gated
    part = Part(f, f, "ffn columns")
    ratio = 5 / 3 if spec.gated else 1.5
    return (
        Gemm(
            "gate_up" if spec.gated else "up",
            _wide(spec.hidden),
            (part,) * branches,
            "column",
            spec.mlp_bias,
            saves_output=True,
        ),
        Pointwise(
            "activation", "tensor", branches * f, f, saves=f, units=f, backward_ratio=ratio, light=True
        ),
        Gemm("down", part, (_wide(spec.hidden),), "row", spec.mlp_bias),
    )


def _sequential_block(spec: DecoderSpec, window: int | None) -> tuple[Operator, ...]:
    """Return attention, residual, MLP, residual; the sum in the middle is kept."""
    return (
        *_optional_norm(spec, "pre_attention"),
        Boundary("attention_enter", "enter", spec.hidden),
        *_attention(spec, window),
        Boundary("attention_exit", "exit", spec.hidden),
        *_optional_norm(spec, "post_attention"),
        _residual(spec, "attention_residual", saves=spec.hidden),
        *_optional_norm(spec, "pre_mlp"),
        Boundary("mlp_enter", "enter", spec.hidden),
        *_mlp(spec),
        Boundary("mlp_exit", "exit", spec.hidden),
        *_optional_norm(spec, "post_mlp"),
        _residual(spec, "mlp_residual"),
    )


def _parallel_block(spec: DecoderSpec, window: int | None) -> tuple[Operator, ...]:
    """Return attention and MLP on the same input: partial sums are added before one collective."""
    mlp_norm = _optional_norm(spec, "pre_mlp")
    second = (*mlp_norm, Boundary("mlp_enter", "enter", spec.hidden)) if mlp_norm else ()
    return (
        *_optional_norm(spec, "pre_attention"),
        Boundary("attention_enter", "enter", spec.hidden),
        *second,
        *_attention(spec, window),
        *_mlp(spec),
        Boundary("block_exit", "exit", spec.hidden),
        _residual(spec, "residual", branches=2),
    )


def block_kind(spec: DecoderSpec, window: int | None, name: str = "decoder") -> LayerKind:
    """Return the layer kind of a decoder block whose attention sees ``window`` tokens (None: all)."""
    build = _parallel_block if spec.parallel else _sequential_block
    return LayerKind(name, "block", build(spec, window), spec.hidden)


def _embedding_kind(spec: DecoderSpec) -> LayerKind:
    """Return the token embedding, its projection, positions, norm and dropout, where there are any."""
    h, width = spec.hidden, spec.embedding_width
    operators: list[Operator] = [
        Embedding("tokens", spec.vocabulary, width),
        Boundary("embedding_exit", "exit", width),
    ]
    if width != h:
        operators.append(Gemm("project_in", _wide(width), (_wide(h),), "replicated"))
    if spec.positions == "learned":
        operators.append(Pointwise("positions", "sequence", 2 * h, h, weights=spec.position_rows * h))
    if spec.embedding_norm:
        operators.append(_norm(spec, "embedding_norm", keeps_input=True))
    if spec.embedding_dropout > 0:
        operators.append(Pointwise("dropout", "sequence", h, h, mask_features=h, backward_ratio=1.0))
    return LayerKind("embedding", "embedding", tuple(operators), h)


def _head_kind(spec: DecoderSpec) -> LayerKind:
    """Return the final norm, the projection to the vocabulary and the cross entropy."""
    h, width = spec.hidden, spec.embedding_width
    operators: list[Operator] = [_norm(spec, "final_norm")] if spec.final_norm else []
    if width != h:
        operators.append(Gemm("project_out", _wide(h), (_wide(width),), "replicated"))
    operators += [
        Boundary("head_enter", "enter", width),
        Gemm("lm_head", _wide(width), (spec.vocabulary,), "column", spec.head_bias, tied=spec.tied),
        CrossEntropy("loss", spec.vocabulary, FULL_LOGITS),
    ]
    return LayerKind("head", "head", tuple(operators), h)


def _kind_name(window: int | None, windows: tuple[int | None, ...]) -> str:
    """Return "decoder" for a uniform stack, else "decoder.global", "decoder.sliding[4096]"."""
    if len(windows) == 1:
        return "decoder"
    if window is None:
        return "decoder.global"
    several = sum(w is not None for w in windows) > 1
    return f"decoder.sliding{window}" if several else "decoder.sliding"


def decoder_graph(
    spec: DecoderSpec,
    name: str,
    *,
    family: str = "llama",
    block_class: str | None = None,
    notes: tuple[str, ...] = (),
) -> ModelGraph:
    """Return the chain embedding, blocks, head; one block kind for each distinct attention window."""
    windows = tuple(dict.fromkeys(spec.layer_windows))
    blocks = tuple(block_kind(spec, w, _kind_name(w, windows)) for w in windows)
    kinds = (_embedding_kind(spec), *blocks, _head_kind(spec))
    order = (0, *(1 + windows.index(w) for w in spec.layer_windows), len(kinds) - 1)
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
        attributes=_attributes(spec),
    )


def _attributes(spec: DecoderSpec) -> dict[str, int | float | str | bool | None]:
    """Return the sizes that reports print, under the specification's names."""
    names = (
        "hidden",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "gated",
        "positions",
        "tied",
    )
    return {n: getattr(spec, n) for n in names}
