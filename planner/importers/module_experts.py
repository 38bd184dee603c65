"""Batched experts: modules that hold one three-dimensional weight for all experts."""

from dataclasses import dataclass
from typing import Any, Final

DOWN: Final = ("down", "w2", "wo", "fc2", "output")
"""Words in the names of weights that lead back to the hidden width."""


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """The weights of a module of experts.

    Attributes
    ----------
    experts
        How many there are.
    up, down
        Names, and the two widths of one expert's matrix, of the products into and out of the inner width.
    biases
        Names of the two-dimensional biases, by the product's name.
    """

    experts: int
    up: tuple[tuple[str, tuple[int, int]], ...]
    down: tuple[tuple[str, tuple[int, int]], ...]
    biases: tuple[str, ...]


def expert_layout(module: Any) -> ExpertLayout | None:
    """Return the layout of a module that itself owns batched expert weights, None for any other.

    It owns two or more three-dimensional parameters with one leading dimension, the number of experts.
    torch's own modules (convolutions) never count.
    """
    if type(module).__module__.startswith("torch.nn."):
        return None
    own = {name: tuple(p.shape) for name, p in module.named_parameters(recurse=False)}
    cubes = {name: shape for name, shape in own.items() if len(shape) == 3}
    counts = {shape[0] for shape in cubes.values()}
    if len(cubes) < 2 or len(counts) != 1 or (experts := counts.pop()) < 2:
        return None
    names = list(cubes)
    down = [n for n in names if any(word in n.lower() for word in DOWN)] or names[-1:]
    pairs = {n: (shape[1], shape[2]) for n, shape in cubes.items()}
    return ExpertLayout(
        experts=experts,
        up=tuple((n, pairs[n]) for n in names if n not in down),
        down=tuple((n, pairs[n]) for n in down),
        biases=tuple(n for n, shape in own.items() if len(shape) == 2 and shape[0] == experts),
    )
