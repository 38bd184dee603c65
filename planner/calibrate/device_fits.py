"""What one device achieves: streams, products, attention and the optimizer, by the roofline's formulas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.attention_kernels import AttentionRates
from meshwright.costmodels.fusion import GROUPS, WIDE_BYTES, unfused
from meshwright.costmodels.memory import optimizer_traffic
from meshwright.costmodels.operators import Pointwise
from meshwright.costmodels.precision import find_optimizer, find_precision
from meshwright.costmodels.product import gemm_work
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import sourced_profile
from meshwright.costmodels.roofline import DeviceRates, work_time
from meshwright.costmodels.tiles import loop_on
from meshwright.costmodels.work import Shape, Work
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.cases import Core, Product, Sample, Stream, Update
from meshwright.planner.calibrate.explain import Explained, explained, of_kind
from meshwright.planner.calibrate.host_fits import STACK, call_s
from meshwright.planner.calibrate.machine import Machine

KERNEL: Final = "flash-2"
"""The attention kernel that is measured: PyTorch's ``scaled_dot_product_attention``."""
WIDTHS: Final = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element."""
NEUTRAL: Final[Profile] = replace(
    sourced_profile(STACK), attention=KERNEL, gemm_fraction=1.0, attention_fraction=1.0
)
"""A stack whose factors are one: all that is measured belongs to the device."""
SHARES: Final = {
    "forward": (0.5, (1e-3, 1.0)),
    "backward": (0.4, (1e-3, 1.0)),
    "half_length": (256.0, (1.0, 8192.0)),
    "narrow": (0.9, (0.2, 2.0)),
}
"""Start and bounds of an attention kernel's shares."""


def memory_fit(samples: Sequence[Sample], machine: Machine, host: Mapping[str, float]) -> Explained:
    """Return ``memory``, the rate of eager operators in bytes/s, and ``memory_peak``, that of the fastest."""
    own = of_kind(samples, Stream)
    if not own:
        raise MeshwrightError("calibrate: no stream was measured; give a larger budget")
    works = {case: stream_work(case) for case, _ in own}
    best = max(float(works[case].bytes) / seconds for case, seconds in own)

    def price(case: Stream, values: Mapping[str, float]) -> float:
        """Return the seconds of a stream."""
        work = works[case]
        return call_s(float(work.bytes) / values["memory"], host, machine, int(work.kernels))

    found = explained(own, price, {"memory": best / 2}, {"memory": (best / 100, best)})
    return Explained({**found.values, "memory_peak": best}, found.residuals)


def stream_work(case: Stream) -> Work:
    """Return the work of a memory-bound operator as the cost models count it without fusion."""
    width = WIDTHS[case.dtype]
    op = unfused(_STREAMS[case.what], dict.fromkeys(GROUPS, "eager"), wide=width >= WIDE_BYTES)
    (work,) = op.forward(Shape(1, case.elements, tp=1, sequence_parallel=0, element_bytes=width))
    return work


_STREAMS: Final = {
    "sum": Pointwise("sum", "sequence", 2, 1, group="residual"),
    "norm": Pointwise("norm", "sequence", 1, 1, weights=1, group="norm"),
    "gate": Pointwise("gate", "sequence", 2, 1, group="activation"),
    "rotary": Pointwise("rotary", "sequence", 1, 1, group="rotary"),
}
"""Memory-bound operators, one feature wide."""


def device_rates_of(
    values: Mapping[str, float], dtype: str, machine: Machine, launch_s: float
) -> DeviceRates:
    """Return the rates of constants ``peak.<dtype>``, ``memory``, ``fill_k`` and ``attention.<field>``."""
    shares = {f: values[f"attention.{f}"] for f in SHARES if f"attention.{f}" in values}
    return DeviceRates(
        peak_flops_per_s=values[f"peak.{dtype}"],
        memory_bytes_per_s=values["memory"],
        gemm_fraction=1.0,
        memory_fraction=1.0,
        kernel_launch_s=launch_s,
        num_cores=machine.num_cores,
        tiles=loop_on(machine.architecture, values["fill_k"]),
        attention={KERNEL: AttentionRates(**shares)} if shares else {},
    )


def product_fit(
    samples: Sequence[Sample], machine: Machine, host: Mapping[str, float], known: Mapping[str, float]
) -> Explained:
    """Return ``peak.<dtype>`` in FLOP/s, ``fill_k``, and ``weight_gradient``, their share of these rates."""
    own = of_kind(samples, Product)
    if not own:
        raise MeshwrightError("calibrate: no product was measured; give a larger budget")
    best: dict[str, float] = {}
    for case, seconds in own:
        best[case.dtype] = max(best.get(case.dtype, 0.0), 2.0 * case.m * case.n * case.k / seconds)

    def price(case: Product, values: Mapping[str, float]) -> float:
        """Return the seconds of a product."""
        width = WIDTHS[case.dtype]
        work = gemm_work(case.m, case.n, case.k, width, weight_gradient=case.weight_gradient)
        stack = replace(NEUTRAL, weight_gradient_fraction=values["weight_gradient"])
        rates = device_rates_of({**known, **values}, case.dtype, machine, host.get("launch", 0.0))
        return call_s(float(work_time(work, rates, stack)), host, machine)

    start = {f"peak.{d}": rate for d, rate in best.items()} | {"fill_k": 64.0, "weight_gradient": 0.97}
    bounds = {f"peak.{d}": (rate / 2, 2 * rate) for d, rate in best.items()}
    return explained(own, price, start, bounds | {"fill_k": (1.0, 2048.0), "weight_gradient": (0.3, 1.5)})


def core_fit(
    samples: Sequence[Sample],
    machine: Machine,
    host: Mapping[str, float],
    known: Mapping[str, float],
    dtype: str,
) -> Explained:
    """Return ``attention.<field>``: the shares of a dtype's peak that attention reaches."""
    own = [(case, seconds) for case, seconds in of_kind(samples, Core) if case.dtype == dtype]

    def price(case: Core, values: Mapping[str, float]) -> float:
        """Return the seconds of an attention core."""
        op = Attention("core", case.heads, case.heads, case.head_dim, case.head_dim, core=KERNEL)
        width = WIDTHS[dtype]
        shape = Shape(case.sequences, case.length, tp=1, sequence_parallel=0, element_bytes=width)
        rates = device_rates_of({**known, **values}, dtype, machine, host.get("launch", 0.0))
        works = op.backward(shape) if case.backward else op.forward(shape)
        device_s = sum(float(work_time(w, rates, NEUTRAL, case.backward)) for w in works)
        return call_s(device_s, host, machine)

    start = {f"attention.{field}": first for field, (first, _) in SHARES.items()}
    return explained(own, price, start, {f"attention.{f}": limits for f, (_, limits) in SHARES.items()})


def update_fit(
    samples: Sequence[Sample], machine: Machine, host: Mapping[str, float], known: Mapping[str, float]
) -> Explained:
    """Return ``optimizer_fraction``, the share of the streams' rate that AdamW reaches."""
    each = float(optimizer_traffic(find_precision("fp32"), find_optimizer("adamw"), 4.0))
    fixed = {"operator": host.get("step", 0.0)}

    def price(case: Update, values: Mapping[str, float]) -> float:
        """Return the seconds of an optimizer update."""
        moved = each * case.elements / (known["memory"] * values["optimizer_fraction"])
        return call_s(moved, fixed, machine)

    start, limits = {"optimizer_fraction": 0.7}, {"optimizer_fraction": (0.02, 1.5)}
    return explained(of_kind(samples, Update), price, start, limits)
