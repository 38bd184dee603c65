"""A model of several parts as one graph: segments in topological order, joined by edges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from meshwright.costmodels.operators import LayerKind
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.graph import ModelGraph


@dataclass(frozen=True, slots=True)
class Segment:
    """A chain of layers: one part of a model, or a piece of it.

    Attributes
    ----------
    name
        What joins refer to.
    layers
        The kind of each layer, in order; equal kinds become one.
    """

    name: str
    layers: tuple[LayerKind, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Data that goes from the last layer of a segment to the first layer, or to every layer, of another.

    ``layers`` narrows "every" to some layers of the target, counted from its first.
    """

    source: str
    target: str
    layers: tuple[int, ...] = (0,)


def every(segment: Segment) -> tuple[int, ...]:
    """Return the indices of all layers of a segment."""
    return tuple(range(len(segment.layers)))


def chain(segments: Sequence[Segment]) -> tuple[Join, ...]:
    """Return joins that make one chain of the segments."""
    return tuple(Join(a.name, b.name) for a, b in pairwise(segments))


def assemble(
    name: str,
    segments: Sequence[Segment],
    joins: Iterable[Join],
    *,
    tied: Iterable[tuple[str, str]] = (),
    **fields: Any,
) -> ModelGraph:
    """Return the graph of segments that stand in topological order.

    Parameters
    ----------
    name
        The model's name.
    segments
        The parts, in an order in which data only goes forward; a pipeline cuts this order.
    joins
        Which segment feeds which.
    tied
        Pairs of segments whose first or last layer share a weight: the first layer of the first one (an
        embedding) with the last layer of the second (a head, or an embedding of its own).
    fields
        What else :class:`~meshwright.planner.graph.ModelGraph` holds.

    Raises
    ------
    MeshwrightError
        A join goes backward.
    """
    start, total = {}, 0
    for segment in segments:
        start[segment.name] = total
        total += len(segment.layers)
    size = {s.name: len(s.layers) for s in segments}
    edges = [(start[s.name] + i, start[s.name] + i + 1) for s in segments for i in range(len(s.layers) - 1)]
    for join in joins:
        source = start[join.source] + size[join.source] - 1
        edges += [(source, start[join.target] + i) for i in join.layers]
    backward = [edge for edge in edges if edge[0] >= edge[1]]
    if backward:
        raise MeshwrightError(
            f"model {name}: edge {backward[0]} goes backward; order the segments by data flow"
        )
    layers = [kind for segment in segments for kind in segment.layers]
    kinds = tuple(dict.fromkeys(layers))
    return ModelGraph(
        name=name,
        kinds=kinds,
        layer_kinds=tuple(kinds.index(kind) for kind in layers),
        edges=tuple(sorted(set(edges))),
        tied=tuple((start[a], start[b] + size[b] - 1) for a, b in tied),
        **fields,
    )
