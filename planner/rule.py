"""What a rule of legality is: a name that messages use, and a test over a whole batch of meshes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.costmodels.arrays import BoolArray
from meshwright.planner.meshes import Meshes
from meshwright.planner.problem import Problem


@dataclass(frozen=True)
class Rule:
    """A rule: ``allows`` returns a mask over meshes, ``says`` explains what it asks for.

    ``why`` adds what is wrong with one mesh that breaks it, where ``says`` cannot know that. ``split`` is
    what the rule asks ranks to divide, with its number, and which ranks of a mesh: ``tp 3``.
    """

    name: str
    says: str
    allows: Callable[[Meshes], BoolArray]
    why: Callable[[Meshes], str | None] = lambda mesh: None
    split: tuple[str, Callable[[Meshes], str]] | None = None

    def told(self, mesh: Meshes) -> str:
        """Return the name, what the rule asks for, and what of the one mesh does not comply."""
        why = self.why(mesh)
        return f"{self.name}: {self.says}" + (f" ({why})" if why else "")


def causes(broken: Sequence[Rule], mesh: Meshes) -> list[str]:
    """Return what is wrong with one mesh, each cause once.

    The same ranks that divide several things not are one cause, told with the first rule that finds it.
    """
    shared: dict[str, list[str]] = {}
    told: list[tuple[str, str]] = []
    for rule in broken:
        what, ranks = ("", "") if rule.split is None else (rule.split[0], rule.split[1](mesh))
        if not ranks or ranks not in shared:
            told.append((rule.told(mesh), ranks))
        if what not in shared.setdefault(ranks, []):
            shared[ranks].append(what)
    return [text + _others(ranks, shared) for text, ranks in told]


def _others(ranks: str, shared: Mapping[str, Sequence[str]]) -> str:
    """Return what else the same ranks do not divide."""
    rest = shared[ranks][1:] if ranks else []
    return f", nor does {ranks} divide {' and '.join(rest)}" if rest else ""


def has_experts(problem: Problem) -> bool:
    """Return whether the model has experts."""
    return any(op.expert for kind in problem.model.kinds for op in kind.operators)
