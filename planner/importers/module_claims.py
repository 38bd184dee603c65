"""Who counts which parameter: each exactly once, where the forward pass first uses it."""

from collections.abc import Iterable, Mapping

from meshwright.planner.importers.module_trace import Weight


class Claims:
    """Parameters that operators have counted already."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self.weights = weights
        self.owner: dict[str, int] = {}

    def fresh(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those that nobody has counted."""
        return tuple(n for n in dict.fromkeys(names) if n not in self.owner)

    def take(self, names: Iterable[str], layer: int) -> int:
        """Count what nobody has, for a layer; return its elements."""
        fresh = self.fresh(names)
        self.owner |= dict.fromkeys(fresh, layer)
        return sum(self.weights[n].size for n in fresh)

    def trained(self, names: Iterable[str]) -> bool:
        """Return whether any of them is trained (nothing at all counts as trained)."""
        flags = [self.weights[n].trained for n in names]
        return any(flags) or not flags

    def left(self) -> tuple[str, ...]:
        """Return the parameters that the forward pass never used."""
        return tuple(n for n in self.weights if n not in self.owner)
