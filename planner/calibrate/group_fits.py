"""What groups of ranks achieve: tiers of the network, FSDP2's use of them, and what overlap costs."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from meshwright.costmodels.collectives import collective_time
from meshwright.hardware.span import GroupSpan
from meshwright.planner.calibrate.cases import Beside, Exchange, ExchangeName, Sample, Tokens, Unit
from meshwright.planner.calibrate.explain import Explained, explained, of_kind
from meshwright.planner.calibrate.machine import Machine

TIERS: Final = ("inside", "across")
"""Within a host, and between hosts."""
Tiers = Mapping[str, tuple[float, float]]
"""Bandwidth in bytes/s and latency in s by tier."""
_WAYS: Final[Mapping[str, ExchangeName]] = {
    "gather": "all_gather",
    "scatter": "reduce_scatter",
    "reduce": "all_reduce",
}
_RATES: Final[Mapping[ExchangeName, str]] = {"reduce_scatter": "scatter_rate", "all_reduce": "reduce_rate"}
"""What each reaches of a gather's rate, by the profile's field."""


def exchange_s(case: Exchange, tiers: Tiers, one_ring: bool = False) -> float:
    """Return the seconds of a collective by the cost model; ``one_ring`` as libraries for GPUs lay it."""
    sizes = {"inside": case.inside, "across": case.across}
    used = [name for name in TIERS if name in tiers]
    span = GroupSpan(
        sizes=np.array([float(sizes[name]) for name in used]),
        bandwidth_bytes_per_s=np.array([tiers[name][0] for name in used]),
        latency_s=np.array([tiers[name][1] for name in used]),
        one_ring=one_ring,
    )
    return float(collective_time(case.collective, float(case.tensor_bytes), span))


def tier_fit(samples: Sequence[Sample], name: str, below: Tiers, one_ring: bool = False) -> Explained:
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
        """Return the seconds of an exchange over the tier."""
        return exchange_s(case, {**below, name: (values["bandwidth"], values["latency"])}, one_ring)

    best = max(case.tensor_bytes / seconds for case, seconds in own)
    shortest = min(seconds for _, seconds in own)
    together = max(case.inside for case, _ in own) if name == "across" else 1  # ranks that share a link
    start = {"bandwidth": best / together, "latency": shortest / 2}
    bounds = {"bandwidth": (best / 100, 10 * best), "latency": (1e-7, 2 * shortest)}
    return explained(own, price, start, bounds)


def stack_fit(samples: Sequence[Sample], tiers: Tiers, one_ring: bool = False) -> Explained:
    """Return what the stack makes of the tiers' rates: those of FSDP2's units and of tensor ranks' tokens.

    ``data_rate`` and ``layer_rate`` are those of gathers, ``scatter_rate`` and ``reduce_rate`` what scatters
    and reductions reach of them. Without units plain collectives tell the last two.
    """
    units, tokens = of_kind(samples, Unit), of_kind(samples, Tokens)
    own: list[tuple[Unit | Tokens | Exchange, float]] = [*units, *tokens]
    if not units:
        plain = ("all_gather", "reduce_scatter", "all_reduce")
        own += [(case, s) for case, s in of_kind(samples, Exchange) if case.collective in plain]

    def price(case: Unit | Tokens | Exchange, values: Mapping[str, float]) -> float:
        """Return the seconds of what the stack sends."""
        place, work = _stack_work(case)
        rate = values.get(place, 1.0) * values.get(_RATES.get(work, ""), 1.0)
        across = getattr(case, "across", 1)
        return exchange_s(Exchange(work, case.tensor_bytes, case.inside, across), tiers, one_ring) / rate

    works = [(place, _RATES.get(work)) for place, work in (_stack_work(case) for case, _ in own)]
    names = dict.fromkeys(name for pair in works for name in pair if name)
    return explained(own, price, dict.fromkeys(names, 0.8), dict.fromkeys(names, (0.02, 4.0)))


def _stack_work(case: Unit | Tokens | Exchange) -> tuple[str, ExchangeName]:
    """Return which rate a case tells of, and the collective that it is."""
    if isinstance(case, Exchange):
        return "data_rate", case.collective
    return (
        ("data_rate", _WAYS[case.work]) if isinstance(case, Unit) else ("layer_rate", _WAYS[case.direction])
    )


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
