"""What an emitter is, and which decisions of a plan a target cannot express.

An emitter turns a plan into the files of one framework. It lives in a file of its own and is registered in
:mod:`meshwright.planner.emit.registry`. Nothing is dropped or rounded: before emission every decision that
the target has no word for is an error that names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from meshwright.costmodels.schedule import splits_backward
from meshwright.planner.emit.launchers import Level, even_hosts
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.rule import has_experts
from meshwright.planner.target import TARGET_DEGREES, Target
from meshwright.planner.target_job import (
    context_refusals,
    fitted,
    pipeline_refusals,
    refusals,
    tensor_refusals,
)

Files = Callable[[Problem, Plan], dict[str, str]]


@dataclass(frozen=True)
class Emitter:
    """The files of one target.

    Attributes
    ----------
    target
        A name of :data:`~meshwright.planner.targets.TARGETS`.
    level
        How the files are verified, see :data:`~meshwright.planner.emit.launchers.Level`.
    checked
        The same in a sentence, for the user.
    files
        From the problem and the plan to the framework's own files, text by name. A ``train.py`` among them
        is started unless the user names another script.
    limits
        What this framework's files cannot express beyond the target's declared limits, one line each.
    about
        What each file is, in a line.
    script
        What the training script itself must do, for no file can say it.
    asks
        Which arguments the emitted ``train.py`` must be given, and may be, for the user.
    default_script
        The script that is started where nobody names one and none is emitted.
    arguments
        Words of bash between the script and the user's arguments, each followed by a space.
    before
        Lines of bash that must run on each host before the processes start.
    launchers, default_launchers
        Launchers of processes that can start it, and those whose files are written where nobody chose.
    beside, options
        Files that a launcher needs beside its own, and words of bash for it, by the launcher's name.
    """

    target: str
    level: Level
    checked: str
    files: Files
    limits: Callable[[Problem, Plan], list[str]]
    about: Mapping[str, str]
    script: Callable[[Problem, Plan], list[str]]
    asks: str = ""
    default_script: str = "train.py"
    arguments: str = ""
    before: Callable[[Problem, Plan], tuple[str, ...]] = lambda problem, plan: ()
    launchers: tuple[str, ...] = ("torchrun",)
    default_launchers: tuple[str, ...] = ("torchrun", "slurm")
    beside: Mapping[str, Files] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


Rule = Callable[[Problem, Plan, Target], str | None]


def _batch(problem: Problem, plan: Plan, target: Target) -> str | None:
    product = plan.dp * plan.micro_batch_size * plan.num_microbatches
    if product == plan.global_batch_size:
        return None
    return (
        f"global_batch_size={plan.global_batch_size}: dp x micro_batch_size x num_microbatches is "
        f"{plan.dp} x {plan.micro_batch_size} x {plan.num_microbatches} = {product}"
    )


def _devices(problem: Problem, plan: Plan, target: Target) -> str | None:
    have = problem.cluster.num_devices
    if plan.num_devices <= have:
        return None
    return f"tp x cp x pp x dp={plan.num_devices}: {problem.cluster.name} has {have} devices"


def _even_hosts(problem: Problem, plan: Plan, target: Target) -> str | None:
    found = even_hosts(problem, plan) if target.even_hosts else []
    return found[0] if found else None


def _layers(problem: Problem, plan: Plan, target: Target) -> str | None:
    ends = [0, *(c.stop for c in plan.chunks)]
    cut = ends[-1] == plan.num_layers and all(c.start == e for c, e in zip(plan.chunks, ends, strict=False))
    if plan.num_layers != problem.model.num_layers:
        return f"recompute: {plan.num_layers} layers are named, the model has {problem.model.num_layers}"
    if not cut or len(plan.chunks) != plan.pp * plan.vpp:
        return (
            f"chunks: pp x vpp={plan.pp * plan.vpp} chunks that follow each other over all layers are needed"
        )
    return None


def _supported(problem: Problem, plan: Plan, target: Target) -> str | None:
    device = problem.cluster.accelerator
    if target.name == "any" or target.needs in device.support.targets:
        return None
    have = ", ".join(sorted(device.support.targets)) or "none"
    return f"cluster={problem.cluster.name}: {device.name} runs {have}, not {target.name}"


def _tensor(problem: Problem, plan: Plan, target: Target) -> str | None:
    return None if target.tensor or plan.tp == 1 else f"tp={plan.tp}: only tp=1"


def _pipeline(problem: Problem, plan: Plan, target: Target) -> str | None:
    return None if target.pipeline or plan.pp == 1 else f"pp={plan.pp}: only pp=1"


def _interleaved(problem: Problem, plan: Plan, target: Target) -> str | None:
    return None if target.interleaved or plan.vpp == 1 else f"vpp={plan.vpp}: only vpp=1"


def _schedule(problem: Problem, plan: Plan, target: Target) -> str | None:
    return _among("schedule", plan.schedule, target.schedules)


def _sequence_parallel(problem: Problem, plan: Plan, target: Target) -> str | None:
    refused = plan.sequence_parallel and not target.sequence_parallel
    return "sequence_parallel=true: only false" if refused else None


def _zero(problem: Problem, plan: Plan, target: Target) -> str | None:
    if plan.pp == 1:
        return _among("zero_stage", plan.zero_stage, target.zero_stages)
    message = _among("zero_stage", plan.zero_stage, target.zero_stages_with_pipeline)
    return message and f"{message} with a pipeline"


def _split_backward(problem: Problem, plan: Plan, target: Target) -> str | None:
    """What does not go together with schedules that run weight gradients as passes of their own."""
    if not splits_backward(plan.schedule):
        return None
    beside = f" with schedule={plan.schedule}"
    found = _among("zero_stage", plan.zero_stage, target.zero_stages & target.split_zero_stages)
    for mode in dict.fromkeys(plan.recompute):
        found = found or _among("recompute", mode, target.modes_with(plan.schedule))
    return found and found + beside


def _degrees(problem: Problem, plan: Plan, target: Target) -> str | None:
    for degree, able in TARGET_DEGREES:
        if getattr(plan, degree) > 1 and not getattr(target, able):
            return f"{degree}={getattr(plan, degree)}: only {degree}=1"
    return None


def _kv_exchange(problem: Problem, plan: Plan, target: Target) -> str | None:
    alone = plan.cp == plan.ulysses
    return None if alone else _among("kv_exchange", plan.kv_exchange, target.kv_exchanges)


def _placement(problem: Problem, plan: Plan, target: Target) -> str | None:
    have = frozenset(map(",".join, target.placements))
    return _among("placement", ",".join(plan.placement), have)


def _offload(problem: Problem, plan: Plan, target: Target) -> str | None:
    return _among("offload", plan.offload, target.offload)


def _pairs(problem: Problem, plan: Plan, target: Target) -> str | None:
    """Decisions that a target has, but not together."""
    some = 1 < plan.ulysses < plan.cp
    if some and plan.kv_exchange not in target.combined_exchanges:
        message = _among("kv_exchange", plan.kv_exchange, target.combined_exchanges)
        return f"{message} beside ulysses={plan.ulysses}"
    if plan.zero_stage == 0 and plan.precision in target.sharded_precisions:
        return f"zero_stage=0: only 1 to 3 with precision={plan.precision}"
    if plan.zero_stage == 0 and plan.optimizer in target.sharded_optimizers:
        return f"zero_stage=0: only 1 to 3 with optimizer={plan.optimizer}"
    if plan.pp > 1 and problem.model.tied and not target.tied_pipeline:
        return f"pp={plan.pp}: only pp=1 with tied embeddings"
    if plan.pp > 1 and plan.offload not in target.pipeline_offload:
        message = _among("offload", plan.offload, target.pipeline_offload)
        return f"{message} with a pipeline"
    if plan.cp > 1 and plan.dp == plan.dp_replicate > 1 and not target.context_shards:
        return f"dp_replicate={plan.dp_replicate}: only below dp={plan.dp} with cp={plan.cp}"
    parts = [int(p.units) for p in problem.model.parts if p.axis == "tensor" and p.replicable]
    if not target.replicated_heads and any(units % plan.tp for units in parts):
        return f"tp={plan.tp}: only divisors of {min(parts)} key/value heads"
    tensor = 1 if plan.ep > 1 else plan.tp
    if target.experts_tensor_or_spread and has_experts(problem) and plan.etp != tensor:
        return f"etp={plan.etp}: only {tensor} with tp={plan.tp}, ep={plan.ep}"
    spread = has_experts(problem) and plan.ep * plan.etp != plan.tp * plan.cp
    if spread and plan.pp > 1 and plan.placement[-1] != "pp" and not target.experts_across_pipeline:
        return f"placement={','.join(plan.placement)}: only with ep x etp equal to tp x cp"
    return None


def _job(problem: Problem, plan: Plan, target: Target) -> str | None:
    """What the target cannot train at all."""
    job = replace(problem.job, precision=plan.precision, optimizer=plan.optimizer)
    return "; ".join(refusals(target, problem.model, job, plan.loss)) or None


def _pipeline_model(problem: Problem, plan: Plan, target: Target) -> str | None:
    """What the target cannot train as a pipeline."""
    if plan.pp > 1 and plan.tp > 1 and not target.tensor_with_pipeline:
        return f"pp={plan.pp}: only pp=1 with tp={plan.tp}"
    found = pipeline_refusals(target, problem.base, problem.job, plan.loss) if plan.pp > 1 else []
    return f"pp={plan.pp}: only pp=1, for {'; '.join(found)}" if found else None


def _tensor_model(problem: Problem, plan: Plan, target: Target) -> str | None:
    """What the target cannot split over tensor ranks."""
    found = tensor_refusals(target, problem.base, problem.job, plan.loss) if plan.tp > 1 else []
    return f"tp={plan.tp}: only tp=1, for {'; '.join(found)}" if found else None


def _context_model(problem: Problem, plan: Plan, target: Target) -> str | None:
    """What the target cannot split over context ranks."""
    found = context_refusals(target, problem.base, problem.job, plan.loss) if plan.cp > 1 else []
    return f"cp={plan.cp}: only cp=1, for {'; '.join(found)}" if found else None


def _recompute(problem: Problem, plan: Plan, target: Target) -> str | None:
    for mode in dict.fromkeys(plan.recompute):
        if mode not in target.recompute:
            return _among("recompute", mode, target.recompute)
    if plan.num_layers != problem.model.num_layers:
        return None
    blocks = set(problem.model.block_layers)
    modes = sorted({plan.recompute[i] for i in blocks})
    if target.recompute_uniform and len(modes) > 1:
        return f"recompute={'+'.join(modes)}: all decoder layers must share one mode"
    outside = [i for i, m in enumerate(plan.recompute) if i not in blocks and m != "none"]
    if outside and target.name != "any":
        return f"recompute={plan.recompute[outside[0]]} on layer {outside[0]}: only on decoder layers"
    return None


def _among(name: str, value: object, allowed: frozenset[str] | frozenset[int]) -> str | None:
    return None if value in allowed else f"{name}={value}: only {', '.join(map(str, sorted(allowed)))}"


RULES: Final[tuple[Rule, ...]] = (
    _batch,
    _devices,
    _even_hosts,
    _layers,
    _supported,
    _tensor,
    _pipeline,
    _interleaved,
    _schedule,
    _sequence_parallel,
    _zero,
    _split_backward,
    _degrees,
    _kv_exchange,
    _placement,
    _offload,
    _pairs,
    _job,
    _pipeline_model,
    _tensor_model,
    _context_model,
    _recompute,
)


def beyond_target(problem: Problem, plan: Plan, target: Target) -> list[str]:
    """Return a line for each decision that lies outside the target's declared limits."""
    own = fitted(target, problem.base, problem.job)
    found = (rule(problem, plan, own) for rule in RULES)
    return [message for message in found if message]
