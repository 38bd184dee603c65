"""From a trace to the graph: layers lowered one by one, equal ones made one kind, edges and streams told."""

from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.operators import LayerKind, Operator, Pointwise
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.module_claims import Claims
from meshwright.planner.importers.module_flow import Flow
from meshwright.planner.importers.module_layers import Stretch, layer_of, stretches
from meshwright.planner.importers.module_nodes import Node, nodes_of
from meshwright.planner.importers.module_operators import Layer
from meshwright.planner.importers.module_streams import Streams, find_streams
from meshwright.planner.importers.module_trace import Trace


def build_graph(trace: Trace, *, name: str, family: str, max_sequence_length: int | None) -> ModelGraph:
    """Return the model graph of a trace."""
    flow = Flow(trace)
    layers = stretches(flow)
    where = layer_of(flow, layers)
    nodes = nodes_of(flow, where)
    by_layer: list[list[Node]] = [[] for _ in layers]
    for node in nodes:
        by_layer[where[node.at]].append(node)
    streams = find_streams(flow, layers, by_layer)
    claims = Claims(trace.weights)
    vocabulary = _vocabulary(flow, nodes)
    lowered: list[tuple[Operator, ...]] = []
    built: list[Layer] = []
    for i, stretch in enumerate(layers):
        layer = Layer(
            flow, stretch, i, claims, by_layer[i], vocabulary, streams.contexts[i], i == streams.source
        )
        lowered.append(layer.lower())
        built.append(layer)
    _count_unused(claims, layers, lowered)
    kept = [i for i, s in enumerate(layers) if lowered[i] or s.role != "embedding" or i == 0]
    kinds = _kinds(kept, layers, lowered, streams, flow)
    distinct = tuple(dict.fromkeys(kinds))
    order = tuple(distinct.index(kind) for kind in kinds)
    block = next(s for s in reversed(layers) if s.role == "block")
    return ModelGraph(
        name=name,
        family=family,
        kinds=distinct,
        layer_kinds=order,
        edges=_edges(kept, streams),
        hidden_size=block.hidden,
        vocab_size=vocabulary,
        tied=_tied(kept, layers, built, claims),
        max_sequence_length=max_sequence_length,
        block_class=block.kind or None,
        notes=_notes(nodes),
        streams=streams.streams,
        context=None if streams.source is None else streams.names[streams.source],
    )


def _tied(
    kept: Sequence[int], layers: Sequence[Stretch], built: Sequence[Layer], claims: Claims
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of layers, by place in the graph, of which the second uses a weight of the first."""
    position = {i: at for at, i in enumerate(kept)}
    owned = (
        (claims.owner[weight], i)
        for i in kept
        for weight in built[i].tied
        if layers[i].role != "block" and claims.owner[weight] in position
    )
    return tuple(sorted({(position[first], position[i]) for first, i in owned if first != i}))


def _vocabulary(flow: Flow, nodes: Sequence[Node]) -> int:
    """Return the rows of the largest table that an input itself looks up; else what the module says."""
    indices = [(n.table, flow.value(flow.root[n.ops[0].inputs[1]])) for n in nodes if n.kind == "lookup"]
    direct = [rows for rows, value in indices if value.from_input and value.producer is None]
    derived = [rows for rows, value in indices if value.from_input]
    said = flow.trace.attribute("", "vocab_size")
    return max(direct or derived, default=said if isinstance(said, int) else 0)


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


def _kinds(
    kept: Sequence[int],
    layers: Sequence[Stretch],
    lowered: Sequence[tuple[Operator, ...]],
    streams: Streams,
    flow: Flow,
) -> list[LayerKind]:
    """Return the kind of each layer; those with equal operators share one."""
    named: dict[LayerKind, LayerKind] = {}
    counts: dict[str, int] = {}
    kinds = []
    for i in kept:
        stretch, name = layers[i], streams.names[i]
        base = stretch.role if stretch.role != "block" or stretch.kind else "between"
        carries = _carried(i, layers, streams, flow)
        plain = LayerKind(base, stretch.role, lowered[i], stretch.hidden, name, carries)
        if plain not in named:
            counts[base] = counts.get(base, 0) + 1
            label = base if counts[base] == 1 else f"{base}.{counts[base]}"
            named[plain] = replace(plain, name=label)
        kinds.append(named[plain])
    return kinds


def _carried(index: int, layers: Sequence[Stretch], streams: Streams, flow: Flow) -> int:
    """Return the features of the context that a boundary behind a layer hands on, if one behind reads it."""
    if streams.source is None or index <= streams.source:
        return 0
    later = [streams.contexts[i] for i in range(index, len(layers)) if streams.contexts[i]]
    return flow.value(min(later[0])).shape[-1] if later else 0


def _edges(kept: Sequence[int], streams: Streams) -> tuple[tuple[int, int], ...]:
    """Return a chain, and an edge from the context's layer to every layer that reads it."""
    position = {i: at for at, i in enumerate(kept)}
    chain = {(at, at + 1) for at in range(len(kept) - 1)}
    if streams.source is None:
        return tuple(sorted(chain))
    source = position[streams.source]
    # the layer behind the context's begins a chain of its own: it reads its own tokens
    crossing = {(source, position[i]) for i in kept if streams.contexts[i]}
    return tuple(sorted((chain - {(source, source + 1)}) | crossing))


def _notes(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return what was assumed."""
    notes = ["read from the module's own forward pass"]
    if any(n.core is not None and n.core.assumed for n in nodes):
        notes.append(
            "an attention mask depends on values that are not known: taken as its module says, else causal"
        )
    if any(n.kind == "contraction" for n in nodes):
        notes.append("products of two activations outside attention are priced at the example's length")
    return tuple(notes)
