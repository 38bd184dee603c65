"""Meshwright: the fastest training plan that fits memory, with a proof, and the files that launch it.

The public names are loaded when first used (PEP 562), so that ``import meshwright`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from meshwright._version import __version__

if TYPE_CHECKING:
    from meshwright.hardware.catalogue import load_accelerator, load_cluster
    from meshwright.hardware.errors import MeshwrightError
    from meshwright.planner.estimate import estimate
    from meshwright.planner.importers import load_model
    from meshwright.planner.importers.module import from_module
    from meshwright.planner.job import Job
    from meshwright.planner.plan import Plan
    from meshwright.planner.problem import Problem
    from meshwright.planner.result import Result
    from meshwright.planner.runtime.apply import apply
    from meshwright.planner.runtime.architecture import Architecture
    from meshwright.planner.solve import solve

__all__ = [
    "Architecture",
    "Job",
    "MeshwrightError",
    "Plan",
    "Problem",
    "Result",
    "__version__",
    "apply",
    "estimate",
    "from_module",
    "load_accelerator",
    "load_cluster",
    "load_model",
    "solve",
]

_HOME: Final = {
    "Architecture": "meshwright.planner.runtime.architecture",
    "Job": "meshwright.planner.job",
    "MeshwrightError": "meshwright.hardware.errors",
    "Plan": "meshwright.planner.plan",
    "Problem": "meshwright.planner.problem",
    "Result": "meshwright.planner.result",
    "apply": "meshwright.planner.runtime.apply",
    "estimate": "meshwright.planner.estimate",
    "from_module": "meshwright.planner.importers.module",
    "load_accelerator": "meshwright.hardware.catalogue",
    "load_cluster": "meshwright.hardware.catalogue",
    "load_model": "meshwright.planner.importers",
    "solve": "meshwright.planner.solve",
}


def __getattr__(name: str) -> Any:
    """Load a public name from the module where it lives, once."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
