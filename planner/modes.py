"""Which recompute modes a problem admits: ``offload`` needs a host, ``moe`` needs experts."""

from collections.abc import Collection

from meshwright.costmodels.recompute import has_experts
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.problem import Problem


def host_linked(problem: Problem) -> bool:
    """Return whether a device can move anything to its host."""
    return problem.cluster.accelerator.host_link is not None


def check_modes(problem: Problem, modes: Collection[str]) -> None:
    """Refuse recompute modes that device or model do not have.

    Layers without experts take ``moe`` as ``selective``; only where no layer has any it is refused.

    Raises
    ------
    MeshwrightError
        Naming the rule, and what to write instead.
    """
    device, model = problem.cluster.accelerator.name, problem.model
    if "offload" in modes and not host_linked(problem):
        raise MeshwrightError(
            f"offload needs a host link: recompute 'offload' moves activations to host memory, and {device} "
            "has no link to it; try full"
        )
    if "moe" in modes and not any(map(has_experts, model.kinds)):
        raise MeshwrightError(
            f"recompute: 'moe' runs experts again, and no layer of {model.name} has experts; try selective"
        )
