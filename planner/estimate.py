"""Price a plan that a person wrote, by the functions that price what the solver finds."""

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any

from meshwright.costmodels.profiles import absolute_name
from meshwright.costmodels.schedule import legal, rank_of_chunk
from meshwright.costmodels.schedule import names as schedules
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.meshes import mesh_of
from meshwright.planner.modes import check_modes
from meshwright.planner.plan import Plan
from meshwright.planner.pricing import loss_name, price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.problem_check import check_problem
from meshwright.planner.result import Estimate
from meshwright.planner.rules import check_mesh
from meshwright.planner.strategy import Strategy, make_plan, workload

if TYPE_CHECKING:
    from meshwright.hardware.spec import Cluster
    from meshwright.planner.graph import ModelGraph
    from meshwright.planner.job import Job


def estimate(
    model: "ModelGraph | str | PathLike[str]",
    cluster: "Cluster | str | PathLike[str]",
    job: "Job | Mapping[str, Any]",
    plan: Plan | Mapping[str, Any],
) -> Estimate:
    """Return the price of a plan.

    Parameters
    ----------
    model, cluster, job
        As for :func:`meshwright.solve`.
    plan
        A :class:`~meshwright.planner.plan.Plan`, or a strategy's fields by name (see
        :class:`~meshwright.planner.strategy.Strategy`).

    Raises
    ------
    MeshwrightError
        If the plan breaks a rule, each broken rule named, or belongs to another model or job.
    """
    problem = Problem.load(model, cluster, job)
    return estimate_problem(problem, plan if isinstance(plan, Plan) else written_plan(problem, plan))


def written_plan(problem: Problem, strategy: Mapping[str, Any]) -> Plan:
    """Return the plan of a strategy's fields, refusing what is none."""
    known = [field.name for field in fields(Strategy)]
    if not isinstance(strategy, Mapping):
        raise MeshwrightError(f"plan: a Plan or a strategy's fields by name, not {type(strategy).__name__}")
    unknown = [str(name) for name in strategy if name not in known]
    if unknown:
        raise MeshwrightError(f"strategy: {unknown[0]!r} is not a field; allowed: {', '.join(known)}")
    return make_plan(problem, **strategy)


def estimate_problem(problem: Problem, plan: Plan) -> Estimate:
    """Return the price of a plan for a loaded problem; raises as :func:`estimate` does."""
    check_problem(problem)
    check_plan(problem, plan)
    return price_plan(problem, plan)


_OF_THE_JOB = ("global_batch_size", "sequence_length", "precision", "optimizer", "target")


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuse a plan whose layers, chunks or batch do not fit the problem.

    Raises
    ------
    MeshwrightError
        Naming the field.
    """
    model = problem.model
    if plan.num_layers != model.num_layers:
        raise MeshwrightError(
            f"plan: recompute has {plan.num_layers} layers, {model.name} has {model.num_layers}"
        )
    _check_made_for(problem, plan)
    if plan.schedule not in schedules():
        raise MeshwrightError(
            f"plan: schedule {plan.schedule!r} is not known; allowed: {', '.join(schedules())}"
        )
    if len(plan.chunks) != plan.pp * plan.vpp:
        raise MeshwrightError(f"plan: {len(plan.chunks)} chunks; pp x vpp is {plan.pp * plan.vpp}")
    reason = legal(plan.schedule, plan.pp, plan.vpp, plan.num_microbatches)
    if reason is not None:
        raise MeshwrightError(f"plan: schedule {plan.schedule!r}: {reason}")
    _check_chunks(plan)
    check_modes(problem, set(plan.recompute))
    for layer, mode in enumerate(plan.recompute):
        if mode != "none" and model.kinds[model.layer_kinds[layer]].role != "block":
            raise MeshwrightError(f"plan: layer {layer} ({mode}) cannot be recomputed; only blocks can")
    check_mesh(problem, mesh_of(plan))


def _check_made_for(problem: Problem, plan: Plan) -> None:
    """Refuse a plan for another model, cluster, stack or job."""
    own = {
        "model": problem.model.name,
        "cluster": problem.cluster.name,
        "profile": problem.profile.name,
        "loss": loss_name(problem, plan.pp),
        **{name: getattr(problem.job, name) for name in _OF_THE_JOB},
        **workload(problem),
    }
    sizes = {"parameters": problem.base.parameters, "hidden_size": problem.base.hidden_size}
    own |= {name: value for name, value in sizes.items() if getattr(plan, name) is not None}
    for name, value in own.items():
        told = getattr(plan, name)
        if told != value and (name != "profile" or absolute_name(told) != absolute_name(value)):
            raise MeshwrightError(
                f"plan: {name} is {told!r}, here it is {value!r}; a plan is priced for what "
                "it was made for: give its strategy's fields to price it for something else"
            )


def _check_chunks(plan: Plan) -> None:
    """Refuse chunks that do not follow each other over all layers, each on its schedule's rank."""
    at = 0
    for c, (chunk, rank) in enumerate(
        zip(plan.chunks, rank_of_chunk(plan.schedule, plan.pp, plan.vpp), strict=True)
    ):
        if chunk.start != at or chunk.stop <= chunk.start or chunk.rank != rank:
            raise MeshwrightError(
                f"plan: chunk {c} ({chunk.start} to {chunk.stop} on rank {chunk.rank}) must start at layer "
                f"{at}, hold a layer and live on rank {rank}"
            )
        at = chunk.stop
    if at != plan.num_layers:
        raise MeshwrightError(f"plan: the chunks end at layer {at}, the model has {plan.num_layers}")
