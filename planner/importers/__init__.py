"""Models in: a preset's name, a Hugging Face ``config.json`` or its folder, or a short YAML file."""

from pathlib import Path
from typing import Final

from meshwright.hardware.errors import UnknownNameError
from meshwright.planner.graph import ModelGraph

PRESETS: Final = Path(__file__).resolve().parent.parent / "data" / "presets"


def preset_names() -> list[str]:
    """Return the names of the built-in models, sorted."""
    return sorted(file.stem for file in PRESETS.glob("*.json"))


def load_model(model: str | Path, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of a model.

    Parameters
    ----------
    model
        A preset's name (``llama-3.1-8b``), the path of a ``config.json``, of a folder that holds one, or of
        a YAML file with the fields of :class:`~meshwright.planner.decoder.DecoderSpec`.
    mtp
        Whether the layers for multi-token prediction that the file names are part of the model, before its
        head; else they are only counted.

    Raises
    ------
    UnknownNameError
        Neither a preset nor an existing path.
    ModelConfigError
        The file cannot be read or the model cannot be planned; the key is named.
    """
    from meshwright.planner.importers.config import read_config
    from meshwright.planner.importers.hf import model_from_config
    from meshwright.planner.importers.simple import model_from_yaml

    if (name := str(model).lower()) in preset_names():
        return model_from_config(read_config(PRESETS / f"{name}.json"), name, mtp=mtp)
    path = Path(model)
    if not str(model) or not _exists(path):
        raise UnknownNameError(
            "model (a preset, a config.json, its folder, or a YAML file)", str(model), preset_names()
        )
    if path.suffix.lower() in (".yaml", ".yml"):
        return model_from_yaml(path, mtp=mtp)
    return model_from_config(read_config(path), _name(path), mtp=mtp)


def _exists(path: Path) -> bool:
    """Return whether the path can be looked up and exists (a name may be too long or hold a zero byte)."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _name(path: Path) -> str:
    """Return the folder's name for a ``config.json``, the file's stem for other files."""
    resolved = path.resolve()
    if resolved.is_dir():
        return resolved.name
    return resolved.parent.name if resolved.name == "config.json" else resolved.stem
