"""From a Hugging Face ``config.json`` to a model graph: builders of whole graphs first, decoders else."""

from dataclasses import replace
from typing import Final

from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.builders import WITH_DECODERS, find_builder
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.decoders import decoder_model
from meshwright.planner.importers.names import check_names
from meshwright.planner.importers.unsupported import refuse_text_alone

NO_MTP: Final = "mtp: the file names no multi-token-prediction layers that can be planned; none were added"


def model_from_config(config: Config, name: str, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of a configuration.

    Parameters
    ----------
    config, name
        The file, and the model's name.
    mtp
        Whether the layers for multi-token prediction that the file names are trained as well.

    Raises
    ------
    ModelConfigError
        The architecture is not supported, keys are missing or a value is not allowed; all are named.
    """
    named = check_names(config)
    refuse_text_alone(config)
    builder = find_builder(config)
    if builder is None:
        graph = decoder_model(config, name, mtp=mtp)
    else:
        graph = builder(config, name, mtp=mtp) if builder in WITH_DECODERS else builder(config, name)
    lost = (NO_MTP,) if mtp and not _predicts(graph) else ()
    return replace(graph, notes=(*graph.notes, *named, *lost))


def _predicts(graph: ModelGraph) -> bool:
    """Return whether layers for multi-token prediction are part of the graph."""
    return any(kind.name.startswith("mtp") for kind in graph.kinds)
