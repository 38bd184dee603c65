"""The graph with an embedding that each tensor-parallel rank holds whole.

Such ranks look their tokens up by themselves: no partial sums are added behind the embedding. Its gradients
are equal on all of them, for they see the same tokens.
"""

from dataclasses import replace
from functools import lru_cache

from meshwright.costmodels.operators import Boundary, LayerKind
from meshwright.costmodels.vocabulary import Embedding
from meshwright.planner.graph import ModelGraph


@lru_cache(maxsize=64)
def with_whole_embedding(graph: ModelGraph) -> ModelGraph:
    """Return the graph with whole embeddings; all else stays."""
    return replace(graph, kinds=tuple(map(_whole, graph.kinds)))


def _whole(kind: LayerKind) -> LayerKind:
    found = [replace(op, whole=True) if isinstance(op, Embedding) else op for op in kind.operators]
    if kind.role == "embedding":
        found = [op for op in found if not isinstance(op, Boundary)]
    return replace(kind, operators=tuple(found))
