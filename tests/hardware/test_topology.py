"""The graph of a cluster, and its cuts as the referee of the closed forms."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.span import group_span
from meshwright.hardware.topology import cluster_graph, group_route
from meshwright.hardware.units import GB
from tests.hardware.spans import spanned_tier
from tests.strategies import clusters, placed_groups


def first_group(size, stride):
    return [i * stride for i in range(size)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_cuts_of_the_graph_agree_with_the_closed_form(data):
    cluster = data.draw(clusters(max_devices=96))
    size, stride = data.draw(placed_groups(cluster))
    ranks = first_group(size, stride)
    fits = all(block % stride == 0 or block <= stride for block in cluster.block_sizes)
    whole = all(block % (size * stride) == 0 or (size * stride) % block == 0 for block in cluster.block_sizes)
    route = group_route(cluster, ranks)
    span = group_span(cluster, size, stride)
    if fits and whole:
        assert route.tier == spanned_tier(span)
        if size > 1:
            assert route.bandwidth_bytes_per_s == pytest.approx(
                span.bandwidth_bytes_per_s[route.tier], rel=1e-9
            )
    else:
        assert route.tier <= spanned_tier(span)  # a straddling dimension is priced as its worst group


@pytest.mark.parametrize(
    ("name", "ranks", "tier", "gb_per_s", "sharing"),
    [
        ("dgx-h100:4", range(8), "nvlink", 450 * 0.81, 1),
        ("dgx-h100:4", [0, 8, 16, 24], "infiniband-ndr", 50 * 0.96, 1),
        ("dgx-h100:4", range(6, 12), "infiniband-ndr", 50 * 0.96, 1),
        ("aws-p4d:2", range(16), "efa", 6.25 * 0.85, 2),
        ("aws-p4d:2", [0, 8], "efa", 6.25 * 0.85, 1),
        ("gcp-a2:2", range(16), "ethernet", 12.5 / 8 * 0.9, 8),
        ("mi300x-8", [0, 1], "xgmi", 64 * 0.7, 1),
        ("mi300x-8", [1, 3, 4, 6], "xgmi", 3 * 64 * 0.7, 1),
        ("gaudi3-8", range(8), "roce-mesh", 525 * 0.97, 1),
        ("gb200-nvl72", range(0, 72, 9), "nvlink", 900 * 0.76, 1),
        ("tpu-v5e-pod", range(4), "ici-x", 50 * 0.9, 1),
        ("tpu-v5e-pod", range(8, 16), "ici-x", 50 * 0.9, 1),
        ("tpu-v5e-pod", range(1, 16, 4), "ici-x", 2 * 50 * 0.9 / 4, 1),
        ("tpu-v5e-pod", range(3, 256, 16), "ici-y", 2 * 50 * 0.9, 1),
        ("tpu-v5e-pod:8x4", range(0, 8, 2), "ici-x", 50 * 0.9 / 2, 1),  # two groups share each cable
        ("frontier", [0, 2, 4], "infinity-fabric", 2 * 50 * 0.76, 1),
        ("aws-p4d", [3], "device", math.inf, 1),
    ],
)
def test_what_a_group_of_ranks_gets(name, ranks, tier, gb_per_s, sharing):
    route = group_route(load_cluster(name), list(ranks))
    assert (route.tier_name, route.members_per_nic) == (tier, sharing)
    assert route.bandwidth_bytes_per_s == pytest.approx(gb_per_s * GB)


def test_one_link_between_two_neighbours_of_a_ring_of_two():
    """Two devices have one cable on a line and both directions' worth on a ring."""
    line = load_cluster("tpu-v5e-pod:2x1")
    assert group_route(line, [0, 1]).bandwidth_bytes_per_s == pytest.approx(50 * 0.9 * GB)


@given(clusters(max_devices=96))
def test_every_device_reaches_every_other(cluster):
    graph = cluster_graph(cluster)
    leaves = [node for node, kind in graph.nodes(data="kind") if kind == "leaf"]
    assert len(leaves) == cluster.num_devices
    assert nx.is_connected(graph)
    assert all(capacity > 0 for _, _, capacity in graph.edges(data="capacity"))


def test_shared_nics_are_nodes_of_the_graph():
    graph = cluster_graph(load_cluster("aws-p4d:2"))
    assert sum(kind == "nic" for _, kind in graph.nodes(data="kind")) == 16 + 8  # a port each, and 8 EFA NICs
    assert graph.edges[("leaf", 0), ("nic", 1, 0)]["capacity"] == pytest.approx(12.5 * 0.85 * GB)
    assert graph.has_edge(("leaf", 1), ("nic", 1, 0))


def test_a_big_cluster_is_drawn_in_blocks_of_equal_capacity():
    big = load_cluster("dgx-h100:64")
    detailed, drawn = cluster_graph(big), cluster_graph(big, max_leaves=100)
    assert (drawn.graph["leaf_devices"], drawn.graph["leaf_tier"]) == (8, 0)
    assert drawn.number_of_nodes() < detailed.number_of_nodes() / 4

    def up(graph):
        return graph.edges[("uplink", 1, 5), ("switch", 1, 0)]["capacity"]

    assert up(drawn) == up(detailed) == pytest.approx(8 * 50 * 0.96 * GB)


def test_the_spine_of_a_blocking_fabric_is_narrower_than_its_pods():
    route = group_route(load_cluster("meta-24k-roce:3072"), list(range(0, 24576, 3072)))
    assert route.tier_name == "roce-aggregation"
    assert route.bandwidth_bytes_per_s == pytest.approx(50 * 0.93 / 7 * GB)


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1, 2], [0, 16]])
def test_ranks_are_distinct_devices(ranks):
    with pytest.raises(MeshwrightError, match="must be distinct, from 0 to 15"):
        group_route(load_cluster("dgx-h100:2"), ranks)


def test_a_cluster_too_big_for_the_graph_says_so():
    with pytest.raises(MeshwrightError, match="below the 2048 blocks"):
        cluster_graph(load_cluster("dgx-h100:2048"))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_group_gets_the_same_wherever_its_block_lies(data):
    cluster = data.draw(clusters(max_devices=64))
    size, stride = data.draw(placed_groups(cluster))
    block = data.draw(st.sampled_from([b for b in cluster.block_sizes if b >= (size - 1) * stride + 1]))
    start = data.draw(st.integers(0, cluster.num_devices // block - 1)) * block
    ranks = first_group(size, stride)
    assert group_route(cluster, [start + rank for rank in ranks]) == group_route(cluster, ranks)


def test_a_group_is_found_in_a_cluster_of_any_size():
    big, small = load_cluster("dgx-h100:2048"), load_cluster("dgx-h100:2")
    assert group_route(big, [9, 14]) == group_route(small, [9, 14])
    assert group_route(big, [0, 8]) == group_route(small, [0, 8])


def test_all_ranks_of_thousands_of_nodes_get_what_those_of_a_few_do():
    few, many = load_cluster("dgx-h100:4"), load_cluster("dgx-h100:2000")
    assert group_route(many, range(16000)) == group_route(few, range(32))


def test_fan_out_of_every_group_size_on_a_mesh_is_refereed_by_the_edges():
    cluster = load_cluster("mi300x-8")
    sizes = np.array([2, 4, 8])
    span = group_span(cluster, sizes, 1).bandwidth_bytes_per_s[:, 0]
    graph = cluster_graph(cluster)
    edges = [sum(graph.edges[("leaf", 0), ("leaf", j)]["capacity"] for j in range(1, n)) for n in sizes]
    assert span == pytest.approx(edges)
