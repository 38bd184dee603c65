"""Vision-language models: tower, projector, text embedding with image tokens, decoder blocks, head.

The image tokens join the text at its embedding, so one chain holds all data flow. The decoder's stream is
the main one: its sequence holds text and image tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.costmodels.operators import LayerKind
from meshwright.planner.assembly import Segment, assemble, chain
from meshwright.planner.graph import ModelGraph, Stream
from meshwright.planner.importers.attributes import beside
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.decoders import decoder_model
from meshwright.planner.importers.families_encoder import ENCODER_FAMILIES
from meshwright.planner.importers.families_seq2seq import SEQ2SEQ_FAMILIES
from meshwright.planner.importers.families_vision import TOWERS, read_tower
from meshwright.planner.importers.families_vlm import TEXT_PARTS, VISION_LANGUAGE, VisionLanguage
from meshwright.planner.importers.projectors import Between
from meshwright.planner.importers.reading import assumptions, part
from meshwright.planner.vision import PATCHES, VisionSpec, streams, tower

IMAGE = Stream("image", "image")
"""Image tokens as the decoder sees them; the projector works on these."""

NO_DECODERS = frozenset((*ENCODER_FAMILIES, *SEQ2SEQ_FAMILIES, *TOWERS))
PARTS = ("vision_config", "text_config", "audio_config")
WINDOW_KEYS = ("sliding_window", "max_window_layers")
"""Defaults that matter only where a switch turns windows on."""


def text_part(config: Config, name: str, family: VisionLanguage, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of the decoder: its embedding, blocks (those for ``mtp`` among them) and head.

    Raises
    ------
    ModelConfigError
        The decoder cannot be read.
    """
    values, assumed = _text_values(config, family)
    inner = replace(config, values=values, source=f"{config.source}: text_config", assumed=assumed)
    if values["model_type"] in NO_DECODERS:
        config.refuse("text_config.model_type", values["model_type"], "a decoder-only language model")
    return decoder_model(inner, name, mtp=mtp)


def _own_text(config: Config, family: VisionLanguage) -> Mapping[str, Any]:
    """Return the text part's keys as the file has them."""
    inner = config.values.get("text_config")
    if inner is not None and not isinstance(inner, Mapping):
        config.refuse("text_config", inner, "an object")
    if inner is not None:
        return inner
    return {k: v for k, v in config.values.items() if k not in PARTS} if family.flat else family.text_absent


def _text_values(config: Config, family: VisionLanguage) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the decoder's keys with its class's defaults below them, and the sizes that were defaults."""
    own = _own_text(config, family)
    model_type = family.text_is or own.get("model_type") or family.text
    if not isinstance(model_type, str):
        config.refuse("text_config.model_type", model_type, "a text such as 'llama'")
    read_as, defaults = TEXT_PARTS.get(model_type, (model_type, {}))
    if family.merges_text:
        defaults = {**defaults, **family.text_absent}
    values = {**defaults, **own, "model_type": read_as}
    values.pop("cross_attention_layers", None)
    outer = config.values.get("tie_word_embeddings")
    tied = family.tied if outer is None else outer
    if tied or not family.inherits_tie:
        values["tie_word_embeddings"] = tied
    return values, {k: v for k, v in defaults.items() if k not in own and k not in WINDOW_KEYS}


def _image_tokens(vision: VisionSpec, merge: float) -> int | None:
    return None if vision.patches is None else max(1, int(vision.patches / merge))


def decoder_pieces(graph: ModelGraph) -> tuple[Segment, Segment, Segment]:
    """Return embedding, blocks and head of a decoder's graph."""
    layers = tuple(graph.kinds[k] for k in graph.layer_kinds)
    return Segment("embedding", layers[:1]), Segment("decoder", layers[1:-1]), Segment("head", layers[-1:])


def read_parts(config: Config, family: VisionLanguage) -> tuple[Config, VisionSpec]:
    """Return the tower's part of the file and the tower.

    Raises
    ------
    ModelConfigError
        The tower is not known, or a value is not allowed.
    """
    absent = family.vision_absent if config.values.get("vision_config") is None else {}
    inner = part(config, "vision_config", family.tower, **absent)
    if family.tower_is:
        inner = replace(inner, values={**inner.values, "model_type": family.tower_is})
    return inner, read_tower(inner)


def vision_language(config: Config, name: str, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of a vision-language model.

    Raises
    ------
    ModelConfigError
        A part cannot be read.
    """
    family = VISION_LANGUAGE[config.model_type]
    vision_config, vision = read_parts(config, family)
    text = text_part(config, name, family, mtp=mtp)
    between = Between(config, vision_config, vision, text.hidden_size)
    merge = family.merge(between)
    tokens = _image_tokens(vision, merge)
    projector = LayerKind("projector", "block", family.projector(between), text.hidden_size, IMAGE.name)
    segments = (*tower(vision, PATCHES), Segment("projector", (projector,)), *decoder_pieces(text))
    return assemble(
        name,
        segments,
        chain(segments),
        tied=(("embedding", "head"),) if text.tied else (),
        family=config.model_type,
        block_class=family.block_class or text.block_class,
        streams=(*streams(vision, tokens, merge), IMAGE),
        notes=(*assumptions(vision_config, str(vision_config.values["model_type"])), *text.notes),
        **beside(text, vision.layers, vision.hidden, tokens),
    )
