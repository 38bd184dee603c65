"""The training job: what must be trained, how, and which decisions the user has already taken."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from meshwright.costmodels.modules import MODULES
from meshwright.hardware.errors import MeshwrightError, UnknownNameError, shown
from meshwright.planner.choice import DECISIONS, Choice
from meshwright.planner.pins import read_pins
from meshwright.planner.tuning import Tuning, read_tuning

_OPTIONAL_COUNTS = ("tokens", "target_length", "image_tokens")
_NAMES = ("precision", "optimizer", "target", "profile", "loss")
OOM_RISK = 0.05
"""Share of runs that may exceed the headroom where nobody asks for another."""
MOST_RISK = 0.5
"""Half of the runs exceed the prediction itself."""


@dataclass(frozen=True)
class Job:
    """A training job.

    Attributes
    ----------
    global_batch_size
        Sequences per optimizer step.
    sequence_length
        Tokens per sequence; the encoder's where there is one.
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
        Fraction of the device's usable memory that a plan must leave free; None: what measured peaks ask for
        at ``oom_risk`` (:mod:`meshwright.planner.headroom`).
    oom_risk
        Share of measured runs like this one whose peak may exceed the prediction by more than the headroom;
        of no effect beside a given headroom.
    tokens
        Tokens of the whole run, for its bill; optional.
    choices
        Pins, bounds and bans by decision name (see :data:`DECISIONS`).
    allow_idle
        Whether devices may stay unused.
    target_length
        Tokens per sequence of an encoder-decoder's decoder; None: as long as the encoder's.
    image_tokens
        Tokens that images (or audio) add to a sample's decoder sequence, for models that read them; None: no
        images.
    tuning
        What is trained; text (``lora:r=16``) and mappings are read (:mod:`meshwright.planner.tuning`).
    expert_load
        Rows of the busiest expert rank over the mean, at least 1, or the capacity factor.
    recompute_modules
        What selective recompute runs again, by names of :mod:`meshwright.costmodels.modules`; a list,
        or text with commas. Empty: norms, activation functions, and scores that go through memory.
    mtp
        Whether the multi-token-prediction layers that the model's file names are trained as well.

    Raises
    ------
    MeshwrightError
        If a number is not a positive integer, a name or a switch is none, a tuning is not allowed or a
        decision's name is unknown.
    """

    global_batch_size: int
    sequence_length: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    target: str = "any"
    profile: str | None = None
    loss: str | None = None
    headroom: float | None = None
    tokens: int | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict)
    allow_idle: bool = False
    target_length: int | None = None
    image_tokens: int | None = None
    tuning: Tuning = field(default_factory=Tuning)
    expert_load: float = 1.0
    recompute_modules: tuple[str, ...] = ()
    mtp: bool = False
    oom_risk: float = OOM_RISK

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "sequence_length", *_OPTIONAL_COUNTS):
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL_COUNTS:
                object.__setattr__(self, name, _check_count(name, value))
        object.__setattr__(self, "tuning", read_tuning(self.tuning))
        object.__setattr__(self, "recompute_modules", read_modules(self.recompute_modules))
        self._check_words()
        self._check_shares()
        if not isinstance(self.choices, Mapping) or not all(
            isinstance(c, Choice) for c in self.choices.values()
        ):
            raise MeshwrightError(f"choices: {self.choices!r} is not a mapping of decisions to choices")
        unknown = sorted(map(str, set(self.choices) - set(DECISIONS)))
        if unknown:
            first = shown(unknown[0])
            raise MeshwrightError(f"pins: {first} is not a decision; allowed: {', '.join(DECISIONS)}")

    def _check_words(self) -> None:
        """Refuse names that are no text and switches that are neither true nor false."""
        for name in _NAMES:
            value = getattr(self, name)
            if not (isinstance(value, str) or (value is None and name in ("profile", "loss"))):
                raise MeshwrightError(f"{name}: {shown(value)} is not a name")
        for name in ("allow_idle", "mtp"):
            if not isinstance(getattr(self, name), bool):
                raise MeshwrightError(f"{name}: {getattr(self, name)!r} is not true or false")

    def _check_shares(self) -> None:
        """Refuse a headroom outside [0, 1), a risk outside (0, 0.5] and a busiest rank below the mean."""
        room, risk, load = self.headroom, self.oom_risk, self.expert_load
        if room is not None and not _is_number(room):
            raise MeshwrightError(f"headroom: {room!r} is not a number in [0, 1)")
        if room is not None and not 0 <= room < 1:
            raise MeshwrightError(f"headroom: {room!r} is not in [0, 1); it is a fraction of memory")
        if not _is_number(risk) or not 0 < risk <= MOST_RISK:
            raise MeshwrightError(
                f"oom_risk: {risk!r} is not a number above 0 and at most {MOST_RISK:g}; it is the share of "
                "runs that may exceed the headroom: 0.05"
            )
        if not _is_number(load) or not 1 <= load <= 10**6:
            raise MeshwrightError(
                f"expert_load: {load!r} is not a number of at least 1; it is the rows of the busiest expert "
                "rank over the mean, or the capacity factor"
            )

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
            first = shown(unknown[0])
            raise MeshwrightError(f"job: {first} is not a field; allowed: {', '.join(sorted(known))}")
        values = {k: v for k, v in data.items() if k in own}
        if "sequence_length" not in values:
            raise MeshwrightError("job: sequence_length is missing; give the tokens of a sequence")
        _check_count("sequence_length", values["sequence_length"])
        values["global_batch_size"] = batch_sequences(data)
        return cls(**values, choices=read_pins(data.get("pins") or {}))


def read_modules(given: Any) -> tuple[str, ...]:
    """Return modules in their usual order, from names or from text with commas.

    Raises
    ------
    MeshwrightError
        If one is not known.
    """
    names = [n.strip() for n in given.split(",") if n.strip()] if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        raise MeshwrightError(f"recompute_modules: {given!r} is no list of names")
    unknown = [name for name in names if not isinstance(name, str) or name not in MODULES]
    if unknown:
        raise UnknownNameError("recompute module", str(unknown[0]), list(MODULES))
    return tuple(name for name in MODULES if name in names)


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


def _is_number(value: Any) -> bool:
    """Return whether a value is a real number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> int:
    """Return a count as a plain integer (numpy's are welcome)."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= 10**15:
        raise MeshwrightError(f"{name}: {shown(value)} is not a positive integer (at most 1e15)")
    return int(value)
