"""From a problem and its plans to the cost models and back: the judge of every plan."""

from dataclasses import replace

import numpy as np

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.memory import ITEMS
from meshwright.costmodels.offload import host_memory_share_bytes, nvme_share_bytes
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.roofline import device_rates
from meshwright.costmodels.step import Price, price
from meshwright.costmodels.strategy import Setting
from meshwright.costmodels.work import Shape
from meshwright.hardware.units import s_to_hours
from meshwright.planner.lengths import main_length, sample_shape, sample_tokens, stream_lengths
from meshwright.planner.meshes import mesh_of
from meshwright.planner.modes import told
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate
from meshwright.planner.tuned import trainable_parameters
from meshwright.planner.uncertainty import uncertainty_of


def loss_name(problem: Problem, pp: int = 1) -> str:
    """Return the cross entropy in use at the end of ``pp`` stages: the job's, or the profile's own."""
    if problem.job.loss is not None:
        return problem.job.loss
    return (problem.profile.pipeline_loss if pp > 1 else "") or problem.profile.loss


def setting(problem: Problem) -> Setting:
    """Return what all plans of a problem share."""
    kernel, pipelined = (find_loss(loss_name(problem, pp)) for pp in (1, 2))
    model, job = problem.model, problem.job
    stack = problem.profile, kernel, problem.precision, None if pipelined == kernel else pipelined
    return Setting(
        kinds=tuple(told(adapt(kind, *stack), job.recompute_modules) for kind in model.kinds),
        sequence_length=main_length(model, job),
        cluster=problem.cluster,
        rates=device_rates(problem.cluster.accelerator, problem.precision),
        precision=problem.precision,
        optimizer=problem.optimizer,
        profile=problem.profile,
        vocab_multiple=problem.target.vocab_multiple,
        streams=stream_lengths(model, job),
        context=model.context,
        expert_load=job.expert_load,
    )


def counts(problem: Problem, plan: Plan) -> IntArray:
    """Return layers per chunk, kind and recompute mode, (1, C, K, M)."""
    model = problem.model
    table = np.zeros((1, len(plan.chunks), len(model.kinds), len(MODES)), dtype=np.int64)
    for c, chunk in enumerate(plan.chunks):
        for layer in range(chunk.start, chunk.stop):
            table[0, c, model.layer_kinds[layer], MODES.index(plan.recompute[layer])] += 1
    return table


def model_flops(problem: Problem) -> float:
    """Return the model's own FLOPs per step: those of its products, once each, causal attention halved.

    A forward pass of every layer; in layers that gradients reach, another for the inputs' gradients and,
    except for frozen weights, a third for the weights', as far as the operator has them (an indexer whose
    choice of keys passes no gradient on has fewer). Experts count as far as tokens visit them;
    recomputation, padding and imbalance count nothing.
    """
    element = problem.precision.element_bytes
    per_kind = [
        _own_flops(kind, sample_shape(problem.model, problem.job, kind, element))
        for kind in problem.model.kinds
    ]
    return float(np.dot(problem.model.kind_counts, per_kind)) * problem.job.global_batch_size


def _own_flops(kind: LayerKind, shape: Shape) -> float:
    """Return the FLOPs of a layer for one sample, forward and backward."""
    total = 0.0
    for op in kind.operators:
        forward, backward = (sum(float(w.flops) for w in way(shape)) for way in (op.forward, op.backward))
        total += forward + kind.backward * min((1 + op.trained) * forward, backward)
    return total


def peak_flops_per_s(problem: Problem) -> float:
    """Return the peak that a device's utilisation is told against: that of the recipe's fastest products."""
    peaks = problem.cluster.accelerator.peak_flops_per_s
    return max(peaks[dtype] for dtype in problem.precision.dtypes)


def usable_bytes(problem: Problem) -> float:
    """Return the memory that a plan may fill: the device's, less the headroom."""
    return problem.cluster.accelerator.memory_bytes * (1 - problem.headroom.share)


def _known(share: float) -> float | None:
    """Return a device's share of a place, None where its size is not known."""
    return float(share) if np.isfinite(share) else None


def price_plan(problem: Problem, plan: Plan) -> Estimate:
    """Return the price of a legal plan."""
    strategies = mesh_of(plan).strategies()
    return _estimate(problem, plan, price(setting(problem), strategies, counts(problem, plan)))


def _estimate(problem: Problem, plan: Plan, got: Price) -> Estimate:
    step, ranks = float(got.step_time_s[0]), range(plan.pp)
    own = model_flops(problem)
    executed = float(got.flops[0, : plan.pp].sum()) * (plan.num_devices // plan.pp)
    peak = peak_flops_per_s(problem) * plan.num_devices
    tokens = problem.job.global_batch_size * sample_tokens(problem.model, problem.job)
    estimate = Estimate(
        plan=plan,
        step_time_s=step,
        breakdown={cause: float(v[0]) for cause, v in got.breakdown.items()},
        hidden={cause: float(v[0]) for cause, v in got.hidden.items()},
        memory=tuple({item: float(got.memory[item][0, r]) for item in ITEMS} for r in ranks),
        peak_bytes=tuple(float(got.peak_bytes[0, r]) for r in ranks),
        capacity_bytes=float(problem.cluster.accelerator.memory_bytes),
        usable_bytes=usable_bytes(problem),
        host_bytes=tuple(float(got.host_bytes[0, r]) for r in ranks),
        host_share_bytes=_known(host_memory_share_bytes(problem.cluster)),
        nvme_bytes=tuple(float(got.nvme_bytes[0, r]) for r in ranks),
        nvme_share_bytes=_known(nvme_share_bytes(problem.cluster)),
        tokens_per_s=tokens / step,
        mfu=own / (step * peak),
        hfu=executed / (step * peak),
        model_flops=own,
        hardware_flops=executed,
        parameters=problem.model.parameters,
        trainable_parameters=trainable_parameters(problem.model),
        notes=problem.notes,
        headroom=problem.headroom,
        uncertainty=uncertainty_of(problem),
    )
    return _with_bill(problem, replace(estimate, notes=(*estimate.notes, *_unchecked(estimate))))


def _unchecked(estimate: Estimate) -> list[str]:
    """Return a note for each place that holds something of the plan and whose size is not known."""
    places = (
        ("host memory", estimate.host_bytes, estimate.host_share_bytes),
        ("drive space", estimate.nvme_bytes, estimate.nvme_share_bytes),
    )
    return [
        f"{place} of the cluster is not known: not checked"
        for place, held, share in places
        if share is None and max(held, default=0.0) > 0
    ]


def _with_bill(problem: Problem, estimate: Estimate) -> Estimate:
    """Return the estimate with its cost: devices x hours x price; idle devices are paid for."""
    cluster = problem.cluster
    rate = cluster.usd_per_device_hour or cluster.accelerator.usd_per_hour
    per_hour = None if rate is None else rate * cluster.num_devices
    hours = None
    if problem.job.tokens is not None:
        hours = s_to_hours(problem.job.tokens / estimate.tokens_per_s)
    return replace(
        estimate,
        usd_per_hour=per_hour,
        usd_per_step=None if per_hour is None else per_hour * s_to_hours(estimate.step_time_s),
        total_hours=hours,
        total_usd=None if per_hour is None or hours is None else per_hour * hours,
    )
