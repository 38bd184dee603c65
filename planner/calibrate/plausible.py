"""What a case can take on any machine: a merged file's seconds outside it are a slip or another unit.

Bounds are those of machines that exist with orders of magnitude to spare: the work at a rate that no
accelerator of these years comes near, and at one below that of any host that trains. They refuse nonsense
(a pass of hours, a terabyte in a nanosecond); what is merely slow is left to the fit, which is robust.
"""

from typing import Final

from meshwright.hardware.units import TERA
from meshwright.planner.calibrate.cases import (
    Beside,
    Case,
    Core,
    Exchange,
    Host,
    Product,
    Stream,
    Tokens,
    Unit,
    Update,
)

SHORTEST_S: Final = 1e-9
"""Of a case: a cycle or two of any processor's clock."""
LONGEST_S: Final = 1e4
"""Of a case: hours, where the largest take seconds."""
FASTEST: Final = 1e5 * TERA
"""FLOP/s or bytes a second: six times the largest 4-bit rate of a device, five times a wafer's SRAM."""
SLOWEST_FLOPS_PER_S: Final = 1e7
"""A core that emulates a type which it lacks reaches ten times as much."""
SLOWEST_BYTES_PER_S: Final = 1e5
"""Ethernet of 10 Mb/s reaches ten times as much."""
WAIT_S: Final = 30.0
"""On top of the work: a start, a rendezvous, a stall of a host that does other things."""
CALL_S: Final = 1.0
"""Of one call or launch: a thousand times that of the slowest host."""
CALLS: Final = ("operator", "launch")


def plausible_s(case: Case) -> tuple[float, float]:
    """Return the least and the most seconds that a case can take; the least may be above the most."""
    if isinstance(case, Host):
        return SHORTEST_S, CALL_S if case.what in CALLS else WAIT_S
    flops, moved, ranks = _work(case)
    least = max(SHORTEST_S, flops / FASTEST, moved / ranks / FASTEST)
    most = WAIT_S + flops / SLOWEST_FLOPS_PER_S + ranks * moved / SLOWEST_BYTES_PER_S
    return least, min(most, LONGEST_S)


def _work(case: Case) -> tuple[float, float, int]:
    """Return a case's FLOPs, the bytes that it moves at least (to a small factor), and its ranks."""
    match case:
        case Product():
            return 2.0 * case.m * case.n * case.k, 0.0, 1
        case Core():
            passes = 2.5 if case.backward else 1.0
            return passes * 2.0 * case.sequences * case.heads * case.head_dim * case.length**2, 0.0, 1
        case Stream() | Update():
            return 0.0, float(case.elements), 1
        case Exchange() | Unit():
            return 0.0, float(case.tensor_bytes), case.inside * case.across
        case Tokens():
            return 0.0, float(case.tensor_bytes), case.inside
        case Beside():
            product = case.part != "collective"
            moved = 0.0 if case.part == "product" else float(case.tensor_bytes)
            return 2.0 * product * case.size**3, moved, case.inside * case.across
        case _:
            raise AssertionError(case)
