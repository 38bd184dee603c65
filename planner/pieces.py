"""The small operators that mixers, feeds, blocks, embeddings and heads are put together from.

What is kept for the backward pass belongs to the operator that produces it; a layer's input is the
checkpoint that the memory model adds once per layer (:mod:`meshwright.planner.blocks`).
"""

from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.planner.decoder import DecoderSpec, NormPlace


def wide(features: int) -> Part:
    """Return features that are whole on each rank (or split in any way: the residual stream)."""
    return Part(features, features, "hidden features")


def vocabulary(rows: int) -> Part:
    """Return a vocabulary as tensor parallelism splits it."""
    return Part(rows, rows, "vocabulary", padded=True)


def norm(
    name: str,
    hidden: int,
    *,
    bias: bool = True,
    weight: bool = True,
    keeps_input: bool = False,
    saves: bool = True,
    feeds_product: bool = False,
) -> Pointwise:
    """Return a norm over ``hidden`` features.

    Parameters
    ----------
    name, hidden
        Its name and width.
    bias, weight
        Whether it has a shift and a scale (LayerNorm: both; RMSNorm: the scale).
    keeps_input
        Whether what it keeps is its input, which nobody else does (so recomputing it frees nothing).
    saves
        Whether it keeps anything: a norm at the end of a layer does not, as its output is the next one's
        checkpoint.
    feeds_product
        Whether a product reads what it writes.
    """
    return Pointwise(
        name,
        "sequence",
        hidden,
        hidden,
        saves=hidden * saves,
        weights=hidden * (weight + bias),
        light=not keeps_input,
        feeds_product=feeds_product,
        group="norm",
    )


def stream_norm(
    spec: DecoderSpec, name: str, *, keeps_input: bool = False, feeds_product: bool = False
) -> Pointwise:
    """Return a decoder's norm over ``hidden``; a post-norm keeps its input, which nobody else does."""
    return norm(
        name,
        spec.hidden,
        bias=spec.norm_bias,
        weight=spec.norm_weight,
        keeps_input=keeps_input,
        feeds_product=feeds_product,
    )


def optional_norm(
    spec: DecoderSpec, place: NormPlace, *, feeds_product: bool = False
) -> tuple[Operator, ...]:
    """Return the norm at a place where the decoder has one; only a pre-norm can feed a product."""
    if place not in spec.norms:
        return ()
    post = place.startswith("post")
    return (stream_norm(spec, f"{place}_norm", keeps_input=post, feeds_product=feeds_product and not post),)


def residual(spec: DecoderSpec, name: str, *, branches: int = 1, saves: int = 0) -> Pointwise:
    """Return the sum of the residual stream and its branches, with their dropout fused in.

    Its backward pass hands the gradient on: as many bytes as forward.
    """
    h = spec.hidden
    mask = branches * h if spec.hidden_dropout > 0 else 0
    reads = (1 + branches) * h
    return Pointwise(
        name, "sequence", reads, h, saves, mask_features=mask, backward_ratio=1.0, group="residual"
    )


def dense(name: str, inputs: int, outputs: int, *, bias: bool = True, saves_output: bool = False) -> Gemm:
    """Return a linear layer that each rank holds whole (projections outside the blocks)."""
    return Gemm(name, wide(inputs), (wide(outputs),), "replicated", bias, saves_output=saves_output)


def activation(name: str, features: int) -> Pointwise:
    """Return an activation function outside the tensor-parallel region."""
    return Pointwise(name, "sequence", features, features, saves=features, light=True, group="activation")


def added(name: str, hidden: int, *, weights: int = 0) -> Pointwise:
    """Return a sum of two streams (positions onto embeddings); ``weights`` are the rows that it adds."""
    return Pointwise(name, "sequence", 2 * hidden, hidden, weights=weights, backward_ratio=1.0)


def few_tokens(name: str, weights: int) -> Pointwise:
    """Return weights that only a token or two of a sequence meet (poolers, class tokens): no work."""
    return Pointwise(name, "sequence", 0, 0, weights=weights)


def data(name: str, features: int) -> Pointwise:
    """Return raw data (pixels, a spectrogram) that is kept for the gradient of the first product's weight."""
    return Pointwise(name, "sequence", 0, 0, saves=features)


def dropout(name: str, hidden: int) -> Pointwise:
    """Return dropout that is fused with nothing: its mask is kept."""
    return Pointwise(name, "sequence", hidden, hidden, mask_features=hidden, backward_ratio=1.0)


def language_head(hidden: int, vocab: int, *, tied: bool, bias: bool = False) -> tuple[Operator, ...]:
    """Return the projection to the vocabulary and the cross entropy over it."""
    rows = vocabulary(vocab)
    return (
        Boundary("head_enter", "enter", hidden),
        Gemm("lm_head", wide(hidden), (rows,), "column", bias, tied=tied),
        CrossEntropy("loss", rows, FULL_LOGITS),
    )
