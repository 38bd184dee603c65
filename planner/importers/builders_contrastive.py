"""Image and text encoders that are trained against each other (CLIP, SigLIP): two towers side by side.

The pipeline's order is image tower, text tower, contrastive head; the first tower's output (one vector an
image) passes the second by. Text is the main stream. Left out: the gathering of all ranks' vectors and the
matrix of their products, which are small beside the towers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.assembly import Join, Segment, assemble
from meshwright.planner.encoders import BlockSpec, EmbeddingSpec, block_kind, embedding_kind
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.attributes import block_sizes
from meshwright.planner.importers.builders_vision import attention_pooling
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.families_vision import read_tower
from meshwright.planner.importers.reading import assumptions, part
from meshwright.planner.importers.rules import Reading, Rule, dropout, flag, quotient, read_fields, size
from meshwright.planner.pieces import few_tokens, norm
from meshwright.planner.vision import PATCHES, TEXT_ALONE, VisionSpec, streams, tower, vision_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTowerSpec:
    """The text side: a small transformer with learned positions."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int
    attention_dropout: float = 0.0


def _text(hidden: int, ffn: int, heads: int, vocab: int, length: int) -> dict[str, Rule]:
    return {
        "hidden": size("hidden_size", default=hidden),
        "layers": size("num_hidden_layers", default=12, what="layers"),
        "heads": size("num_attention_heads", default=heads, what="heads"),
        "head_dim": quotient("hidden", "heads"),
        "ffn": size("intermediate_size", default=ffn),
        "vocab": size("vocab_size", default=vocab, what="vocab"),
        "positions": size("max_position_embeddings", default=length, what="rows"),
        "attention_dropout": dropout("attention_dropout"),
    }


@dataclass(frozen=True, slots=True)
class ContrastiveFamily:
    """How a pair of towers is read.

    Attributes
    ----------
    block_class
        Class of a block in transformers.
    text
        Rules of the text side.
    causal
        Whether a text token sees only those before it.
    projection
        Reads the width that both sides are projected to; None: the image tower pools by attention instead,
        and the text is projected to ``projection_size``, its own width by default, with a bias.
    """

    block_class: str
    text: Mapping[str, Rule]
    causal: bool
    projection: Rule | None


CONTRASTIVE_FAMILIES: Final[Mapping[str, ContrastiveFamily]] = {
    "clip": ContrastiveFamily(
        "CLIPEncoderLayer", _text(512, 2048, 8, 49408, 77), True, size("projection_dim", default=512)
    ),
    "siglip": ContrastiveFamily("SiglipEncoderLayer", _text(768, 3072, 12, 32000, 64), False, None),
}


JOINS: Final = (
    Join("patches", "vision"),
    Join("vision", "image"),
    Join("image", "head"),
    Join("embedding", "text"),
    Join("text", "head"),
)
"""Two chains that meet in the head."""


def _text_segments(spec: TextTowerSpec, *, causal: bool) -> tuple[Segment, Segment]:
    embedding = EmbeddingSpec(vocab=spec.vocab, hidden=spec.hidden, position_rows=spec.positions)
    block = BlockSpec(
        hidden=spec.hidden,
        heads=spec.heads,
        head_dim=spec.head_dim,
        ffn=spec.ffn,
        causal=causal,
        attention_dropout=spec.attention_dropout,
    )
    blocks = (block_kind(block, "text"),) * spec.layers
    return Segment("embedding", (embedding_kind(embedding),)), Segment("text", blocks)


def _image_head(config: Config, vision: VisionSpec, projection: int | None) -> tuple[Operator, ...]:
    """Return norm and projection of the image; SigLIP pools by attention."""
    norm_behind = vision_norm(vision, "final_norm")
    if projection is not None:
        return norm_behind, few_tokens("projection", vision.hidden * projection)
    pools = flag("vision_use_head", default=True)(Reading(config))
    return (norm_behind, *(attention_pooling(vision) if pools else ()))


def _sides(config: Config) -> tuple[Config, Config]:
    """Return the configurations of image and text.

    Files of 2022 repeat what was given to the class in ``*_config_dict``, and it wins.
    """
    given = (part(config, f"{p}_config", f"{config.model_type}_{p}_model") for p in ("vision", "text"))
    image, text = (
        part(config, f"{p}_config_dict", c.model_type, **c.values)
        for p, c in zip(("vision", "text"), given, strict=True)
    )
    return image, text


def contrastive(config: Config, name: str) -> ModelGraph:
    """Return the graph of CLIP or SigLIP.

    Raises
    ------
    ModelConfigError
        A value is not allowed.
    """
    model_type = config.model_type
    family = CONTRASTIVE_FAMILIES[model_type]
    image, text = _sides(config)
    vision = read_tower(image, f"{model_type}_vision_model")
    words = TextTowerSpec(**read_fields(text, family.text))
    projection = family.projection and family.projection(Reading(config))
    # A projection and a temperature; or a projection with bias, temperature and bias.
    width = projection or size("projection_size", default=words.hidden)(Reading(text))
    head: tuple[Operator, ...] = (
        norm("final_norm", words.hidden),
        Pointwise("pooling", "sequence", words.hidden, 0),
        few_tokens("projection", words.hidden * width + (1 if projection else width + 2)),
    )
    image_head = _image_head(image, vision, projection)
    segments = (
        *tower(vision, PATCHES, "vision"),
        Segment("image", (LayerKind("image", "block", image_head, vision.hidden, PATCHES),)),
        *_text_segments(words, causal=family.causal),
        Segment("head", (LayerKind("head", "head", head, words.hidden),)),
    )
    return assemble(
        name,
        segments,
        JOINS,
        family=model_type,
        hidden_size=words.hidden,
        vocab_size=words.vocab,
        max_sequence_length=words.positions,
        block_class=family.block_class,
        streams=(TEXT_ALONE, *streams(vision, vision.patches, 1.0)),
        notes=(*assumptions(image, image.model_type), *assumptions(text, text.model_type)),
        attributes=block_sizes(words, vocab=words.vocab),
    )
