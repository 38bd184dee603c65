"""Constants of a software profile fitted to runs of one's own, within what physics allows.

The same fit as for published runs (:mod:`meshwright.planner.calibrate.least_squares`): logarithms of
predicted over measured, Huber's loss, and each constant held by a normal prior where its sources have it, so
that few runs move only what they tell about. Step times move the constants of
:data:`~meshwright.planner.calibrate.bounds.PROFILE`, peaks of memory those of
:data:`~meshwright.planner.calibrate.bounds.MEMORY`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import FILE_SUFFIX, find_profile, profile_parts
from meshwright.costmodels.step import Price, price
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.batch import joined
from meshwright.planner.calibrate.bounds import HAIR, MEMORY, PROFILE, Bounds
from meshwright.planner.calibrate.least_squares import Linearised
from meshwright.planner.calibrate.observations import Observation
from meshwright.planner.meshes import mesh_of
from meshwright.planner.pricing import counts, setting

WEIGHT: Final = 6.0
"""Of a run against the priors: its error of 2 % weighs as much as a constant one width off."""
ITERATIONS: Final = 4
TRUST: Final = 2.0
"""Widths by which a constant moves in one iteration at most."""
DIFFERENCE: Final = 0.25
"""Of a constant's width: over which derivatives are taken."""


@dataclass(frozen=True)
class Priced:
    """Runs of one problem with equally many chunks, which one call prices again with other constants.

    ``places`` are their places among all runs.
    """

    places: IntArray
    setting: Setting
    strategies: Strategies
    layers: IntArray

    @classmethod
    def of(cls, observations: Sequence[Observation], places: Sequence[int]) -> "Priced":
        """Return runs of one problem with what does not depend on constants."""
        problem, plans = observations[places[0]].problem, [observations[at].plan for at in places]
        strategies = joined([mesh_of(plan) for plan in plans]).strategies()
        layers = np.concatenate([counts(problem, plan) for plan in plans])
        return cls(np.array(places), setting(problem), strategies, layers)

    def price(self, profile: Profile) -> Price:
        """Return the prices under a profile that differs from the runs' in numbers alone."""
        return price(replace(self.setting, profile=profile), self.strategies, self.layers, detail=False)


def grouped(observations: Sequence[Observation]) -> tuple[Priced, ...]:
    """Return all runs in as few groups as can be priced together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for at, run in enumerate(observations):
        groups.setdefault((id(run.problem), len(run.plan.chunks)), []).append(at)
    return tuple(Priced.of(observations, places) for places in groups.values())


@dataclass(frozen=True)
class Outcome:
    """One run before and after: seconds of a step, and bytes where they were measured."""

    observation: Observation
    before_s: float
    after_s: float
    before_bytes: float
    after_bytes: float


@dataclass(frozen=True)
class Learned:
    """A refitted profile.

    Attributes
    ----------
    base, profile
        Before and after.
    outcomes
        Each run, in the order given.
    read
        What was noted while the runs were read.
    """

    base: Profile
    profile: Profile
    outcomes: tuple[Outcome, ...]
    read: tuple[str, ...] = ()

    @cached_property
    def moved(self) -> dict[str, tuple[float, float]]:
        """Constants that moved: before and after."""
        limits = {**PROFILE, **MEMORY}
        both = {name: (getattr(self.base, name), getattr(self.profile, name)) for name in limits}
        return {
            name: (old, new)
            for name, (old, new) in both.items()
            if old != new and abs(limits[name].shift(old, new)) > HAIR * limits[name].width
        }

    @cached_property
    def beyond(self) -> dict[str, float]:
        """Constants outside their range after it, which they were before: none is moved out of it."""
        own = {name: float(getattr(self.profile, name)) for name in {**PROFILE, **MEMORY}}
        return {name: value for name, value in own.items() if {**PROFILE, **MEMORY}[name].beyond(value)}

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What to know before trusting it: which lines count, and that few runs tell few constants apart."""
        remembered = sum(o.observation.peak_bytes is not None for o in self.outcomes)
        return self.read + tuple(
            f"{told} measured {what}{'s' * (told > 1)} moved {len(own)} constants ({', '.join(own)}): "
            "so few cannot tell them apart, and how the error is shared among them rests on how well the "
            "source of each knows it; trust the profile for runs like these, and give runs of other degrees, "
            "micro-batches or models for more"
            for told, what, limits in (
                (len(self.outcomes), "step time", PROFILE),
                (remembered, "memory peak", MEMORY),
            )
            if told < len(own := [name for name in self.moved if name in limits])
        )


def learned(observations: Sequence[Observation], read: Sequence[str] = ()) -> Learned:
    """Return the profile of runs refitted to them; ``read`` is what was noted while they were read.

    Raises
    ------
    MeshwrightError
        If there is no run, or runs are of several profiles.
    """
    names = sorted({o.problem.profile.name for o in observations})
    if len(names) != 1:
        told = f"runs of {len(names)} profiles ({', '.join(names)})" if names else "no run"
        raise MeshwrightError(f"learn: {told}; give runs of one, or say which with --profile")
    base = observations[0].problem.profile
    seconds = np.array([o.step_time_s for o in observations])
    after = _refitted(grouped(observations), base, PROFILE, seconds, _step_s)
    if remembered := [o for o in observations if o.peak_bytes is not None]:
        held = np.array([o.peak_bytes for o in remembered], dtype=np.float64)
        after = _refitted(grouped(remembered), after, MEMORY, held, _peak_bytes)
    return Learned(base, after, _outcomes(observations, base, after), tuple(read))


def _outcomes(observations: Sequence[Observation], base: Profile, after: Profile) -> tuple[Outcome, ...]:
    groups, size = grouped(observations), len(observations)
    columns = [_told(groups, size, p, what) for what in (_step_s, _peak_bytes) for p in (base, after)]
    return tuple(Outcome(o, *row) for o, row in zip(observations, np.array(columns).T.tolist(), strict=True))


def _told(
    groups: Sequence[Priced], size: int, profile: Profile, what: Callable[[Price], FloatArray]
) -> FloatArray:
    """Return what prices tell of all runs, in their order."""
    found = np.zeros(size)
    for group in groups:
        found[group.places] = what(group.price(profile))
    return found


def _step_s(got: Price) -> FloatArray:
    return got.step_time_s


def _peak_bytes(got: Price) -> FloatArray:
    return np.asarray(got.peak_bytes.max(axis=1))


def _refitted(
    groups: Sequence[Priced],
    base: Profile,
    limits: Mapping[str, Bounds],
    measured: FloatArray,
    what: Callable[[Price], FloatArray],
) -> Profile:
    """Return a profile with the constants of ``limits`` fitted by Gauss-Newton to what was measured."""
    free = {name: b for name, b in limits.items() if getattr(base, name) > 0 or b.shares}
    width = np.array([b.width for b in free.values()])
    rooms = np.array([_room(b, getattr(base, name)) for name, b in free.items()])
    low, high = rooms.T

    def residuals(shift: FloatArray) -> FloatArray:
        """Return the logarithms of predicted over measured."""
        return np.log(_told(groups, len(measured), _shifted(base, free, shift), what) / measured)

    shift = np.zeros(len(free))
    for _ in range(ITERATIONS):
        here = residuals(shift)
        steps = np.where(shift + DIFFERENCE * width > high, -DIFFERENCE, DIFFERENCE) * width
        moved = (residuals(shift + one) for one in np.diag(steps))
        problem = Linearised(
            residual=here,
            slopes=np.stack([(there - here) / step for there, step in zip(moved, steps, strict=True)], -1),
            weight=np.full(len(measured), WEIGHT),
            shift=shift,
            width=width,
            low=np.maximum(low - shift, -TRUST * width),
            high=np.minimum(high - shift, TRUST * width),
        )
        shift = shift + problem.solved()
    return _shifted(base, free, shift)


def _room(bounds: Bounds, value: float) -> tuple[float, float]:
    """Return how far a constant may move; one that starts beyond a bound (measured so) goes no further."""
    return min(bounds.shift(value, bounds.low), 0.0), max(bounds.shift(value, bounds.high), 0.0)


def _shifted(base: Profile, free: Mapping[str, Bounds], shift: FloatArray) -> Profile:
    pairs = zip(free.items(), shift.tolist(), strict=True)
    values: dict[str, Any] = {name: b.moved(getattr(base, name), by) for (name, b), by in pairs}
    return replace(base, **values)


def overrides(found: Learned) -> tuple[str, dict[str, Any]]:
    """Return the built-in profile that a learned one inherits from, and every field that differs from it."""
    name = profile_parts(found.base.name)[0]
    parent = "generic" if name.endswith(FILE_SUFFIX) else name
    own = find_profile(parent)
    left = {"name", "title", "sources"}
    return parent, {
        f.name: getattr(found.profile, f.name)
        for f in fields(Profile)
        if f.name not in left and getattr(found.profile, f.name) != getattr(own, f.name)
    }
