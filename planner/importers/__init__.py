"""Models in: a preset or its repository, a Hugging Face ``config.json`` or its folder, a short YAML file."""

import json
import re
from pathlib import Path
from typing import Final

from meshwright.hardware.errors import UnknownNameError
from meshwright.planner.graph import ModelGraph

HUB_FILE: Final = re.compile(r"https://huggingface\.co/([^/ ]+/[^/ ]+)/blob/main/config\.json")
REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
PRESETS: Final = Path(__file__).resolve().parent.parent / "data" / "presets"


def preset_names() -> list[str]:
    """Return the names of the built-in models, sorted."""
    return sorted(file.stem for file in PRESETS.glob("*.json"))


def load_model(model: str | Path, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of a model.

    Parameters
    ----------
    model
        A preset's name (``llama-3.1-8b``) or the repository on the Hugging Face hub whose file it is
        (``meta-llama/Llama-3.1-8B``), the path of a ``config.json``, of a folder that holds one, or of
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
        if name in (known := _repositories()):
            return load_model(known[name], mtp=mtp)
        raise UnknownNameError(
            "model (a preset, a config.json, its folder, or a YAML file)",
            str(model),
            preset_names(),
            like=name.rpartition("/")[2],
            more=_fetching(str(model)),
        )
    if path.suffix.lower() in (".yaml", ".yml"):
        return model_from_yaml(path, mtp=mtp)
    return model_from_config(read_config(path), _name(path), mtp=mtp)


def _repositories() -> dict[str, str]:
    """Return the presets by the repository whose ``config.json`` they are, in lower case."""
    sources = ((file.stem, json.loads(file.read_text("utf-8"))["_source"]) for file in PRESETS.glob("*.json"))
    return {found[1].lower(): name for name, source in sources if (found := HUB_FILE.fullmatch(source))}


def _fetching(model: str) -> str:
    """Return the command that fetches the file of what looks like a repository on the hub, nothing else."""
    if not REPOSITORY.fullmatch(model) or model.lower().endswith((".json", ".yaml", ".yml")):
        return ""
    folder = model.rpartition("/")[2]
    command = f"hf download {model} config.json --local-dir {folder}"
    return f" (or fetch the repository's own file: `{command}`, then --model {folder}/config.json)"


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
