"""The table of emitters, and what each can express."""

from collections.abc import Sequence
from typing import Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit import (
    accelerate,
    deepspeed,
    generic,
    megatron,
    megatron_bridge,
    native,
    torchtitan,
)
from meshwright.planner.emit.base import Emitter, beyond_target
from meshwright.planner.emit.launch import Command
from meshwright.planner.emit.launchers import Launcher, chosen, launch_files
from meshwright.planner.emit.text import quoted_script
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.targets import find_target

EMITTERS: Final[dict[str, Emitter]] = {
    e.target: e
    for e in (
        generic.EMITTER,
        deepspeed.EMITTER,
        accelerate.EMITTER,
        accelerate.FSDP1,
        megatron.EMITTER,
        megatron_bridge.EMITTER,
        torchtitan.EMITTER,
        native.EMITTER,
    )
}

OWN_SCRIPT: Final = "train.py"
"""The training script that some targets emit."""


def inexpressible(problem: Problem, plan: Plan, target: str | None = None) -> list[str]:
    """Return a line for each decision that the target (the plan's own by default) cannot express.

    Raises
    ------
    UnknownNameError
        If there is no such target.
    """
    name = target or plan.target
    found = beyond_target(problem, plan, find_target(name))
    return list(dict.fromkeys((*found, *EMITTERS[name].limits(problem, plan))))


def able_targets(problem: Problem, plan: Plan) -> list[str]:
    """Return the frameworks that could run this plan as it is."""
    return [name for name in EMITTERS if name != "any" and not inexpressible(problem, plan, name)]


def launchers_of(target: str, names: Sequence[str] = ()) -> list[Launcher]:
    """Return the launchers of the given names, by default the target's own.

    Raises
    ------
    MeshwrightError
        If one of them is none, or cannot start the target.
    """
    emitter = EMITTERS[target]
    return chosen(names or emitter.default_launchers, emitter.launchers, target)


def emit(
    problem: Problem, plan: Plan, script: str | None = None, launchers: Sequence[str] = ()
) -> dict[str, str]:
    """Return the files for a plan, text by name: the framework's and the launchers'.

    Parameters
    ----------
    script
        The training script that is started; None: the one that is emitted, or the target's usual one.
    launchers
        Names of launchers; none: the target's own.

    Raises
    ------
    MeshwrightError
        If the plan's target cannot express it; every such decision is named. If a launcher cannot start it,
        or ``script`` is no file name.
    """
    tools, emitter = launchers_of(plan.target, launchers), EMITTERS[plan.target]
    found = inexpressible(problem, plan)
    found += [line for tool in tools for line in tool.limits(problem, plan) if line not in found]
    if found:
        title = find_target(plan.target).title
        raise MeshwrightError(
            f"target {plan.target} ({title}) cannot express this plan: {'; '.join(found)}; "
            f"plan for it with target={plan.target}, or emit for another target"
        )
    files = emitter.files(problem, plan)
    for tool in tools:
        files |= emitter.beside[tool.name](problem, plan) if tool.name in emitter.beside else {}
    if script is not None:
        files.pop(OWN_SCRIPT, None)
    own = OWN_SCRIPT in files
    word = f'"$HERE/{OWN_SCRIPT}"' if own else quoted_script(script or emitter.default_script)
    command = Command(word, emitter.arguments, emitter.before(problem, plan), emitter.options)
    return {**files, **launch_files(problem, plan, command, tools)}
