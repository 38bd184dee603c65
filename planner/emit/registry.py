"""The table of emitters, and what each can express."""

from typing import Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit import accelerate, deepspeed, generic, megatron, torchtitan
from meshwright.planner.emit.base import Emitter, beyond_target
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.target import find_target

EMITTERS: Final[dict[str, Emitter]] = {
    e.target: e
    for e in (generic.EMITTER, deepspeed.EMITTER, accelerate.EMITTER, megatron.EMITTER, torchtitan.EMITTER)
}


def inexpressible(problem: Problem, plan: Plan, target: str | None = None) -> list[str]:
    """Return a line for each decision that the target (the plan's own by default) cannot express.

    Raises
    ------
    UnknownNameError
        If there is no such target.
    """
    name = target or plan.target
    found = beyond_target(problem, plan, find_target(name))
    return [*found, *EMITTERS[name].limits(problem, plan)]


def able_targets(problem: Problem, plan: Plan) -> list[str]:
    """Return the frameworks that could run this plan as it is."""
    return [name for name in EMITTERS if name != "any" and not inexpressible(problem, plan, name)]


def emit(problem: Problem, plan: Plan, script: str = "train.py") -> dict[str, str]:
    """Return the framework's files for a plan, text by name.

    Raises
    ------
    MeshwrightError
        If the plan's target cannot express it; every such decision is named.
    """
    found = inexpressible(problem, plan)
    if found:
        title = find_target(plan.target).title
        raise MeshwrightError(
            f"target {plan.target} ({title}) cannot express this plan: {'; '.join(found)}; "
            f"plan for it with target={plan.target}, or emit for another target"
        )
    return EMITTERS[plan.target].emit(problem, plan, script)
