"""What ``solve`` and ``estimate`` answer, with every figure that the answer rests on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from meshwright.planner.headroom import Headroom
from meshwright.planner.plan import Plan
from meshwright.planner.uncertainty import Uncertainty

Status = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]


@dataclass(frozen=True)
class Estimate:
    """The price of one plan.

    Attributes
    ----------
    step_time_s
        Seconds per optimizer step.
    breakdown
        Seconds by cause on the critical rank; they add up to ``step_time_s``.
    hidden
        Communication seconds that overlap hides, by cause; not part of the step.
    memory
        For each pipeline rank the bytes by item; the items add up to ``peak_bytes[rank]``.
    capacity_bytes, usable_bytes
        Memory of a device, and what the headroom leaves of it.
    headroom
        What is left free, and where that comes from.
    uncertainty
        How far a measured step time may lie from ``step_time_s``, by the nearest runs that were measured.
    host_bytes
        For each pipeline rank what one device keeps in host memory; zeros without offloading.
    host_share_bytes
        A device's equal share of its host's memory, None where that is not known.
    nvme_bytes, nvme_share_bytes
        The same for the host's drives.
    tokens_per_s
        Tokens of the main stream and, in an encoder-decoder, of the target.
    mfu, hfu
        Shares of the devices' peak that the model's own and the executed FLOPs take; the peak is that of the
        recipe's fastest products.
    model_flops, hardware_flops
        FLOPs per step: the model's own (causal attention halved; without the weights' gradients where they
        are frozen), and with recomputation.
    parameters, trainable_parameters
        Of the whole model, adapters included, and of them those that are trained.
    """

    plan: Plan
    step_time_s: float
    breakdown: Mapping[str, float]
    hidden: Mapping[str, float]
    memory: tuple[Mapping[str, float], ...]
    peak_bytes: tuple[float, ...]
    capacity_bytes: float
    usable_bytes: float
    tokens_per_s: float
    mfu: float
    hfu: float
    model_flops: float
    hardware_flops: float
    usd_per_hour: float | None = None
    usd_per_step: float | None = None
    total_hours: float | None = None
    total_usd: float | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    notes: tuple[str, ...] = ()
    host_bytes: tuple[float, ...] = ()
    host_share_bytes: float | None = None
    nvme_bytes: tuple[float, ...] = ()
    nvme_share_bytes: float | None = None
    headroom: Headroom | None = None
    uncertainty: Uncertainty | None = None

    @property
    def fits_device(self) -> bool:
        """Whether every rank's peak is within the usable memory."""
        return max(self.peak_bytes) <= self.usable_bytes

    @property
    def fits_host(self) -> bool:
        """Whether what is offloaded is within every device's share of host memory and of the drives."""
        places = ((self.host_bytes, self.host_share_bytes), (self.nvme_bytes, self.nvme_share_bytes))
        return all(share is None or max(held, default=0.0) <= share for held, share in places)

    @property
    def fits(self) -> bool:
        """Whether every rank's memory suffices, on the device and on its host."""
        return self.fits_device and self.fits_host

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**asdict(self), "plan": self.plan.to_dict(), "fits": self.fits}

    def __str__(self) -> str:
        """Return a summary in a few lines."""
        from meshwright.planner.notebook import estimate_text

        return estimate_text(self)

    def _repr_html_(self) -> str:
        from meshwright.planner.notebook import estimate_html

        return estimate_html(self)


@dataclass(frozen=True)
class Alternative:
    """Another mesh at its own optimum, and why it lost."""

    estimate: Estimate
    gap: float
    """(its step time - the best step time) / the best step time."""
    why: str
    proven: bool


@dataclass(frozen=True)
class Infeasibility:
    """Why nothing fits, by how little, and what would lift it (each remedy found by search).

    ``untried`` names remedies that could not be tried, and what is missing for that.
    """

    rule: str
    message: str
    missing_bytes: float | None = None
    closest: Estimate | None = None
    remedies: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchRecord:
    """How the search went: the figures behind the proof.

    ``left_out`` tells what was not searched, for the job does not name it.
    """

    meshes: int
    discarded: Mapping[str, int]
    solved: int
    cuts: int
    integer_error: float
    reproducible: bool
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The answer of ``solve``; objective, bound and plan are None where there is nothing to tell.

    ``lost_to_headroom`` is a faster plan that the device would hold if nothing had to be left free.
    """

    status: Status
    objective_s: float | None
    lower_bound_s: float | None
    plan: Plan | None
    runtime_s: float
    estimate: Estimate | None = None
    alternatives: tuple[Alternative, ...] = ()
    infeasibility: Infeasibility | None = None
    binding: tuple[str, ...] = ()
    record: SearchRecord | None = None
    notes: tuple[str, ...] = ()
    lost_to_headroom: Estimate | None = None

    @property
    def gap(self) -> float | None:
        """Return (objective - lower bound) / objective, or None without a plan."""
        if self.objective_s is None or self.lower_bound_s is None:
            return None
        return max(0.0, (self.objective_s - self.lower_bound_s) / self.objective_s)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the keys that the documentation promises."""
        best = self.estimate
        return {
            "status": self.status,
            "objective_s": self.objective_s,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            "runtime_s": self.runtime_s,
            "plan": self.plan.to_dict() if self.plan else None,
            "breakdown": dict(best.breakdown) if best else None,
            "hidden": dict(best.hidden) if best else None,
            "memory": _memory(best),
            "estimate": best.to_dict() if best else None,
            "alternatives": [asdict(a) | {"estimate": a.estimate.to_dict()} for a in self.alternatives],
            "infeasibility": asdict(self.infeasibility) if self.infeasibility else None,
            "binding": list(self.binding),
            "record": asdict(self.record) if self.record else None,
            "notes": list(self.notes),
            "lost_to_headroom": self.lost_to_headroom.to_dict() if self.lost_to_headroom else None,
        }

    def __str__(self) -> str:
        """Return a summary in a few lines."""
        from meshwright.planner.notebook import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from meshwright.planner.notebook import result_html

        return result_html(self)


def _memory(best: Estimate | None) -> dict[str, Any] | None:
    """Return memory per stage, the peak and what is usable."""
    if best is None:
        return None
    return {
        "stages": [dict(m) for m in best.memory],
        "peak_bytes": list(best.peak_bytes),
        "capacity_bytes": best.capacity_bytes,
        "usable_bytes": best.usable_bytes,
        "host_bytes": list(best.host_bytes),
        "host_share_bytes": best.host_share_bytes,
        "nvme_bytes": list(best.nvme_bytes),
        "nvme_share_bytes": best.nvme_share_bytes,
        "fits": best.fits,
    }
