"""What groups of ranks achieve: tiers of the network, FSDP2's use of them, and what overlap costs."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from meshwright.costmodels.collectives import collective_time
from meshwright.hardware.span import GroupSpan
from meshwright.planner.calibrate.cases import Beside, Exchange, ExchangeName, Sample, Unit
from meshwright.planner.calibrate.explain import Explained, explained, of_kind
from meshwright.planner.calibrate.machine import Machine

TIERS: Final = ("inside", "across")
"""Within a host, and between hosts."""
Tiers = Mapping[str, tuple[float, float]]
"""Bandwidth in bytes/s and latency in s by tier."""
_WAYS: Final[Mapping[str, ExchangeName]] = {"gather": "all_gather", "scatter": "reduce_scatter"}


def exchange_s(case: Exchange, tiers: Tiers) -> float:
    """Return the seconds of a collective by the cost model."""
    sizes = {"inside": case.inside, "across": case.across}
    used = [name for name in TIERS if name in tiers]
    span = GroupSpan(
        sizes=np.array([float(sizes[name]) for name in used]),
        bandwidth_bytes_per_s=np.array([tiers[name][0] for name in used]),
        latency_s=np.array([tiers[name][1] for name in used]),
    )
    return float(collective_time(case.collective, float(case.tensor_bytes), span))


def tier_fit(samples: Sequence[Sample], name: str, below: Tiers) -> Explained:
    """Return ``bandwidth`` and ``latency`` of a tier, given those below it.

    Reduce-scatters are left out: some backends run an all-reduce for them (:func:`stack_fit`).
    """
    own = [
        (case, seconds)
        for case, seconds in of_kind(samples, Exchange)
        if (case.across > 1) == (name == "across") and case.collective != "reduce_scatter"
    ]
    if not own:
        return Explained({})

    def price(case: Exchange, values: Mapping[str, float]) -> float:
        return exchange_s(case, {**below, name: (values["bandwidth"], values["latency"])})

    best = max(case.tensor_bytes / seconds for case, seconds in own)
    shortest = min(seconds for _, seconds in own)
    start = {"bandwidth": best, "latency": shortest / 2}
    bounds = {"bandwidth": (best / 100, 10 * best), "latency": (1e-7, 2 * shortest)}
    return explained(own, price, start, bounds)


def stack_fit(samples: Sequence[Sample], tiers: Tiers) -> Explained:
    """Return ``data_rate`` and ``scatter_rate``: what FSDP2's gathers and scatters reach of the tiers' rates.

    Without measured units: what plain reduce-scatters reach of plain gathers.
    """
    start = {"data_rate": 0.8, "scatter_rate": 0.8}
    limits = dict.fromkeys(start, (0.02, 1.5))

    def price(case: Unit, values: Mapping[str, float]) -> float:
        rate = values["data_rate"] * (values["scatter_rate"] if case.direction == "scatter" else 1.0)
        plain = Exchange(_WAYS[case.direction], case.tensor_bytes, case.inside, case.across)
        return exchange_s(plain, tiers) / rate

    def plain(case: Exchange, values: Mapping[str, float]) -> float:
        return exchange_s(case, tiers) / values["scatter_rate"]

    if units := of_kind(samples, Unit):
        return explained(units, price, start, limits)
    own = [(c, s) for c, s in of_kind(samples, Exchange) if c.collective == "reduce_scatter"]
    return explained(own, plain, {"scatter_rate": 0.8}, {"scatter_rate": (0.02, 1.5)})


def overlap_values(samples: Sequence[Sample], machine: Machine) -> dict[str, float]:
    """Return ``overlap_cost``, what a second of hidden communication costs the compute beside it.

    FSDP2 has no streams on a CPU: whoever needs a collective waits for it.
    """
    found = dict.fromkeys(("overlap_gradients", "overlap_parameters", "overlap_tensor"), 0.0)
    found = found if machine.waits_for_host else {}
    parts = {case.part: seconds for case, seconds in of_kind(samples, Beside)}
    if len(parts) < len(("product", "collective", "both")):
        return found
    longer, shorter = max(parts["collective"], parts["product"]), min(parts["collective"], parts["product"])
    return found | {"overlap_cost": min(max((parts["both"] - longer) / shorter, 0.0), 1.0)}
