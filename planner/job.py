"""The training job: what must be trained, how, and which decisions the user has already taken."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
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
        for name in ("global_batch_size", "sequence_length", "tokens"):
            value = getattr(self, name)
            if value is not None or name != "tokens":
                object.__setattr__(self, name, _check_count(name, value))
        for name in ("precision", "optimizer", "target", "profile", "loss"):
            value = getattr(self, name)
            if not (isinstance(value, str) or (value is None and name in ("profile", "loss"))):
                raise MeshwrightError(f"{name}: {value!r} is not a name")
        if isinstance(self.headroom, bool) or not isinstance(self.headroom, int | float):
            raise MeshwrightError(f"headroom: {self.headroom!r} is not a number in [0, 1)")
        if not 0 <= self.headroom < 1:
            raise MeshwrightError(f"headroom: {self.headroom!r} is not in [0, 1); it is a fraction of memory")
        if not isinstance(self.allow_idle, bool):
            raise MeshwrightError(f"allow_idle: {self.allow_idle!r} is not true or false")
        if not isinstance(self.choices, Mapping) or not all(
            isinstance(c, Choice) for c in self.choices.values()
        ):
            raise MeshwrightError(f"choices: {self.choices!r} is not a mapping of decisions to choices")
        unknown = sorted(map(str, set(self.choices) - set(DECISIONS)))
        if unknown:
            raise MeshwrightError(f"pins: {unknown[0]!r} is not a decision; allowed: {', '.join(DECISIONS)}")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Job":
        """Build a job from plain keys.

        ``pins`` become choices (:mod:`meshwright.planner.pins`); ``global_batch_tokens`` may stand in place
        of ``global_batch_size``.

        Raises
        ------
        MeshwrightError
            If a key is unknown or missing, or a value is out of range.
        """
        if not isinstance(data, Mapping):
            raise MeshwrightError(f"job: a mapping or a Job is expected, not {type(data).__name__}")
        own = {f.name for f in fields(cls)} - {"choices"}
        known = own | {"pins", "global_batch_tokens"}
        unknown = sorted(str(k) for k in data if k not in known)
        if unknown:
            raise MeshwrightError(f"job: {unknown[0]!r} is not a field; allowed: {', '.join(sorted(known))}")
        values = {k: v for k, v in data.items() if k in own}
        if "sequence_length" not in values:
            raise MeshwrightError("job: sequence_length is missing; give the tokens of a sequence")
        _check_count("sequence_length", values["sequence_length"])
        values["global_batch_size"] = batch_sequences(data)
        return cls(**values, choices=read_pins(data.get("pins") or {}))


def batch_sequences(data: Mapping[str, Any]) -> int:
    """Return the global batch in sequences, from ``global_batch_size`` or ``global_batch_tokens``.

    Raises
    ------
    MeshwrightError
        If neither or both are given, or the tokens are no multiple of the length (the nearest that are
        named).
    """
    given = [key for key in ("global_batch_size", "global_batch_tokens") if data.get(key) is not None]
    if len(given) != 1:
        state = "cannot both be given" if given else "are missing"
        raise MeshwrightError(f"global_batch_size (sequences) and global_batch_tokens {state}; give one")
    count = _check_count(given[0], data[given[0]])
    if given[0] == "global_batch_size":
        return count
    tokens, length = count, int(data["sequence_length"])
    below = tokens // length
    if tokens % length:
        near = [f"{n * length} ({n} sequence{'s' * (n != 1)})" for n in (below, below + 1) if n]
        raise MeshwrightError(
            f"global_batch_tokens {tokens} is no multiple of sequence_length {length}; "
            f"nearest: {' and '.join(near)}"
        )
    return below


def _check_count(name: str, value: Any) -> int:
    """Return a count as a plain integer (numpy's are welcome)."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= 10**15:
        raise MeshwrightError(f"{name}: {value!r} is not a positive integer (at most 1e15)")
    return int(value)
