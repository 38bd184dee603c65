"""From a Hugging Face ``config.json`` to a model graph, by the tables of the families."""

from collections.abc import Mapping
from dataclasses import replace

from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.builders import find_builder
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.contradictions import refuse_contradictions
from meshwright.planner.importers.families import ALIASES, FAMILIES, GENERIC, NESTED
from meshwright.planner.importers.rules import read_fields
from meshwright.planner.importers.unsupported import refuse_unsupported


def model_from_config(config: Config, name: str) -> ModelGraph:
    """Return the graph of a configuration.

    Raises
    ------
    ModelConfigError
        The architecture is not supported, keys are missing or a value is not allowed; all are named.
    """
    builder = find_builder(config)
    if builder is not None:
        return builder(config, name)
    config, notes = _text_part(config)
    refuse_unsupported(config)
    model_type = ALIASES.get(config.model_type, config.model_type)
    family = FAMILIES.get(model_type, GENERIC)
    spec = DecoderSpec(**read_fields(config, family.rules))
    refuse_contradictions(config, spec)
    if family is GENERIC:
        notes += (_assumption(config),)
    notes += family.notes + tuple(
        f"{key} is not in the file: {value:,}, the default of {model_type}"
        for key, value in config.assumed.items()
    )
    return decoder_graph(
        spec, name, family=model_type or "unknown", block_class=family.block_class, notes=notes
    )


def _text_part(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Return the text part of a model with several parts if its family is known, else the whole."""
    family = NESTED.get(config.model_type)
    inner = config.values.get("text_config")
    if family is None or not isinstance(inner, Mapping):
        return config, ()
    tied = {k: v for k, v in config.values.items() if k == "tie_word_embeddings"}
    values = {**tied, **inner, "model_type": family}
    note = f"{config.model_type}: only the text part is planned; its vision tower is left out"
    return replace(config, values=values), (note,)


def _assumption(config: Config) -> str:
    """Return the note on what an unknown model type was taken for."""
    return (
        f"model_type {config.model_type or 'none'!r} is not known: planned as Llama-like (RMSNorm before "
        "attention and MLP, gated MLP, rotary positions, full attention unless layer_types says "
        "otherwise, no biases unless the file names them)"
    )
