"""What runs were measured in, and which constants it tells: step times, and peaks of memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.fit_constants import ACCELERATOR, MEMORY, PROFILE, Bounds
from benchmarks.measured_prices import Priced
from benchmarks.rows import Row, counter_of, step_peak_gib
from meshwright.hardware.units import gib_to_bytes


@dataclass(frozen=True)
class Observable:
    """What was measured of runs and is predicted.

    Attributes
    ----------
    measured
        Of a row; None where there is none.
    predicted
        The same of a price.
    fields
        The constants that it may tell, by the tree that they live in.
    """

    name: str
    measured: Callable[[Row], float | None]
    predicted: Callable[[Priced], float | None]
    fields: Mapping[str, Mapping[str, Bounds]]


def _peak_bytes(row: Row) -> float | None:
    """Return a step's peak that a stated counter measured."""
    printed = step_peak_gib(row)
    return None if printed is None or counter_of(row) == "not stated" else gib_to_bytes(printed)


STEP_TIME: Final = Observable(
    "step time",
    lambda row: row.step_time_s,
    lambda priced: priced.step_time_s,
    {"profiles": PROFILE, "accelerators": ACCELERATOR},
)
PEAK: Final = Observable(
    "peak memory", _peak_bytes, lambda priced: priced.comparable_bytes, {"profiles": MEMORY}
)
