"""Families that are no plain decoder: each has a function that builds its whole graph."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.builders_encoder import ENCODER_FAMILIES, encoder
from meshwright.planner.importers.config import Config

Builder: TypeAlias = Callable[[Config, str], ModelGraph]

BUILDERS: Final[Mapping[str, Builder]] = {
    **dict.fromkeys(ENCODER_FAMILIES, encoder),
}
"""Builders by ``model_type``."""


def find_builder(config: Config) -> Builder | None:
    """Return what builds the graph of a configuration, None for a plain decoder.

    Google's first BERT files name no ``model_type``; their segment types tell them.
    """
    if not config.model_type and "type_vocab_size" in config.values:
        return encoder
    return BUILDERS.get(config.model_type)
