"""Pieces that mixers, feeds and blocks share: wide parts, norms, residual sums."""

from meshwright.costmodels.operators import Operator, Part, Pointwise
from meshwright.planner.decoder import DecoderSpec, NormPlace


def wide(features: int) -> Part:
    """Return features that are whole on each rank (or split in any way: the residual stream)."""
    return Part(features, features, "hidden features")


def norm(
    spec: DecoderSpec, name: str, *, keeps_input: bool = False, feeds_product: bool = False
) -> Pointwise:
    """Return a norm over ``hidden``; a post-norm keeps its input, which nobody else does."""
    h = spec.hidden
    weights = h * (spec.norm_weight + spec.norm_bias)
    return Pointwise(
        name,
        "sequence",
        h,
        h,
        saves=h,
        weights=weights,
        light=not keeps_input,
        feeds_product=feeds_product,
        group="norm",
    )


def optional_norm(
    spec: DecoderSpec, place: NormPlace, *, feeds_product: bool = False
) -> tuple[Operator, ...]:
    """Return the norm at a place where the decoder has one; only a pre-norm can feed a product."""
    if place not in spec.norms:
        return ()
    post = place.startswith("post")
    return (norm(spec, f"{place}_norm", keeps_input=post, feeds_product=feeds_product and not post),)


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
