"""How tensor parallelism splits the products of a layer: the module's own plan, else the flow of data.

A product is column-parallel if everything that it makes goes, without a norm over it, into attention or
through an activation function into another product; it is row-parallel if what it reads is split already;
else every rank holds it whole.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_nodes import Node

Shard = Literal["column", "row", "replicated"]

STYLES: Final[Mapping[str, Shard]] = {
    "colwise": "column",
    "packed_colwise": "column",
    "rowwise": "row",
    "packed_rowwise": "row",
}
"""Styles of a plan that say how a product is split; others are left to the flow of data."""


@dataclass(frozen=True, slots=True)
class Reach:
    """One place where a product's output ends: attention, another product, or the layer's end (None)."""

    sink: Node | None
    normed: bool
    bent: bool


class Links:
    """Who makes and who reads the values of one layer."""

    def __init__(self, flow: Flow, nodes: Sequence[Node]) -> None:
        self.flow = flow
        self.nodes = nodes
        self.maker = {w: n for n in nodes for w in n.writes}
        self.readers: dict[int, list[Node]] = {}
        for node in nodes:
            for root in node.reads:
                self.readers.setdefault(root, []).append(node)

    def reach(self, node: Node) -> list[Reach]:
        """Return the places where a node's output ends."""
        found: dict[tuple[int, bool, bool], Reach] = {}
        seen: set[tuple[int, bool, bool]] = set()
        todo = [(w, False, False) for w in node.writes]
        while todo:
            root, normed, bent = todo.pop()
            if (root, normed, bent) in seen:
                continue
            seen.add((root, normed, bent))
            readers = self.readers.get(root, [])
            if not readers:
                found[-1, normed, bent] = Reach(None, normed, bent)
            for reader in readers:
                if reader.kind == "pointwise":
                    todo += [(w, normed or reader.norm, bent or not reader.linear) for w in reader.writes]
                else:
                    found[reader.at, normed, bent] = Reach(reader, normed, bent)
        return list(found.values())

    def origins(self, root: int) -> list[Node]:
        """Return the products and others that a value follows from through fused groups, nearest first."""
        found: list[Node] = []
        seen: set[int] = set()
        todo = [root]
        while todo:
            at = todo.pop(0)
            maker = self.maker.get(at)
            if maker is None or at in seen:
                continue
            seen.add(at)
            if maker.kind == "pointwise":
                todo += maker.reads
            elif maker not in found:
                found.append(maker)
        return found


def shards(links: Links, vocabulary: int, *, inferred: bool) -> dict[int, Shard]:
    """Return how each product of a layer is split, by the index where it runs.

    Only where ``inferred`` (in blocks) does the flow of data decide; elsewhere products are whole. A product
    onto ``vocabulary`` outputs is column-parallel: the cross entropy works on split logits.
    """
    found: dict[int, Shard] = {}
    split: set[int] = set()
    for node in links.nodes:
        whole = not any(root in split for root in node.reads)
        if node.kind == "product":
            found[node.at] = _shard(links, node, whole, vocabulary, inferred)
            whole = found[node.at] != "column"
        if node.kind == "attention" or (node.kind in ("product", "contraction", "pointwise") and not whole):
            split |= set(node.writes)
    return found


def _shard(links: Links, node: Node, whole: bool, vocabulary: int, inferred: bool) -> Shard:
    assert node.product is not None
    planned = STYLES.get(_style(links.flow.trace.plan, node.scope))
    reach = links.reach(node)
    if planned is not None and (planned == "column") == whole:
        return planned
    if not whole:
        return "row"
    if node.product.outputs == vocabulary and all(r.sink is None for r in reach):
        return "column"
    split = inferred and bool(reach) and all(_splits(r) for r in reach)
    return "column" if split and node.product.outputs > 1 else "replicated"


def _splits(reach: Reach) -> bool:
    if reach.sink is None:
        return False
    if reach.sink.kind == "attention":
        return True
    return reach.sink.kind == "product" and reach.bent and not reach.normed


def _style(plan: Mapping[str, str], scope: str) -> str:
    """Return the plan's style for a module: patterns are paths in which * stands for a number."""
    for pattern, style in plan.items():
        parts = [re.escape(part).replace(r"\*", r"\d+") for part in pattern.split(".")]
        if re.search(rf"(^|\.){r'[.]'.join(parts)}$", scope):
            return style
    return ""
