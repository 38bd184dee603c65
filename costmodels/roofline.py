"""Roofline time of work on one device: the slower of arithmetic and memory, plus the launch.

GEMM: tiles dealt to the cores in waves (:mod:`meshwright.costmodels.tiles`). Left out: clocks that follow the
data and the power limit (inside the accelerator's sustained ``gemm_fraction``), and caches.

Vector work (a scan token by token) runs on the fp32 units, at a share of their peak.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.attention_kernels import AttentionRates, find_attention_kernel
from meshwright.costmodels.calibration import RATES, rate_factor
from meshwright.costmodels.precision import Precision
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.tiles import PLAIN_LOOP, TileLoop, loop_on, product_time
from meshwright.costmodels.work import Work
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Accelerator

STRIDED_ELEMENTS_PER_CORE_S = 2.3e9
"""Elements that a core of a GPU makes where each one's place is computed apart: instructions bind it, not
memory. Rotations by transformers' eager operators (4.5 such elements a feature forward, 5.5 backward) take
3.8 and 4.6 ms on A100 (16,384 tokens of 10,240 features; one kernel 0.41), 0.59 and 0.60 ms on B200 (8,192
of 5,120; one kernel 0.03): 1.9e9 and 2.4e9 a core. A gated activation of two slices takes 0.75 ms forward on
H100 (268 million elements): 2.7e9 (github:linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv).
Left out: clocks, and that a core of another vendor may make fewer or more."""
VECTOR_FRACTION = 0.4
"""Share of the fp32 peak, which counts fused multiply-adds, that vector work reaches: half of it as its
multiplications and additions do not fuse, less as an exponential takes the time of 4 to 8 operations (CUDA
C++ programming guide, throughput of native arithmetic instructions)."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What one device achieves; every field may be an array.

    Attributes
    ----------
    peak_flops_per_s
        Dense peak of the compute dtype.
    low_peak_flops_per_s
        Dense peak of the recipe's 8- or 4-bit products; None: they run at the compute dtype's.
    low_gemm_fraction
        Sustained share of that peak; None: ``gemm_fraction``.
    architecture
        Whose attention kernels it runs.
    gemm_fraction, memory_fraction
        Sustained shares of the peak and of the memory bandwidth.
    vector_flops_per_s
        Peak of the fp32 units; None: not known, vector work is bound by memory.
    tiles
        How its libraries run the tiles of a GEMM.
    strided_elements_per_s
        Elements whose places are computed apart (:class:`~meshwright.costmodels.work.Strided`).
    attention
        Rates measured on this device by the kernel's name; other kernels have their architecture's.
    """

    peak_flops_per_s: Num
    memory_bytes_per_s: Num
    gemm_fraction: Num
    memory_fraction: Num
    kernel_launch_s: Num
    num_cores: Num
    low_peak_flops_per_s: Num | None = None
    low_gemm_fraction: Num | None = None
    architecture: str = ""
    vector_flops_per_s: Num | None = None
    tiles: TileLoop = PLAIN_LOOP
    strided_elements_per_s: Num = np.inf
    attention: Mapping[str, AttentionRates] = field(default_factory=dict)


def device_rates(accelerator: Accelerator, precision: Precision, fitted: bool = True) -> DeviceRates:
    """Return the rates of an accelerator for a precision recipe.

    Parameters
    ----------
    fitted
        Whether with the factors fitted to training runs (:mod:`meshwright.costmodels.calibration`).

    Raises
    ------
    MeshwrightError
        If the accelerator has no peak rate for the recipe's dtype, or no products with its scales.
    """
    peaks = accelerator.peak_flops_per_s
    if precision.compute not in peaks:
        have = ", ".join(sorted(peaks))
        raise MeshwrightError(
            f"precision: {precision.name!r} computes in {precision.compute}, which {accelerator.name} "
            f"does not have; it has {have}"
        )
    low = getattr(precision, "low_compute", None)
    if low is not None and low not in peaks:
        have = ", ".join(sorted(peaks))
        raise MeshwrightError(
            f"precision: {precision.name!r} multiplies in {low}, which {accelerator.name} does not have; "
            f"it has {have}"
        )
    if not precision.runs_on(accelerator.architecture):
        able = " and ".join(precision.architectures or ())
        raise MeshwrightError(
            f"precision: {precision.name!r} needs products that scale blocks of 32 elements; {able} have "
            f"them, {accelerator.name} does not; try fp8-current"
        )
    got = accelerator.achieved
    gemm, low_gemm, memory = (rate_factor(accelerator, rate) if fitted else 1.0 for rate in RATES)
    own = None if low is None else got.low_gemm_fractions.get(low)
    low_fraction = got.gemm_fraction * gemm if own is None else own * low_gemm
    return DeviceRates(
        peaks[precision.compute],
        accelerator.memory_bandwidth_bytes_per_s,
        got.gemm_fraction * gemm,
        got.memory_fraction * memory,
        got.kernel_launch_s,
        accelerator.num_cores,
        None if low is None else peaks[low],
        None if low is None else low_fraction * precision.product_rate,
        accelerator.architecture,
        peaks.get("fp32"),
        loop_on(accelerator.architecture, got.gemm_fill_k),
        accelerator.num_cores * STRIDED_ELEMENTS_PER_CORE_S if accelerator.kind == "gpu" else np.inf,
        {name: AttentionRates(**shares) for name, shares in got.attention_shares.items()},
    )


def gemm_flops_time(work: Work, rates: DeviceRates, profile: Profile | None = None) -> Num:
    """Return the arithmetic time of a GEMM in seconds; ``profile`` brings the factors of a stack's libraries.

    To fill and drain a tile takes one time in every type, so it costs 8- and 4-bit products more of their
    inner length (fp8 on B200, 8,192 rows: 0.23 of the peak at 1,024, 0.42 at 2,048, 0.48 from there on, where
    bf16 reaches 0.67 to 0.70 throughout; aiconfigurator).
    """
    low = rates.low_peak_flops_per_s if work.low_precision else None
    peak = rates.peak_flops_per_s if low is None else low
    fraction = (
        rates.gemm_fraction if low is None or rates.low_gemm_fraction is None else rates.low_gemm_fraction
    )
    return product_time(
        (work.m, work.n, work.k),
        groups=work.groups,
        cores=rates.num_cores,
        loop=TileLoop(rates.tiles.fill_k * peak / rates.peak_flops_per_s, rates.tiles.reuse),
        flops_per_s=peak * fraction * _library_factor(work, profile),
        memory_bytes_per_s=rates.memory_bytes_per_s * rates.memory_fraction,
    )


def _library_factor(work: Work, profile: Profile | None) -> Num:
    """Return what a stack's library reaches of the sustained rate."""
    if profile is None:
        return 1.0
    factor = profile.gemm_fraction
    if work.low_precision:
        factor = factor * profile.low_gemm_fraction
    if work.weight_gradient:
        return factor * profile.weight_gradient_fraction
    rows = np.maximum(work.m, 1.0)
    return np.where(np.asarray(work.groups) > 1, factor * rows / (rows + profile.grouped_fill), factor)


def work_time(work: Work, rates: DeviceRates, profile: Profile, backward: bool = False) -> Num:
    """Return seconds for a piece of work: launches + max(arithmetic, memory).

    Attention runs at its kernel's measured share of the peak on the accelerator's architecture
    (:mod:`meshwright.costmodels.attention_kernels`).
    """
    memory = work.bytes / (rates.memory_bytes_per_s * rates.memory_fraction)
    launch = work.kernels * rates.kernel_launch_s * (np.asarray(work.bytes) > 0)
    vector = rates.vector_flops_per_s
    if work.kernel == "memory" or (work.kernel == "vector" and vector is None):
        return launch + memory + _late(work, rates)
    if work.kernel == "vector" and vector is not None:
        return launch + np.maximum(work.flops / (vector * VECTOR_FRACTION), memory)
    if work.kernel == "gemm":
        return launch + np.maximum(gemm_flops_time(work, rates, profile), memory)
    kernel = find_attention_kernel(work.core or profile.attention)
    own = rates.attention.get(kernel.name) or kernel.rates_on(rates.architecture)
    share = own.share(work.k, work.n, backward=backward)
    sustained = rates.peak_flops_per_s * share * profile.attention_fraction
    return launch + np.maximum(work.flops / sustained, memory)


def _late(work: Work, rates: DeviceRates) -> Num:
    """Return what kernels without vector loads take beyond the time of their bytes."""
    moving = work.strided_bytes / (rates.memory_bytes_per_s * rates.memory_fraction)
    return np.maximum(0.0, np.asarray(work.strided_elements / rates.strided_elements_per_s - moving))


def total_time(works: tuple[Work, ...], rates: DeviceRates, profile: Profile, backward: bool = False) -> Num:
    """Return seconds for works that run one after another; zero for none."""
    return sum((work_time(w, rates, profile, backward) for w in works), start=np.float64(0.0))
