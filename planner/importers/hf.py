"""From a Hugging Face ``config.json`` to a model graph: builders of whole graphs first, decoders else."""

from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.builders import find_builder
from meshwright.planner.importers.config import Config
from meshwright.planner.importers.decoders import decoder_model


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
    builder = find_builder(config)
    if builder is not None:
        return builder(config, name)
    return decoder_model(config, name, mtp=mtp)
