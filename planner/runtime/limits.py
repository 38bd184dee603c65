"""What :func:`meshwright.apply` cannot carry out of a plan: every such decision is named."""

from typing import Final

from meshwright.costmodels.schedule import rank_of_chunk, splits_backward
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan
from meshwright.planner.target import TARGET_DEGREES
from meshwright.planner.targets import find_target

TARGET: Final = find_target("native")


def check_plan(plan: Plan) -> None:
    """Refuse a plan with decisions that are not applied.

    Raises
    ------
    MeshwrightError
        Naming every such decision and what is applied instead of it.
    """
    found = [*_degrees(plan), *_words(plan), *_layers(plan)]
    if found:
        raise MeshwrightError(
            f"plan: apply cannot carry out {'; '.join(found)}; plan for it with target=native, or launch "
            "another framework with this plan"
        )


def _degrees(plan: Plan) -> list[str]:
    """Return a line for each degree above 1 that is not applied."""
    unable = [name for name, able in TARGET_DEGREES if not getattr(TARGET, able)]
    found = [f"{name}={getattr(plan, name)}: only {name}=1" for name in unable if getattr(plan, name) > 1]
    each = plan.micro_batch_size * plan.num_microbatches
    if plan.global_batch_size != each * plan.dp:
        found.append(
            f"global_batch_size={plan.global_batch_size}: only micro_batch_size x num_microbatches x dp="
            f"{each * plan.dp}"
        )
    if plan.dp % plan.dp_replicate:
        found.append(f"dp_replicate={plan.dp_replicate}: only divisors of dp={plan.dp}")
    return found


def _words(plan: Plan) -> list[str]:
    """Return a line for each decision whose value is not applied; ZeRO means nothing on one rank."""
    choices: list[tuple[str, str | int, frozenset[str] | frozenset[int] | None]] = [
        ("schedule", plan.schedule, TARGET.schedules),
        ("offload", plan.offload, TARGET.offload),
        ("precision", plan.precision, TARGET.precisions),
        ("tuning", plan.tuning.partition(":")[0], TARGET.tunings),
        *(("recompute", mode, TARGET.recompute) for mode in dict.fromkeys(plan.recompute)),
    ]
    if plan.cp > 1:
        choices.append(("kv_exchange", plan.kv_exchange, TARGET.kv_exchanges))
    if plan.dp * plan.cp > 1:
        choices.append(("zero_stage", plan.zero_stage, TARGET.zero_stages))
    if splits_backward(plan.schedule):
        choices.append(
            ("zero_stage", plan.zero_stage if plan.dp * plan.cp > 1 else 0, TARGET.split_zero_stages)
        )
        modes = TARGET.modes_with(plan.schedule)
        choices += [("recompute", mode, modes) for mode in dict.fromkeys(plan.recompute)]
    return [
        f"{name}={value}: only {', '.join(map(str, sorted(allowed)))}"
        for name, value, allowed in choices
        if allowed is not None and value not in allowed
    ]


def _layers(plan: Plan) -> list[str]:
    """Return a line for each way in which chunks and recomputation are not those of a decoder."""
    found = [
        f"recompute={plan.recompute[layer]} on layer {layer}: only on decoder layers"
        for layer in (0, plan.num_layers - 1)
        if plan.recompute[layer] != "none"
    ]
    ends = [0, *(chunk.stop for chunk in plan.chunks)]
    follow = all(chunk.start == end for chunk, end in zip(plan.chunks, ends, strict=False))
    if not follow or ends[-1] != plan.num_layers or len(plan.chunks) != plan.pp * plan.vpp:
        found.append(
            f"chunks: pp x vpp={plan.pp * plan.vpp} chunks that follow each other over "
            f"{plan.num_layers} layers are needed"
        )
        return found
    homes = rank_of_chunk(plan.schedule, plan.pp, plan.vpp).tolist()
    if homes != [chunk.rank for chunk in plan.chunks]:
        found.append(f"chunks: schedule {plan.schedule} has them on ranks {', '.join(map(str, homes))}")
    return found


def check_world(plan: Plan, world_size: int) -> None:
    """Refuse another number of processes than the plan has devices."""
    context = f"cp {plan.cp} x " if plan.cp > 1 else ""
    if world_size != plan.num_devices:
        raise MeshwrightError(
            f"world size: {world_size} processes run, the plan is for tp {plan.tp} x {context}pp {plan.pp} x "
            f"dp {plan.dp} = {plan.num_devices}; start {plan.num_devices}, or plan for {world_size} devices"
        )
