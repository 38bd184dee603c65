"""The training job: what must be trained, how, and which decisions the user has already taken."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import DECISIONS, Choice
from meshwright.planner.pins import read_pins


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
        pins = read_pins(data.get("pins") or {})
        return cls(**{k: v for k, v in data.items() if k in known}, choices=pins)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**15:
        raise MeshwrightError(f"{name}: {value!r} is not a positive integer (at most 1e15)")
