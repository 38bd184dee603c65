"""From a trace to the graph: layers lowered one by one, equal ones made one kind, edges and streams told."""

from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.module_claims import Claims
from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_layers import Stretch, stretches
from meshwright.planner.importers.module_nodes import Node, nodes_of
from meshwright.planner.importers.module_operators import Layer
from meshwright.planner.importers.module_trace import Trace


def build_graph(trace: Trace, *, name: str, family: str, max_sequence_length: int | None) -> ModelGraph:
    """Return the model graph of a trace."""
    flow = Flow(trace)
    layers = stretches(flow)
    where = _segment(layers, len(trace.ops))
    nodes = nodes_of(flow, where)
    by_layer: list[list[Node]] = [[] for _ in layers]
    for node in nodes:
        by_layer[where[node.at]].append(node)
    claims = Claims(trace.weights)
    vocabulary = _vocabulary(flow, nodes)
    lowered: list[tuple[Operator, ...]] = []
    built: list[Layer] = []
    for i, stretch in enumerate(layers):
        layer = Layer(flow, stretch, i, claims, by_layer[i], vocabulary)
        lowered.append(layer.lower())
        built.append(layer)
    _count_unused(claims, layers, lowered)
    kept = [i for i, s in enumerate(layers) if lowered[i] or s.role != "embedding" or i == 0]
    kinds = _kinds([layers[i] for i in kept], [lowered[i] for i in kept])
    distinct = tuple(dict.fromkeys(kinds))
    order = tuple(distinct.index(kind) for kind in kinds)
    position = {i: at for at, i in enumerate(kept)}
    tied = sorted(
        {
            (position[claims.owner[w]], position[i])
            for i, layer in enumerate(built)
            for w in layer.tied
            if i in position and claims.owner[w] in position and claims.owner[w] != i
            and layers[i].role != "block"
        }
    )
    block = next(s for s in reversed(layers) if s.role == "block")
    return ModelGraph(
        name=name,
        family=family,
        kinds=distinct,
        layer_kinds=order,
        edges=tuple((i, i + 1) for i in range(len(order) - 1)),
        hidden_size=block.hidden,
        vocab_size=vocabulary,
        tied=tuple(tied),
        max_sequence_length=max_sequence_length,
        block_class=block.kind or None,
        notes=_notes(trace, nodes, claims),
        streams=(),
    )


def _segment(layers: Sequence[Stretch], count: int) -> list[int]:
    """Return the layer of each operation."""
    where = [0] * count
    for i, stretch in enumerate(layers):
        for at in range(stretch.start, stretch.stop):
            where[at] = i
    return where


def _vocabulary(flow: Flow, nodes: Sequence[Node]) -> int:
    """Return the rows of the largest table that is looked up with an input; else what the module says."""
    rows = [n.table for n in nodes if n.kind == "lookup" and flow.value(n.ops[0].inputs[1]).from_input]
    said = flow.trace.attribute("", "vocab_size")
    return max(rows, default=said if isinstance(said, int) else 0)


def _count_unused(claims: Claims, layers: Sequence[Stretch], lowered: list[tuple[Operator, ...]]) -> None:
    """Count parameters that the forward pass never used, in their block, or in the head."""
    unused = claims.left()
    for i, stretch in enumerate(layers):
        last = i == len(layers) - 1
        for trained in (True, False):
            own = [
                n
                for n in claims.fresh(unused)
                if claims.weights[n].trained is trained
                and (last or (stretch.path and n.startswith(f"{stretch.path}.")))
            ]
            if own:
                size = claims.take(own, i)
                name = "unused_weights" if trained else "unused_frozen_weights"
                lowered[i] += (Pointwise(name, "sequence", 0, 0, weights=size, trained=trained),)


def _kinds(layers: Sequence[Stretch], lowered: Sequence[tuple[Operator, ...]]) -> list[LayerKind]:
    """Return the kind of each layer; those with equal operators share one."""
    named: dict[LayerKind, LayerKind] = {}
    counts: dict[str, int] = {}
    kinds = []
    for stretch, operators in zip(layers, lowered, strict=True):
        base = "block" if stretch.role == "block" else stretch.role
        plain = LayerKind(base, stretch.role, operators, stretch.hidden)
        if plain not in named:
            counts[base] = counts.get(base, 0) + 1
            label = base if counts[base] == 1 else f"{base}.{counts[base]}"
            named[plain] = replace(plain, name=label)
        kinds.append(named[plain])
    return kinds


def _notes(trace: Trace, nodes: Sequence[Node], claims: Claims) -> tuple[str, ...]:
    """Return what was assumed."""
    notes = ["read from the module's own forward pass"]
    if any(n.core is not None and n.core.assumed for n in nodes):
        notes.append("an attention mask depends on values that are not known: taken as its module says, else causal")
    if any(n.kind == "contraction" for n in nodes):
        notes.append("products of two activations outside attention are priced at the example's length")
    return tuple(notes)


