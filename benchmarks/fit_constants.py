"""The constants that may be fitted to runs: where each lives, what physics allows, and how well it is known.

A constant belongs to a software profile, an architecture of accelerators or one accelerator, never to a
source, a model or a row. Places are trees: a profile inherits from its parent, an accelerator from its
architecture. A place may have one constant of its own for each :data:`ROWS_EACH` timed runs that are priced
with it, at most :data:`MOST`; what a place may not have it inherits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.costmodels.calibration import RATES
from meshwright.planner.calibrate.bounds import PROFILE, Bounds

ROWS_EACH: Final = 10
"""Timed runs that each free constant needs."""
MOST: Final = 6
"""Constants that a place below the root may have of its own."""

MEMORY: Final[Mapping[str, Bounds]] = {
    "fragmentation": Bounds(0.0, 0.4, 0.05, "from static shapes to sizes that vary", shares=True),
    "communicator_bytes": Bounds(2e8, 8e9, 0.7, "a communicator's buffers take from a tenth of a GiB to two"),
}
"""Constants of a profile that peaks of memory tell, step times do not."""

ACCELERATOR: Final[Mapping[str, Bounds]] = {
    "gemm": Bounds(0.75, 1.12, 0.04, "sustained training against a benchmark of large products"),
    "low_gemm": Bounds(0.65, 1.2, 0.1, "the same in 8 and 4 bits, of which fewer benchmarks exist"),
    "memory": Bounds(0.75, 1.12, 0.05, "kernels against streaming benchmarks"),
}
assert tuple(ACCELERATOR) == RATES

TABLES: Final[Mapping[str, Mapping[str, Bounds]]] = {
    "profiles": {**PROFILE, **MEMORY},
    "accelerators": ACCELERATOR,
}
"""Constants by the tree of places that they live in."""
PLACES: Final = ("profiles", "architectures", "accelerators")
EVERYWHERE: Final = "*"
"""A place above which no other is: a shift there moves the constant of every run."""


def tree(kind: str) -> str:
    """Return the tree that a kind of place belongs to: architectures are above accelerators."""
    return "profiles" if kind == "profiles" else "accelerators"


@dataclass(frozen=True, slots=True)
class Constant:
    """One free constant: ``kind`` is one of :data:`PLACES`, ``place`` a name in it."""

    kind: str
    place: str
    field: str

    @property
    def bounds(self) -> Bounds:
        """What it may be."""
        return TABLES[tree(self.kind)][self.field]

    def __str__(self) -> str:
        """Return a short name."""
        return f"{self.place}.{self.field}"


Shifts = Mapping[Constant, float]
"""How far constants are from what they inherit or have from their sources; absent: zero."""
