"""Segments become one graph: kinds are shared, edges follow the joins and only go forward."""

import networkx as nx
import pytest

from meshwright.costmodels.operators import LayerKind
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.assembly import Join, Segment, assemble, chain, every
from meshwright.planner.pieces import norm
from tests.planner.graphs import dag

A, B = (LayerKind(name, "block", (norm("norm", 8),), 8) for name in "ab")
FIELDS = {"family": "f", "hidden_size": 8, "vocab_size": 0}


def test_equal_kinds_are_one() -> None:
    parts = (Segment("x", (A, A)), Segment("y", (B, A)))
    graph = assemble("m", parts, chain(parts), **FIELDS)
    assert graph.kinds == (A, B)
    assert graph.layer_kinds == (0, 0, 1, 0)
    assert graph.edges == ((0, 1), (1, 2), (2, 3))


def test_one_output_may_feed_every_layer() -> None:
    encoder, side, decoder = Segment("e", (A, A)), Segment("s", (B,)), Segment("d", (B, B, B))
    joins = (Join("e", "d", every(decoder)), Join("s", "d"))
    graph = assemble("m", (encoder, side, decoder), joins, **FIELDS)
    assert set(graph.edges) == {(0, 1), (1, 3), (1, 4), (1, 5), (2, 3), (3, 4), (4, 5)}
    assert nx.is_directed_acyclic_graph(dag(graph))


def test_tied_names_the_first_layer_and_the_last() -> None:
    parts = (Segment("x", (A, B)), Segment("y", (B, A)))
    assert assemble("m", parts, chain(parts), tied=(("x", "y"),), **FIELDS).tied == ((0, 3),)


def test_data_that_flows_backward_is_refused() -> None:
    parts = (Segment("x", (A,)), Segment("y", (B,)))
    with pytest.raises(MeshwrightError, match=r"edge \(1, 0\) goes backward"):
        assemble("m", parts, (Join("y", "x"),), **FIELDS)
