"""What the host needs: times of calls and passes, as a software profile tells them."""

from collections.abc import Mapping, Sequence

import numpy as np

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.operators import Operator
from meshwright.costmodels.profiles import sourced_profile
from meshwright.costmodels.work import Shape, Work
from meshwright.planner.calibrate.bench_layer import token_bytes
from meshwright.planner.calibrate.cases import TENSOR_PASSES, Exchange, Host, Sample
from meshwright.planner.calibrate.explain import of_kind
from meshwright.planner.calibrate.group_fits import Tiers, exchange_s
from meshwright.planner.calibrate.machine import Machine
from meshwright.planner.importers import load_model

STACK = "fsdp2-eager"
"""The profile that a measured stack inherits from: PyTorch without compilation."""
LAYER_MODEL = "llama-3.1-8b"
"""Any model whose blocks are those of the layer that is measured: launches do not depend on its sizes."""


def host_times(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the seconds of each host case."""
    return {case.what: seconds for case, seconds in of_kind(samples, Host)}


def call_s(device_s: float, host: Mapping[str, float], machine: Machine, calls: int = 1) -> float:
    """Return the seconds of calls: the device's, and the host's as far as it is not hidden."""
    own = calls * host.get("operator", 0.0)
    return device_s + own if machine.waits_for_host else max(device_s, own)


def host_profile(host: Mapping[str, float], machine: Machine) -> dict[str, float]:
    """Return the profile's host times: a call's, and what a layer's pass takes beyond its calls."""
    if "operator" not in host:
        return {}
    call = host["operator"]
    found = {"forward_host_s": call, "host_share": 1.0}
    ahead, back = layer_launches()
    if {"forward", "backward"} <= set(host):
        found["layer_host_s"] = max(host["forward"] - ahead * call, call)
        found["backward_host_s"] = max((host["backward"] - found["layer_host_s"]) / back, call / back)
    if "step" in host:
        found["step_fixed_s"] = host["step"]
    return found | ({"host_sync": 1.0} if machine.waits_for_host else {})


def tensor_host(
    host: Mapping[str, float], machine: Machine, tiers: Tiers, stack: Mapping[str, float]
) -> dict[str, float]:
    """Return what a pass costs more where tensor ranks split the layer, beyond its exchanges.

    Both passes gather and scatter the tokens twice; a device does so while its host goes on, a CPU does not.
    """
    if not {*TENSOR_PASSES, "forward", "backward"} <= set(host) or "inside" not in tiers:
        return {}
    size, rate = token_bytes(machine.inside), stack.get("layer_rate", 1.0)
    gather = exchange_s(Exchange("all_gather", size, machine.inside, 1), tiers) / rate
    scatter = exchange_s(Exchange("reduce_scatter", size, machine.inside, 1), tiers) / rate
    moved = 4 * (gather + scatter / stack.get("scatter_rate", 1.0)) if machine.waits_for_host else 0.0
    more = sum(
        host[split] - host[whole] for split, whole in zip(TENSOR_PASSES, ("forward", "backward"), strict=True)
    )
    return {"tensor_host_s": max((more - moved) / 2, 0.0)}


def layer_launches() -> tuple[float, float]:
    """Return the kernels that a pass of the measured layer issues, forward and backward, without fusion."""
    profile = sourced_profile(STACK)
    kinds = (adapt(k, profile, find_loss(profile.loss)) for k in load_model(LAYER_MODEL).kinds)
    block = next(kind for kind in kinds if kind.role == "block")
    shape = Shape(sequences=1, sequence_length=16, tp=1, sequence_parallel=0)

    def kernels(works: tuple[Work, ...]) -> float:
        """Return the kernels that move anything."""
        return sum(float(np.asarray(work.kernels)) for work in works if np.asarray(work.bytes) > 0)

    operators: tuple[Operator, ...] = block.operators
    return (
        sum(kernels(op.forward(shape)) for op in operators),
        sum(kernels(op.backward(shape)) for op in operators),
    )
