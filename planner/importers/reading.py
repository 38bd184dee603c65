"""What builders of whole graphs read alike: the head that a file names, labels, assumed defaults, parts."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.planner.importers.config import MISSING, Config


def architecture(config: Config, known: tuple[str, ...], default: str) -> str:
    """Return the ending of the class in ``architectures`` that tells the head, ``default`` without one.

    Raises
    ------
    ModelConfigError
        The class has a head that is not among ``known``.
    """
    _, value = config.find(("architectures",))
    if value is MISSING or value is None or value == []:
        return default
    first = value[0] if isinstance(value, list) else value
    if not isinstance(first, str):
        config.refuse("architectures", value, "a list of class names")
    match = re.search("(" + "|".join(sorted(known, key=len, reverse=True)) + ")$", first)
    if match is None:
        config.refuse("architectures", value, "a class that ends in " + ", ".join(known))
    return match.group(1)


def head_note(config: Config, head: str) -> tuple[str, ...]:
    """Return a note on the head that was taken where the file names no class."""
    if config.values.get("architectures"):
        return ()
    return (f"architectures is not in the file: planned as the class that ends in {head}",)


def labels(config: Config, default: int = 2) -> int:
    """Return the classes of a classification head: as many as ``id2label`` names, or ``num_labels``.

    ``default`` is what the configuration class takes where the file says neither.
    """
    _, names = config.find(("id2label",))
    if isinstance(names, Mapping) and names:
        return len(names)
    _, value = config.find(("num_labels", "_num_labels"))
    return default if value is MISSING or value is None else config.count("num_labels", value, "width")


def assumptions(config: Config, model_type: str) -> tuple[str, ...]:
    """Return a note for each size that the file left to its class's default."""
    return tuple(
        f"{key} is not in the file: {value:,}, the default of {model_type}"
        for key, value in config.assumed.items()
    )


def part(config: Config, name: str, default_type: str, **inherited: Any) -> Config:
    """Return a nested configuration (``text_config``, ``vision_config``) as one of its own.

    An absent one is empty: its class's defaults serve. ``inherited`` are values that the part takes over
    where it names none itself.

    Raises
    ------
    ModelConfigError
        It is there, but no object.
    """
    value = config.values.get(name)
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        config.refuse(name, value, "an object")
    values = {"model_type": default_type, **inherited, **value}
    if not values["model_type"]:
        values["model_type"] = default_type
    return replace(config, values=values, source=f"{config.source}: {name}", assumed={})
