"""Families that are no plain decoder: each has a function that builds its whole graph."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.builders_audio import AUDIO_LANGUAGE, audio_language
from meshwright.planner.importers.builders_contrastive import CONTRASTIVE_FAMILIES, contrastive
from meshwright.planner.importers.builders_encoder import encoder
from meshwright.planner.importers.builders_mllama import mllama
from meshwright.planner.importers.builders_seq2seq import encoder_decoder
from meshwright.planner.importers.builders_vision import HEADS, vision_model
from meshwright.planner.importers.builders_vlm import vision_language
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.families_encoder import ENCODER_FAMILIES
from meshwright.planner.importers.families_seq2seq import SEQ2SEQ_FAMILIES
from meshwright.planner.importers.families_vlm import VISION_LANGUAGE

Builder: TypeAlias = Callable[..., ModelGraph]
"""Takes the configuration and the model's name; those of :data:`WITH_DECODERS` take ``mtp`` as well."""

BUILDERS: Final[Mapping[str, Builder]] = {
    **dict.fromkeys(ENCODER_FAMILIES, encoder),
    **dict.fromkeys(SEQ2SEQ_FAMILIES, encoder_decoder),
    **dict.fromkeys(HEADS, vision_model),
    **dict.fromkeys(CONTRASTIVE_FAMILIES, contrastive),
    **dict.fromkeys(VISION_LANGUAGE, vision_language),
    "mllama": mllama,
    **dict.fromkeys(AUDIO_LANGUAGE, audio_language),
}
"""Builders by ``model_type``."""

WITH_DECODERS: Final[frozenset[Builder]] = frozenset({vision_language, audio_language})
"""Builders whose text part is a decoder, which may have layers for multi-token prediction."""


def find_builder(config: Config) -> Builder | None:
    """Return what builds the graph of a configuration, None for a plain decoder.

    Google's first BERT files name no ``model_type``; their segment types tell them.
    """
    if not config.model_type and "type_vocab_size" in config.values:
        return encoder
    return BUILDERS.get(config.model_type)
