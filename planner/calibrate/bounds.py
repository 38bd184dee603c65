"""What physics allows the constants of a software profile to be, and how well their sources know them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Final

NEAR: Final = 0.02
"""Share of a constant's range within which it counts as being on its bound."""
HAIR: Final = 0.02
"""Of a constant's width: a change below it is none."""
TINY: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a constant may be.

    Attributes
    ----------
    low, high
        What physics allows.
    width
        How well the sourced value is known, one standard deviation: of the logarithm, or of the value itself
        where the constant is a share that may be zero (``shares``).
    reason
        Where the bounds come from.
    """

    low: float
    high: float
    width: float
    reason: str
    shares: bool = False

    def moved(self, value: float, shift: float) -> float:
        """Return a value after a shift in units of the prior's own scale."""
        return value + shift if self.shares else value * exp(shift)

    def near(self, value: float) -> bool:
        """Return whether a value is within :data:`NEAR` of the range to a bound."""
        low, at, high = (self.shift(1.0, v) for v in (self.low or TINY, value or TINY, self.high))
        return min(at - low, high - at) < NEAR * (high - low)

    def touches(self, value: float) -> bool:
        """Return whether a bound held a value back: it is as close as makes no difference (:data:`HAIR`)."""
        at = value or TINY
        gaps = (self.shift(bound or TINY, at) for bound in (self.low, self.high))
        return min(map(abs, gaps)) < HAIR * self.width

    def beyond(self, value: float) -> bool:
        """Return whether a value is outside the range: measured so, on a machine that is no cluster."""
        return not self.low <= value <= self.high

    def shift(self, value: float, to: float) -> float:
        """Return the shift that leads from a value to another; raises ValueError where none does."""
        return to - value if self.shares else log(to / value)


PROFILE: Final[Mapping[str, Bounds]] = {
    "gemm_fraction": Bounds(0.6, 1.15, 0.08, "libraries trail the benchmarks' kernels; bursts exceed them"),
    "attention_fraction": Bounds(0.4, 1.3, 0.15, "kernels' rates are measured on one die; clocks differ"),
    "step_fixed_s": Bounds(1e-4, 0.5, 1.0, "data loading and logging: some of it on every step"),
    "layer_rate": Bounds(0.3, 1.15, 0.15, "a collective's share of the rate that benchmarks reach"),
    "data_rate": Bounds(0.25, 1.15, 0.2, "the same; buckets and many small tensors reach less"),
    "forward_host_s": Bounds(2e-6, 60e-6, 0.4, "a launch costs the driver 2 us; Python adds tens"),
    "backward_host_s": Bounds(2e-6, 60e-6, 0.4, "a launch costs the driver 2 us; autograd adds tens"),
    "layer_host_s": Bounds(5e-6, 2e-3, 0.5, "from one call to a few hundred lines of Python"),
    "host_sync": Bounds(0.0, 0.6, 0.1, "of the shorter of host and device: none to most", shares=True),
    "jitter": Bounds(0.0, 0.03, 0.004, "stragglers: 1,024 devices lose at most a quarter", shares=True),
    "overlap_cost": Bounds(0.0, 0.45, 0.06, "slowdown 1 to 1.8 beside collectives", shares=True),
    "overlap_gradients": Bounds(0.0, 1.0, 0.15, "a share", shares=True),
    "overlap_parameters": Bounds(0.0, 1.0, 0.15, "a share", shares=True),
    "overlap_tensor": Bounds(0.0, 0.95, 0.15, "a share; the first and last chunk stay exposed", shares=True),
    "overlap_experts": Bounds(0.0, 0.95, 0.15, "a share; the first and last chunk stay exposed", shares=True),
    "weight_gradient_fraction": Bounds(0.7, 1.0, 0.04, "accumulation in fp32 only costs"),
    "low_gemm_fraction": Bounds(0.5, 1.1, 0.12, "scaling only costs, beyond the benchmarks' spread"),
    "grouped_fill": Bounds(5.0, 600.0, 0.5, "rows: between a tile's share and a few tiles"),
    "permute_fraction": Bounds(0.08, 1.0, 0.4, "gathering rows moves at most what streaming does"),
    "dispatch_sync_s": Bounds(5e-6, 500e-6, 0.7, "a copy to the host and an empty queue"),
    "optimizer_fraction": Bounds(0.3, 0.97, 0.12, "share of the memory bandwidth"),
}

MEMORY: Final[Mapping[str, Bounds]] = {
    "communicator_bytes": Bounds(1e7, 1e10, 0.5, "from one small communicator to a dozen with large buffers"),
    "fragmentation": Bounds(0.0, 0.5, 0.05, "lengths that change leave up to a third unused", shares=True),
}
