"""The bounded, robust fit that published runs and users' own go through alike."""

from meshwright.planner.calibrate.least_squares import (
    BEND,
    Linearised,
    huber,
    huber_weight,
    objective,
    solve_in_box,
    standard_errors,
)

__all__ = [
    "BEND",
    "Linearised",
    "huber",
    "huber_weight",
    "objective",
    "solve_in_box",
    "standard_errors",
]
