"""Vision towers: from patches to blocks to what a projector or a head reads.

A tower's patches are one product per patch (a convolution whose stride is its kernel). Tokens that stand
beside the patches (a class token, registers) belong to the stream's sequences. Left out: resizing learned
positions to other resolutions.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal

from meshwright.costmodels.operators import LayerKind, Operator
from meshwright.planner.assembly import Segment
from meshwright.planner.encoders import Biases, BlockSpec, block_kind
from meshwright.planner.graph import Stream
from meshwright.planner.pieces import added, data, dense, dropout, few_tokens, norm

PATCHES = "patches"
WINDOWS = "windows"
TEXT_ALONE = Stream("text", "text")
"""The main stream where images do not join the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """A vision transformer; the defaults are ViT's switches (fields as in ``BlockSpec``).

    Attributes
    ----------
    layers, patch_features
        Blocks, and values in a patch (channels x height x width x frames).
    patches
        Patches in an image, None where images have any size.
    extra_tokens
        Tokens beside the patches in each image's sequence (class token, registers).
    token_weights
        Vectors of ``hidden`` features that are learned for them, and for masked patches.
    patch_bias
        Whether the patch product has a bias.
    position_rows
        Rows of learned positions; zero without them.
    position_weights
        Further weights of positions (Mllama's tiles).
    pre_norm, final_norm
        Whether a norm stands before the first and behind the last block.
    full_layers
        Layers that see the whole image where the others see ``window`` patches; None: all do.
    window
        Patches of a window that is a sequence of its own, None without windows.
    gated_layers
        Blocks at the end that have a gate on each branch (Mllama).
    """

    hidden: int
    layers: int
    heads: int
    head_dim: int
    ffn: int
    patch_features: int
    patches: int | None
    extra_tokens: int = 0
    token_weights: int = 0
    patch_bias: bool = True
    position_rows: int = 0
    position_weights: int = 0
    pre_norm: bool = False
    final_norm: bool = True
    norm_bias: bool = True
    qkv_biases: Biases = (True, True, True)
    out_bias: bool = True
    mlp_bias: bool = True
    gated: bool = False
    rotary: bool = False
    qk_norm_weights: int | None = None
    layer_scale: bool = False
    full_layers: tuple[int, ...] | None = None
    window: int | None = None
    gated_layers: int = 0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0

    @property
    def tokens(self) -> int | None:
        """Tokens of an image's sequence, None where images have any size."""
        return None if self.patches is None else self.patches + self.extra_tokens


def vision_norm(spec: VisionSpec, name: str, *, merged: int = 1) -> Operator:
    """Return the tower's norm of ``merged`` patches that become one token, each normalised by itself."""
    h = spec.hidden
    plain = norm(name, h * merged, bias=False, weight=False)
    return replace(plain, weights=h * (1 + spec.norm_bias))


def pooling_head(spec: VisionSpec) -> int:
    """Return the weights of SigLIP's head: a learned query, an attention layer, a norm and an MLP."""
    h, f = spec.hidden, spec.ffn
    return h + 4 * (h * h + h) + 2 * h + 2 * h * f + f + h


def patch_kind(spec: VisionSpec, stream: str) -> LayerKind:
    """Return the layer that turns patches into tokens and adds positions."""
    h = spec.hidden
    operators: list[Operator] = [
        data("pixels", spec.patch_features),
        dense("patches", spec.patch_features, h, bias=spec.patch_bias),
        few_tokens("tokens", h * spec.token_weights + spec.position_weights),
    ]
    if spec.position_rows:
        operators.append(added("positions", h, weights=spec.position_rows * h))
    if spec.pre_norm:
        operators.append(norm("pre_norm", h, bias=spec.norm_bias, keeps_input=True))
    if spec.hidden_dropout > 0:
        operators.append(dropout("dropout", h))
    return LayerKind("patches", "embedding", tuple(operators), h, stream)


def _block(spec: VisionSpec, *, gated: bool) -> BlockSpec:
    own = {f.name for f in fields(VisionSpec)}
    shared = {
        f.name: getattr(spec, f.name) for f in fields(BlockSpec) if f.name in own and f.name != "window"
    }
    return BlockSpec(**shared, extra_weights=2 * gated)


def tower(spec: VisionSpec, stream: str = PATCHES, name: str = "tower") -> tuple[Segment, ...]:
    """Return the patch layer and the blocks of a tower on a stream, each a segment.

    Windowed blocks work on the stream ``windows``, where each window is a sequence.
    """

    def kind(i: int) -> LayerKind:
        """Return the kind of one block."""
        gated = i >= spec.layers - spec.gated_layers
        windowed = spec.window is not None and spec.full_layers is not None and i not in spec.full_layers
        suffix = (".window" if windowed else "") + (".gated" if gated else "")
        return block_kind(_block(spec, gated=gated), name + suffix, WINDOWS if windowed else stream)

    blocks = tuple(kind(i) for i in range(spec.layers))
    return Segment("patches", (patch_kind(spec, stream),)), Segment(name, blocks)


def streams(
    spec: VisionSpec, image_tokens: int | None, ratio: float, source: Literal["image", "sequence"] = "image"
) -> tuple[Stream, ...]:
    """Return the streams of a tower whose ``ratio`` patches become one of the source's tokens.

    ``image_tokens`` are the source's tokens for one image, None where images have any size: then all of a
    sample's images make one sequence, which is exact for one image a sample.
    """
    made = [Stream(PATCHES, source, ratio, image_tokens, spec.extra_tokens)]
    if spec.window is not None:
        made.append(Stream(WINDOWS, source, ratio, max(1, round(spec.window / ratio))))
    return tuple(made)
