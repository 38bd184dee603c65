"""Rules: how one field of a :class:`~meshwright.planner.decoder.DecoderSpec` is read from a config.json.

A rule is a function of a :class:`Reading` (the file, and the fields that were read before this one). The
families in :mod:`meshwright.planner.importers.families` are tables of rules. A rule says three things:
under which keys the value may stand, what an absent key means (the default of the framework's
configuration class), and what an explicit null means.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from meshwright.hardware.errors import shown
from meshwright.planner.importers.config import MISSING, Config, ModelConfigError

Value: TypeAlias = Any


@dataclass(slots=True)
class Reading:
    """A configuration being read: the file and the fields known so far."""

    config: Config
    fields: dict[str, Value] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


Rule: TypeAlias = Callable[[Reading], Value]
Default: TypeAlias = "Rule | int | float | bool | None"

NOT_GIVEN: Final = -1
"""Stands for a required size that the file lacks until the reading ends and all are named at once."""


def _resolve(reading: Reading, default: Default) -> Value:
    return default(reading) if callable(default) else default


def _found(names: tuple[str, ...], default: Default, parse: Callable[[Config, str, object], Value]) -> Rule:
    """Return a rule that parses what stands under one of the names; absent and null mean ``default``."""

    def read(reading: Reading) -> Value:
        """Parse the value."""
        name, value = reading.config.find(names)
        if value is MISSING or value is None:
            return _resolve(reading, default)
        return parse(reading.config, name, value)

    return read


def size(*names: str, default: Default = None, null: Default = None, what: str = "width") -> Rule:
    """Return a rule for a positive integer; without any default the key is required.

    ``null`` is what an explicit null means; if it is None, null means the same as an absent key.
    """

    def read(reading: Reading) -> Value:
        """Read the size."""
        name, value = reading.config.find(names)
        if value is MISSING or value is None:
            fallback = default if value is MISSING or null is None else null
            resolved = _resolve(reading, fallback)
            if resolved is None:
                reading.missing.append(" or ".join(names))
                return NOT_GIVEN
            if isinstance(fallback, int):
                reading.config.assumed[name] = fallback
            return resolved
        return reading.config.count(name, value, what)

    return read


def optional_size(*names: str, default: Default = None, what: str = "width") -> Rule:
    """Return a rule for a positive integer that may be absent or null (None)."""
    return _found(names, default, lambda config, name, value: config.count(name, value, what))


def amount(*names: str, default: Default = 0, what: str = "width") -> Rule:
    """Return a rule for an integer that may be zero; absent and null mean ``default``."""
    return _found(names, default, lambda config, name, value: config.count(name, value, what, minimum=0))


def nullable(*names: str, default: Default = None, what: str = "width") -> Rule:
    """Return a rule for a positive integer where absent means ``default`` and null means None."""

    def read(reading: Reading) -> Value:
        """Read the size, None where null is written."""
        name, value = reading.config.find(names)
        if value is None:
            return None
        return _resolve(reading, default) if value is MISSING else reading.config.count(name, value, what)

    return read


def share(*names: str, default: float = 1.0) -> Rule:
    """Return a rule for a fraction from 0 to 1; absent and null mean ``default``."""
    return _found(names, default, Config.fraction)


def flag(*names: str, default: Default = False) -> Rule:
    """Return a rule for a switch; absent and null mean ``default``."""
    return _found(names, default, Config.flag)


def dropout(*names: str, default: float = 0.0) -> Rule:
    """Return a rule for a probability; absent and null mean ``default``."""
    return _found(names, default, Config.probability)


def constant(value: Value) -> Rule:
    """Return a rule that needs no key."""
    return lambda _: value


def same_as(name: str) -> Rule:
    """Return a rule that copies a field that was read before."""
    return lambda reading: reading.fields[name]


def times(rule: Rule, factor: int) -> Rule:
    """Return a rule for a multiple of another."""
    return lambda reading: factor * rule(reading)


def plus(rule: Rule, addend: int) -> Rule:
    """Return a rule for another's value and ``addend``."""
    return lambda reading: rule(reading) + addend


def quotient(numerator: str, denominator: str) -> Rule:
    """Return a rule for one field divided by another; refuses a remainder."""

    def read(reading: Reading) -> Value:
        """Return the quotient of two fields; refuses a remainder."""
        a, b = reading.fields[numerator], reading.fields[denominator]
        if NOT_GIVEN in (a, b):
            return NOT_GIVEN
        if a % b:
            reading.config.refuse(numerator, a, f"a multiple of {denominator} ({b})")
        return a // b

    return read


def floor(numerator: str, denominator: str) -> Rule:
    """Return a rule for one field divided by another, rounded down."""

    def read(reading: Reading) -> Value:
        """Return the whole part of the quotient, at least 1."""
        a, b = reading.fields[numerator], reading.fields[denominator]
        return NOT_GIVEN if NOT_GIVEN in (a, b) else max(1, a // b)

    return read


def each_layer(*names: str, default: Default = None, minimum: int = 1, what: str = "width") -> Rule:
    """Return a rule for an integer in each layer: one for all, or a list; a tuple as long as ``layers``."""

    def read(reading: Reading) -> Value:
        """Read one value for each layer."""
        name, value = reading.config.find(names)
        layers = reading.fields["layers"]
        if value is MISSING or value is None:
            resolved = _resolve(reading, default)
            if resolved is None:
                reading.missing.append(" or ".join(names))
                return (NOT_GIVEN,)
            return (resolved,) * max(1, layers)
        if not isinstance(value, list):
            return (reading.config.count(name, value, what, minimum),) * max(1, layers)
        if len(value) < layers:
            reading.config.refuse(name, value, f"one entry for each of {layers} layers")
        return tuple(reading.config.count(name, v, what, minimum) for v in value)

    return read


def inverse(rule: Rule) -> Rule:
    """Return a rule for the opposite of a switch."""
    return lambda reading: not rule(reading)


def choose(condition: Rule, yes: Rule | Value, no: Rule | Value) -> Rule:
    """Return a rule that reads ``yes`` or ``no``, as a switch says."""

    def read(reading: Reading) -> Value:
        """Return what the condition chooses."""
        return _resolve(reading, yes if condition(reading) else no)

    return read


def either(*rules: Rule) -> Rule:
    """Return a rule that is true where one of the switches is."""
    return lambda reading: any(rule(reading) for rule in rules)


def every(*rules: Rule) -> Rule:
    """Return a rule that is true where all of the switches are."""
    return lambda reading: all(rule(reading) for rule in rules)


def read_fields(config: Config, rules: Mapping[str, Rule]) -> dict[str, Value]:
    """Return all fields, read in the order of ``rules``.

    Raises
    ------
    ModelConfigError
        A value is not allowed, or required keys are missing: all of them are named.
    """
    reading = Reading(config)
    for name, rule in rules.items():
        reading.fields[name] = rule(reading)
    if reading.missing:
        known = config.model_type or "none"
        raise ModelConfigError(
            f"{config.source}: model_type {shown(known)} needs keys that are missing: "
            f"{', '.join(reading.missing)}"
        )
    return reading.fields
