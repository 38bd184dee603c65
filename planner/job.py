"""The training job: what must be trained, how, and which decisions the user has already taken."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshwright.hardware.errors import MeshwrightError

DECISIONS = (
    "tp",
    "pp",
    "dp",
    "vpp",
    "zero_stage",
    "micro_batch_size",
    "num_microbatches",
    "sequence_parallel",
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


@dataclass(frozen=True)
class Job:
    """A training job.

    Attributes
    ----------
    global_batch_size
        Sequences per optimizer step.
    sequence_length
        Tokens per sequence.
    precision
        A recipe of :mod:`meshwright.costmodels.precision`.
    optimizer
        An optimizer of the same module.
    target
        The framework that must be able to run the plan, or ``any``.
    profile
        Software profile; the target's own when None.
    loss
        ``full``, ``chunked`` or ``fused`` cross entropy; the profile's own when None.
    headroom
        Fraction of the device's usable memory that a plan must leave free.
    tokens
        Tokens of the whole run, for its bill; optional.
    choices
        Pins, bounds and bans by decision name (see :data:`DECISIONS`).
    allow_idle
        Whether devices may stay unused.

    Raises
    ------
    MeshwrightError
        If a number is not a positive integer or a decision's name is unknown.
    """

    global_batch_size: int
    sequence_length: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    target: str = "any"
    profile: str | None = None
    loss: str | None = None
    headroom: float = 0.04
    tokens: int | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict)
    allow_idle: bool = False

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "sequence_length"):
            _check_count(name, getattr(self, name))
        if self.tokens is not None:
            _check_count("tokens", self.tokens)
        if not 0 <= self.headroom < 1:
            raise MeshwrightError(f"headroom: {self.headroom!r} is not in [0, 1); it is a fraction of memory")
        unknown = sorted(set(self.choices) - set(DECISIONS))
        if unknown:
            raise MeshwrightError(f"pins: {unknown[0]!r} is not a decision; allowed: {', '.join(DECISIONS)}")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Job":
        """Build a job from plain keys; ``pins`` become choices (:mod:`meshwright.planner.pins`)."""
        known = {f.name for f in fields(cls)} - {"choices"}
        unknown = sorted(set(data) - known - {"pins"})
        if unknown:
            raise MeshwrightError(
                f"job: {unknown[0]!r} is not a field; allowed: {', '.join(sorted(known | {'pins'}))}"
            )
        from meshwright.planner.pins import read_pins

        pins = read_pins(data.get("pins") or {})
        return cls(**{k: v for k, v in data.items() if k in known}, choices=pins)


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


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**15:
        raise MeshwrightError(f"{name}: {value!r} is not a positive integer (at most 1e15)")
