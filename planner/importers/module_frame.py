"""One layer being lowered: its nodes, what is split and counted so far, and its regions' boundaries."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.costmodels.operators import Boundary, Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.planner.importers.module_claims import Claims
from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_layers import Stretch
from meshwright.planner.importers.module_mixture import mixture_of
from meshwright.planner.importers.module_nodes import Node
from meshwright.planner.importers.module_sharding import Links, shards


@dataclass
class Frame:
    """One layer being lowered.

    Attributes
    ----------
    flow, stretch, index, claims
        The trace, what part of it, its number, and who counts which parameter.
    vocabulary
        Rows of the token table, 0 without one.
    context
        Roots of the other stream's activations (cross attention).
    is_source
        Whether this layer makes such activations for others, and keeps them.
    """

    flow: Flow
    stretch: Stretch
    index: int
    claims: Claims
    nodes: Sequence[Node]
    vocabulary: int
    context: frozenset[int] = frozenset()
    is_source: bool = False
    operators: list[Operator] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.links = Links(self.flow, self.nodes)
        self.shards = shards(self.links, self.vocabulary, inferred=self.stretch.role == "block")
        self.split: dict[int, Part] = {}
        self.partial: dict[int, float] = {}
        self.entered: set[int] = set()
        self.mixtures = {n.at: mixture_of(self.links, n) for n in self.nodes if n.kind == "experts"}
        self.done = {at for m in self.mixtures.values() for at in m.absorbed}

    def width(self, root: int) -> int | float:
        """Return the features per token of a value."""
        return self.per_token(self.flow.value(root).size)

    def per_token(self, elements: int) -> int | float:
        """Return elements per token of the layer."""
        share = elements / self.stretch.tokens
        return int(share) if share.is_integer() else share

    def name(self, wanted: str) -> str:
        """Return a name that no operator of the layer has."""
        names = {op.name for op in self.operators}
        if wanted not in names:
            return wanted
        return next(f"{wanted}_{i}" for i in range(2, 10**6) if f"{wanted}_{i}" not in names)

    def label(self, node: Node, other: str) -> str:
        """Return a node's module within the layer, or another word where the layer itself ran it."""
        base = self.stretch.path
        path = node.scope.removeprefix(base).lstrip(".") if base else node.scope.rpartition(".")[2]
        return path or other

    def extra(self, names: Sequence[str], name: str) -> None:
        """Count parameters that no product holds, as weights without work."""
        for trained in (True, False):
            chosen = [n for n in self.claims.fresh(names) if self.claims.weights[n].trained is trained]
            if chosen:
                size = self.claims.take(chosen, self.index)
                self.operators.append(
                    Pointwise(self.name(name), "sequence", 0, 0, weights=size, trained=trained)
                )

    def width_read(self, node: Node) -> int | float:
        """Return the features per token that a group reads, looked-up rows included."""
        return self.per_token(sum(node.sizes.values()))

    def _leave(self, roots: list[int]) -> None:
        """Reduce partial sums that are read next, all in one collective."""
        if roots:
            width = max(self.partial.pop(root) for root in roots)
            self.operators.append(Boundary(self.name("exit"), "exit", width))

    def _gather(self, roots: list[int]) -> None:
        """Enter the tensor-parallel region with values that meet split ones (MLA's rotary keys)."""
        for root in roots:
            if root in self.links.maker or root == self.stretch.given:
                self._enter(root)

    def _enter(self, root: int) -> None:
        if root in self.entered:
            return
        self.entered.add(root)
        if root in self.context:
            width = self.flow.value(root).shape[-1]
            self.operators.append(Boundary(self.name("context_enter"), "enter", width, on="context"))
        else:
            self.operators.append(Boundary(self.name("enter"), "enter", self.width(root)))
