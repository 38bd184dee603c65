"""A model's graph as networkx sees it, for questions about its shape."""

import networkx as nx

from meshwright.planner.graph import ModelGraph


def dag(model: ModelGraph) -> "nx.DiGraph[int]":
    """Return the graph of a model's layers; nodes carry ``role``."""
    graph: nx.DiGraph[int] = nx.DiGraph(model.edges)
    graph.add_nodes_from((i, {"role": model.kinds[k].role}) for i, k in enumerate(model.layer_kinds))
    return graph
