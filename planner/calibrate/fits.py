"""From samples to constants of the cost models, each explained by the cost models' own formulas.

One group after the other, as each needs those before (bounded least squares of logarithms,
:mod:`meshwright.planner.calibrate.curve`): the host's times, the memory's rate, products, attention, the
optimizer, tiers of the network, and what the stack makes of them. A call takes the device's time, and the
host's as far as that is longer; on a CPU both, one after the other. Left out: clocks that fall under minutes
of load, and what other users of the machine do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.planner.calibrate.cases import Sample
from meshwright.planner.calibrate.device_fits import SHARES, core_fit, memory_fit, product_fit, update_fit
from meshwright.planner.calibrate.explain import Residual
from meshwright.planner.calibrate.group_fits import TIERS, overlap_values, stack_fit, tier_fit
from meshwright.planner.calibrate.host_fits import host_profile, host_times, tensor_host
from meshwright.planner.calibrate.machine import Machine


@dataclass(frozen=True)
class Constants:
    """What was fitted; what no sample told about is absent.

    Attributes
    ----------
    peaks
        FLOP/s of products by dtype.
    memory, memory_peak
        Rate of streams, and that of the fastest one, in bytes/s.
    launch_s
        Of one kernel without the host.
    fill_k
        Inner length that a product's start costs.
    attention
        Shares of the first dtype's peak (:data:`~meshwright.planner.calibrate.device_fits.SHARES`).
    tiers
        Bandwidth in bytes/s and latency in s by tier.
    profile
        Fields of a software profile.
    residuals
        Of every sample that a formula was fitted to.
    """

    peaks: Mapping[str, float]
    memory: float
    memory_peak: float
    launch_s: float
    fill_k: float
    attention: Mapping[str, float]
    tiers: Mapping[str, tuple[float, float]]
    profile: Mapping[str, float]
    residuals: tuple[Residual, ...]


def fitted(samples: Sequence[Sample], machine: Machine) -> Constants:
    """Return the constants that explain samples of a machine best.

    Raises
    ------
    MeshwrightError
        If there are no samples of streams or products, without which nothing can be priced.
    """
    host = host_times(samples)
    memory = memory_fit(samples, machine, host)
    products = product_fit(samples, machine, host, memory.values)
    known = {**memory.values, **products.values}
    cores = core_fit(samples, machine, host, known, machine.dtypes[0])
    update = update_fit(samples, machine, host, known)
    tiers: dict[str, tuple[float, float]] = {}
    parts = [memory, products, cores, update]
    for name in TIERS:
        tier = tier_fit(samples, name, tiers, machine.kind == "gpu")
        if tier.values:
            tiers[name] = tier.values["bandwidth"], tier.values["latency"]
            parts.append(tier)
    if tiers:
        parts.append(stack_fit(samples, tiers, machine.kind == "gpu"))
    stack = parts[-1].values if tiers else {}
    shared = {**stack, **overlap_values(samples, machine)} if tiers else {}
    return Constants(
        peaks={k.removeprefix("peak."): v for k, v in products.values.items() if k.startswith("peak.")},
        memory=known["memory"],
        memory_peak=known["memory_peak"],
        launch_s=host.get("launch", 0.0),
        fill_k=known["fill_k"],
        attention={f: cores.values[f"attention.{f}"] for f in SHARES} if cores.values else {},
        tiers=tiers,
        profile={
            **host_profile(host, machine),
            **tensor_host(host, machine, tiers, stack),
            "weight_gradient_fraction": known["weight_gradient"],
            **update.values,
            **shared,
        },
        residuals=tuple(r for part in parts for r in part.residuals),
    )
