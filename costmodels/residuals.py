"""What measured runs leave unexplained, read from ``data/residuals.toml``: the spread to expect of new runs.

Step times: each family of sources was priced with constants fitted without it, and the sizes of the errors
stand there by group: how far a measured time lies from its prediction. Peaks of memory: signed errors by
software profile and by what counted the peak, their mean taken away. A group is named by what its runs have
in common; one is asked only where it has at least :data:`LEAST` runs of as many families as
:data:`FAMILIES` says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import numpy as np

from meshwright.costmodels.profiles import parent_of, profile_parts
from meshwright.hardware.spec import Accelerator

LEAST: Final = 10
"""Runs from which a group's spread is believed."""
FAMILIES: Final[Mapping[str, int]] = {"step_time": 3, "memory": 1}
"""Families of sources from which a group's spread is believed: what is new about a run is its source.

Of the step times of a family, 58 % lay within the spread of two of three runs of the nearest group that other
families make up, and 82 % within that of nine of ten; of the nearest group of three families, 70 and 91 %."""
HELD: Final = ("reserved", "nvidia-smi")
"""What counts all that a device must hold, which decides whether a run fits."""
USED: Final = ("active", "allocated")
"""What counts the part of it that tensors use: says nothing of what an allocator keeps beside them."""
UNSEEN: Final = "unseen"
"""In place of an accelerator: runs on any whose constants were fitted without a run on it."""
_FILE: Final = "data/residuals.toml"

Group = Mapping[str, str]
"""What the runs of a group have in common, by field."""


@dataclass(frozen=True)
class Spread:
    """The errors of a group of runs.

    Attributes
    ----------
    group
        What the runs have in common; nothing for all runs.
    runs, families
        How many they are, and of how many families of sources.
    shares, errors
        Quantiles: this share of the runs has at most this error, both rising.
    """

    group: Group
    runs: int
    families: int
    shares: tuple[float, ...]
    errors: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the error that a share of the runs does not exceed; linear between the quantiles known."""
        return float(np.interp(share, self.shares, self.errors))


@lru_cache(maxsize=1)
def residuals() -> Mapping[str, Any]:
    """Return the whole file: for ``step_time`` and ``memory`` the shares and the groups."""
    import tomllib

    return tomllib.loads(resources.files("meshwright.costmodels").joinpath(_FILE).read_text("utf-8"))


def spreads(what: str) -> tuple[Spread, ...]:
    """Return all groups of ``step_time`` or ``memory``, small ones too."""
    table = residuals()[what]
    shares = tuple(table["shares"])
    return tuple(
        Spread(g["of"], g["runs"], g["families"], shares, tuple(g["errors"])) for g in table["groups"]
    )


@lru_cache(maxsize=2)
def _index(what: str) -> Mapping[frozenset[tuple[str, str]], Spread]:
    least = FAMILIES[what]
    return {frozenset(s.group.items()): s for s in spreads(what) if s.runs >= LEAST and s.families >= least}


def _nearest(what: str, groups: Iterable[Group]) -> Spread | None:
    """Return the first of the groups that has runs enough."""
    index = _index(what)
    found = (index.get(frozenset(group.items())) for group in groups)
    return next((spread for spread in found if spread is not None), None)


def ancestry(profile: str) -> tuple[str, ...]:
    """Return a profile's own name and its ancestors', nearest first, short of the one that all share."""
    found = [profile_parts(profile)[0]]
    while (parent := parent_of(found[-1])) is not None:
        found.append(parent)
    return tuple(found[:-1])


def measured_accelerators() -> frozenset[str]:
    """Return the accelerators with measured step times, by their names in the catalogue."""
    named = {s.group.get("accelerator", UNSEEN) for s in spreads("step_time")}
    return frozenset(named - {UNSEEN})


def step_time_spread(profile: str, accelerator: Accelerator, kind: str) -> Spread | None:
    """Return the sizes of the errors of the nearest group of measured step times; None if nothing is known.

    Nearest: the stack on the accelerator, the stack, the accelerator, its architecture, the kind of training,
    all runs. On an accelerator that no run has measured: runs on accelerators that nothing had been fitted
    to, for the same reason.

    Parameters
    ----------
    kind
        ``dense``, ``moe`` or ``tuned``.
    """
    return _nearest("step_time", _time_groups(ancestry(profile), accelerator, kind))


def _time_groups(stacks: Sequence[str], accelerator: Accelerator, kind: str) -> Iterator[Group]:
    if accelerator.name in measured_accelerators():
        for stack in stacks:
            yield {"profile": stack, "accelerator": accelerator.name, "kind": kind}
            yield {"profile": stack, "kind": kind}
        yield {"accelerator": accelerator.name, "kind": kind}
        yield {"architecture": accelerator.architecture or "", "kind": kind}
    else:
        yield {"accelerator": UNSEEN, "kind": kind}
        yield {"accelerator": UNSEEN}
    yield {"kind": kind}
    yield {}


def memory_spread(profile: str) -> Spread | None:
    """Return the signed errors, less their mean, of the nearest group of measured peaks of memory.

    An error is measured over predicted, minus one. Nearest: the stack's own, its ancestors', all, of each by
    :data:`HELD`; only where no run has that, the same by :data:`USED`.
    """
    stacks = ancestry(profile)

    def by(counters: Sequence[str]) -> Iterator[Group]:
        """Yield the groups of some counters, the nearest first."""
        for stack in stacks:
            yield from ({"profile": stack, "counter": counter} for counter in counters)
        yield from ({"counter": counter} for counter in counters)

    return _nearest("memory", (*by(HELD), *by(USED), {}))
