"""Which recompute modes a problem admits: ``offload`` needs a host, ``moe`` experts, a list its modules."""

from collections.abc import Collection
from dataclasses import replace

from meshwright.costmodels.modules import modules_of, operators_of
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.recompute import has_experts
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.problem import Problem


def host_linked(problem: Problem) -> bool:
    """Return whether a device can move anything to its host."""
    return problem.cluster.accelerator.host_link is not None


def told(kind: LayerKind, modules: Collection[str]) -> LayerKind:
    """Return a kind whose selective recompute runs the named modules again; its own choice where none is."""
    if not modules or kind.role != "block":
        return kind
    return replace(kind, again=operators_of(kind, modules), by_operator="by_operator" in modules)


def check_modules(problem: Problem) -> None:
    """Refuse modules to recompute that target or model do not have.

    Raises
    ------
    MeshwrightError
        Naming the module, and those that there are.
    """
    wanted, target, model = problem.job.recompute_modules, problem.target, problem.model
    blocks = [kind for kind in model.kinds if kind.role == "block"]
    own = dict.fromkeys(name for kind in blocks for name in modules_of(kind))
    able = own if target.recompute_modules is None else target.recompute_modules
    have = [name for name in own if name in able]
    if wanted and "selective" not in target.recompute:
        raise MeshwrightError(
            f"recompute_modules: {target.title} runs no single modules again here; leave the list out"
        )
    missing = [name for name in wanted if name not in have]
    if missing:
        raise MeshwrightError(
            f"recompute_modules: {missing[0]!r} is no module of {model.name} that {target.title} can name; "
            f"allowed: {', '.join(have)}"
        )


def check_modes(problem: Problem, modes: Collection[str]) -> None:
    """Refuse recompute modes, and modules, that device or model do not have.

    Layers without experts take ``moe`` as ``selective``; only where no layer has any it is refused.

    Raises
    ------
    MeshwrightError
        Naming the rule, and what to write instead.
    """
    device, model = problem.cluster.accelerator.name, problem.model
    check_modules(problem)
    if "offload" in modes and not host_linked(problem):
        raise MeshwrightError(
            f"offload needs a host link: recompute 'offload' moves activations to host memory, and {device} "
            "has no link to it; try full"
        )
    if "moe" in modes and not any(map(has_experts, model.kinds)):
        raise MeshwrightError(
            f"recompute: 'moe' runs experts again, and no layer of {model.name} has experts; try selective"
        )
