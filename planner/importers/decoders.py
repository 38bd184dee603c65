"""Decoders by the tables of the families: a model of its own, or the text part of another."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.hardware.errors import shown
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.contradictions import refuse_contradictions
from meshwright.planner.importers.families import ALIASES, FAMILIES, GENERIC
from meshwright.planner.importers.family import Family
from meshwright.planner.importers.rules import read_fields
from meshwright.planner.importers.unsupported import EXPERTS, LATENT, refuse_unsupported
from meshwright.planner.importers.words import words


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder as a file describes it: its specification and how it was read."""

    spec: DecoderSpec
    family: str
    block_class: str | None
    notes: tuple[str, ...]
    words: Mapping[str, float | str | bool]


def decoder_model(config: Config, name: str, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of a decoder; ``mtp`` adds the layers for multi-token prediction.

    Raises
    ------
    ModelConfigError
        The architecture is not supported, keys are missing or a value is not allowed; all are named.
    """
    read = read_decoder(config)
    return decoder_graph(
        read.spec,
        name,
        family=read.family,
        block_class=read.block_class,
        notes=read.notes,
        mtp=mtp,
        words=read.words,
    )


def read_decoder(config: Config) -> Decoder:
    """Return the decoder that a configuration (or its text part) describes; raises ModelConfigError."""
    model_type = ALIASES.get(config.model_type, config.model_type)
    family = FAMILIES.get(model_type, GENERIC)
    refuse_unsupported(config, _read_by(family))
    spec = DecoderSpec(**read_fields(config, family.rules))
    refuse_contradictions(config, spec)
    notes: tuple[str, ...] = (_assumption(config, spec),) if family is GENERIC else ()
    notes += family.notes + tuple(
        f"{key} is not in the file: {value:,}, the default of {model_type}"
        for key, value in config.assumed.items()
    )
    return Decoder(spec, model_type or "unknown", family.block_class, notes, words(config))


def _read_by(family: Family) -> tuple[str, ...]:
    """Return the architectures that a family's rules read."""
    experts = (EXPERTS,) if "feeds" in family.rules else ()
    latent = (LATENT,) if "mixers" in family.rules else ()
    return *experts, *latent, *family.reads


def _assumption(config: Config, spec: DecoderSpec) -> str:
    """Return the note on what an unknown model type was taken for."""
    experts = "experts as its keys say" if spec.feeds else "a gated MLP"
    attention = "latent attention" if spec.mixers else "full attention unless layer_types says otherwise"
    return (
        f"model_type {shown(config.model_type or 'none')} is not known: planned as Llama-like (RMSNorm "
        f"before attention and MLP, {experts}, rotary positions, {attention}, no biases unless the file "
        "names them)"
    )
