"""Rules for patterns of layers: a name for each layer, listed in the file or by the family's arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from meshwright.planner.decoder import Sublayer
from meshwright.planner.importers.config import LIMITS, MISSING
from meshwright.planner.importers.rules import Reading, Rule, Value

Names: TypeAlias = Callable[[Reading], tuple[str, ...]]
Arithmetic: TypeAlias = Callable[[Reading, int], str]
Make: TypeAlias = Callable[[Reading], Sublayer | None]

FULL: Final = "full_attention"
LINEAR: Final = "linear_attention"
LEGACY: Final[Mapping[str, str]] = {
    "attention": FULL,
    "mamba": LINEAR,
    "m": LINEAR,
    "recurrent": LINEAR,
    "g": "hybrid",
}
"""Older names of layer types and what transformers 5 calls them."""


def by_arithmetic(name_of: Arithmetic) -> Names:
    """Return a rule for the name of each layer by its index alone."""
    return lambda reading: tuple(name_of(reading, i) for i in range(reading.fields["layers"]))


def listed(*keys: str, otherwise: Names) -> Names:
    """Return a rule for names that the file lists under one of ``keys``, else those of ``otherwise``."""

    def read(reading: Reading) -> tuple[str, ...]:
        """Read the type of each layer."""
        key, value = reading.config.find(keys)
        if value is MISSING or value is None:
            return otherwise(reading)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            reading.config.refuse(key, value, "a list of layer types, one for each layer")
        if len(value) != reading.fields["layers"]:
            reading.config.refuse(
                key,
                value,
                f"one entry for each of {reading.fields['layers']} layers ({len(value)} are given)",
            )
        return tuple(LEGACY.get(name, name) for name in value)

    return read


def letters(key: str, meaning: Mapping[str, str]) -> Callable[[Reading], tuple[str, ...] | None]:
    """Return a rule for a pattern written as one letter a layer ("M-M*"); None where the file has none."""

    def read(reading: Reading) -> tuple[str, ...] | None:
        """Read a type for each letter."""
        _, value = reading.config.find((key,))
        if value is MISSING or value is None:
            return None
        known = isinstance(value, str) and value and all(letter in meaning for letter in value)
        if not known or len(value) > LIMITS["layers"]:
            reading.config.refuse(key, value, f"a text of the letters {' '.join(meaning)}, one a layer")
        return tuple(meaning[letter] for letter in value)

    return read


def chosen(names: Names, makers: Mapping[str, Make]) -> Rule:
    """Return a rule for one sublayer a layer, made as the layer's name says.

    Raises
    ------
    ModelConfigError
        A name that the family does not have.
    """

    def read(reading: Reading) -> Value:
        """Read the mixer or feed of each layer."""
        each = names(reading)
        unknown = next((name for name in each if name not in makers), None)
        if unknown is not None:
            reading.config.refuse("layer type", unknown, " or ".join(makers))
        made = {name: makers[name](reading) for name in dict.fromkeys(each)}
        return shortest([made[name] for name in each])

    return read


def shortest(sublayers: Sequence[Sublayer | None]) -> tuple[Sublayer | None, ...]:
    """Return a pattern of one entry where all layers are alike, else all entries."""
    return tuple(sublayers[:1] if len(set(sublayers)) == 1 else sublayers)
