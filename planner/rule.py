"""What a rule of legality is: a name that messages use, and a test over a whole batch of meshes."""

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.costmodels.arrays import BoolArray
from meshwright.planner.meshes import Meshes
from meshwright.planner.problem import Problem


@dataclass(frozen=True)
class Rule:
    """A rule: ``allows`` returns a mask over meshes, ``says`` explains what it asks for.

    ``why`` adds what is wrong with one mesh that breaks it, where ``says`` cannot know that.
    """

    name: str
    says: str
    allows: Callable[[Meshes], BoolArray]
    why: Callable[[Meshes], str | None] = lambda mesh: None

    def told(self, mesh: Meshes) -> str:
        """Return the name, what the rule asks for, and what of the one mesh does not comply."""
        why = self.why(mesh)
        return f"{self.name}: {self.says}" + (f" ({why})" if why else "")


def has_experts(problem: Problem) -> bool:
    """Return whether the model has experts."""
    return any(op.expert for kind in problem.model.kinds for op in kind.operators)
