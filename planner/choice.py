"""What a job allows for a decision of the search: values, a range, and values that are forbidden."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.hardware.errors import MeshwrightError

DECISIONS = (
    "tp",
    "cp",
    "pp",
    "dp",
    "dp_replicate",
    "ep",
    "etp",
    "hpz",
    "vpp",
    "zero_stage",
    "micro_batch_size",
    "num_microbatches",
    "sequence_parallel",
    "kv_exchange",
    "ulysses",
    "offload",
    "schedule",
    "placement",
    "recompute",
)
"""Decisions of the search that a job may pin, bound or forbid."""


@dataclass(frozen=True)
class Choice:
    """What is allowed for one decision: a set of values, a range, and values that are forbidden."""

    allowed: frozenset[Any] | None = None
    minimum: float | None = None
    maximum: float | None = None
    forbidden: frozenset[Any] = frozenset()

    def admits(self, value: Any) -> bool:
        """Return whether ``value`` passes."""
        if self.allowed is not None and value not in self.allowed:
            return False
        if value in self.forbidden:
            return False
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )


def choice(value: Any) -> Choice:
    """Return the choice that a user wrote: a value, a list of values, or a range string.

    ``4`` pins, ``[2, 4]`` allows two values, ``"<=8"`` and ``">=2"`` bound, ``"!3"`` forbids, and
    ``{"min": 2, "max": 8}`` bounds both ways.
    """
    if isinstance(value, Choice):
        return value
    if isinstance(value, Mapping):
        return Choice(minimum=value.get("min"), maximum=value.get("max"))
    if isinstance(value, list | tuple | set | frozenset):
        return Choice(allowed=frozenset(value))
    if isinstance(value, str):
        for sign, key in (("<=", "maximum"), (">=", "minimum")):
            if value.startswith(sign):
                return Choice(**{key: _number(value[2:])})  # type: ignore[arg-type]
        if value.startswith("!"):
            return Choice(forbidden=frozenset({_scalar(value[1:])}))
        if "," in value:
            return Choice(allowed=frozenset(_scalar(v) for v in value.split(",")))
    return Choice(allowed=frozenset({_scalar(value)}))


def _scalar(value: Any) -> Any:
    """Return an int or bool where the text is one."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    words = {"true": True, "false": False, "on": True, "off": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MeshwrightError(f"pins: {text!r} is not a number; write for example tp<=8") from None
