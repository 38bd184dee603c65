"""Who counts which parameter: each exactly once, where the forward pass first uses it."""

from collections.abc import Iterable, Mapping

from meshwright.planner.importers.module_trace import Weight


class Claims:
    """Parameters that operators have counted already.

    A product may use a part of a parameter (packed queries, keys and values): elements are counted.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self.weights = weights
        self.owner: dict[str, int] = {}
        self.remaining = {name: weight.size for name, weight in weights.items()}

    def fresh(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of which something is not counted yet."""
        return tuple(n for n in dict.fromkeys(names) if self.remaining[n])

    def take(self, names: Iterable[str], layer: int) -> int:
        """Count what nobody has, for a layer; return its elements."""
        return sum(self.take_part(n, self.remaining[n], layer) for n in self.fresh(names))

    def take_part(self, name: str, elements: int, layer: int) -> int:
        """Count so many elements of a parameter for a layer, all or none; return how many."""
        if elements > self.remaining[name]:
            return 0
        self.remaining[name] -= elements
        self.owner.setdefault(name, layer)
        return elements

    def trained(self, names: Iterable[str]) -> bool:
        """Return whether any of them is trained (nothing at all counts as trained)."""
        flags = [self.weights[n].trained for n in names]
        return any(flags) or not flags

    def left(self) -> tuple[str, ...]:
        """Return the parameters of which the forward pass left something unused."""
        return tuple(n for n, elements in self.remaining.items() if elements)
