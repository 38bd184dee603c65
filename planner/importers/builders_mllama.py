"""Llama 3.2 Vision: some decoder layers read the image by cross attention and have no self-attention.

The image's tokens never enter the text: the sequence is text alone, and the context is the stream of image
tokens (all tiles of all images). Stages between the projector and the last cross-attention layer hand the
image on. Left out: the mask over tiles that an image does not fill.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from meshwright.costmodels.operators import LayerKind, Operator
from meshwright.costmodels.vocabulary import Embedding
from meshwright.planner.assembly import Join, Segment, assemble, chain
from meshwright.planner.encoders import BlockSpec, block_kind
from meshwright.planner.graph import ModelGraph, Stream
from meshwright.planner.importers.attributes import beside
from meshwright.planner.importers.builders_vlm import IMAGE, decoder_pieces, read_parts, text_part
from meshwright.planner.importers.config import MISSING, Config
from meshwright.planner.importers.families_vlm import VisionLanguage
from meshwright.planner.importers.projectors import Between
from meshwright.planner.importers.reading import assumptions, part
from meshwright.planner.importers.rules import Reading, size
from meshwright.planner.pieces import dense
from meshwright.planner.vision import PATCHES, TEXT_ALONE, tower, vision_norm

CROSS_LAYERS: Final = (3, 8, 13, 18, 23, 28, 33, 38)
EXTRA_ROWS: Final = 8
"""Rows of the embedding for special tokens that the head does not predict."""
TILE_MULTIPLE: Final = 8
"""Each tile's tokens are padded to a multiple of this in the tower."""


def _projector(b: Between) -> tuple[Operator, ...]:
    """Return the tower's norm and the projection of its last and intermediate layers' features."""
    features = b.vision_count("vision_output_dim", default=7680)
    return vision_norm(b.vision, "tower_norm"), dense("projector", features, b.text_hidden)


FAMILY: Final = VisionLanguage(
    "mllama_vision_model",
    "mllama_text_model",
    _projector,
    lambda b: 1.0,
    tower_is="mllama_vision_model",
    text_is="mllama_text_model",
    block_class="MllamaSelfAttentionDecoderLayer",
)


def _cross_layers(text: Config, layers: int) -> tuple[int, ...]:
    """Return the decoder layers that read the image."""
    _, value = text.find(("cross_attention_layers",))
    if value is MISSING or value is None:
        value = CROSS_LAYERS
    if not isinstance(value, list | tuple):
        text.refuse("cross_attention_layers", value, "a list of layers")
    return tuple(i for i in value if text.count("cross_attention_layers", i, "layers", 0) < layers)


def _cross_kind(attributes: Mapping[str, Any], hidden: int) -> LayerKind:
    """Return a decoder block that attends to the image only; its two gates are weights."""
    head_dim = attributes["head_dim"]
    spec = BlockSpec(
        hidden=hidden,
        heads=attributes["heads"],
        kv_heads=attributes["kv_heads"],
        head_dim=head_dim,
        ffn=attributes["ffn"],
        norm_bias=False,
        qkv_biases=(False, False, False),
        out_bias=False,
        mlp_bias=False,
        gated=True,
        qk_norm_weights=2 * head_dim,
        extra_weights=2,
        self_attention=False,
        context=hidden,
    )
    return block_kind(spec, "decoder.cross")


def _decoder(text: ModelGraph, cross: tuple[int, ...]) -> tuple[Segment, Segment, Segment]:
    """Return embedding, blocks and head; up to the last cross-attention layer all hand the image on."""
    embedding, decoder, head = decoder_pieces(text)
    hidden, last = text.hidden_size, max(cross, default=-1)
    table = tuple(
        replace(op, extra_rows=EXTRA_ROWS) if isinstance(op, Embedding) else op
        for op in embedding.layers[0].operators
    )
    first = replace(embedding.layers[0], operators=table, carries=hidden if cross else 0)
    across = _cross_kind(text.attributes, hidden)

    def kind(i: int, own: LayerKind) -> LayerKind:
        """Return the kind of one layer; all but the last hand the image on."""
        return replace(across if i in cross else own, carries=hidden if i < last else 0)

    blocks = tuple(kind(i, own) for i, own in enumerate(decoder.layers))
    return Segment("embedding", (first,)), Segment("decoder", blocks), head


def mllama(config: Config, name: str) -> ModelGraph:
    """Return the graph of Llama 3.2 Vision.

    Raises
    ------
    ModelConfigError
        A part cannot be read.
    """
    vision_config, vision = read_parts(config, FAMILY)
    text = text_part(config, name, FAMILY)
    between = Between(config, vision_config, vision, text.hidden_size)
    cross = _cross_layers(part(config, "text_config", "mllama_text_model"), len(text.block_layers))
    projector = LayerKind("projector", "block", _projector(between), text.hidden_size, IMAGE.name)
    embedding, decoder, head = _decoder(text, cross)
    tower_part = (*tower(vision, PATCHES), Segment("projector", (projector,)))
    tokens = vision.tokens or 1
    tile = tokens // size("max_num_tiles", default=4, what="rows")(Reading(vision_config))
    padded = -(-tile // TILE_MULTIPLE) * TILE_MULTIPLE / tile
    return assemble(
        name,
        (*tower_part, embedding, decoder, head),
        (
            *chain(tower_part),
            Join("projector", "decoder", cross),
            *chain((embedding, decoder, head)),
        ),
        family=config.model_type,
        block_class=FAMILY.block_class,
        streams=(TEXT_ALONE, Stream(PATCHES, "image", padded, tokens), IMAGE),
        context=IMAGE.name,
        notes=(*assumptions(vision_config, str(vision_config.values["model_type"])), *text.notes),
        **beside(text, vision.layers, vision.hidden, tokens),
    )
