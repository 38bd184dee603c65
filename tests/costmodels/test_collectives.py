"""Collectives by hand on one and two tiers with round numbers."""

import numpy as np
import pytest

from meshwright.costmodels.collectives import (
    FILL_LIMIT_BYTES,
    RAMP_S,
    RING_HOP,
    TREE_FACTOR,
    collective_time,
    group_size,
    hierarchical_pass,
    ramped,
    ring_pass,
    tree_pass,
)
from meshwright.costmodels.spans import layer_groups, state_spans
from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.span import GroupSpan, group_span
from tests.costmodels.cases import make_strategies


def span(*tiers, one_ring=False):
    """Return a group from (members, bandwidth, latency) of each tier."""
    sizes, rates, hops = (np.array(column, dtype=float) for column in zip(*tiers, strict=True))
    return GroupSpan(sizes, rates, hops, one_ring=one_ring)


FOUR = span((4, 100.0, 1.0))
TWO_BY_FOUR = span((4, 100.0, 1.0), (2, 10.0, 5.0))


def test_a_ring_of_four():
    """A hop and two shorter ones, and three quarters of 800 bytes at 100 a second."""
    assert ring_pass(800.0, FOUR) == 1 + 2 * RING_HOP + ramped(6)
    assert group_size(FOUR) == 4


def test_a_ring_over_two_tiers_runs_at_the_slower_one():
    """Four members drive the outer links together: 40 a second; it starts with the long hop, six follow."""
    assert ring_pass(800.0, TWO_BY_FOUR) == pytest.approx(5 + RING_HOP * 6 + ramped(800 * 7 / 8 / 40))


def test_a_hierarchical_ring_sends_a_quarter_through_the_outer_tier():
    inner, outer = 1 + 2 * RING_HOP + ramped(800 * 3 / 4 / 100), 5 + ramped(200 * 1 / 2 / 10)
    assert hierarchical_pass(800.0, TWO_BY_FOUR) == pytest.approx(inner + outer)


def test_a_tree_has_few_hops_and_a_little_less_bandwidth():
    assert tree_pass(800.0, TWO_BY_FOUR) == pytest.approx(2 + 5 + ramped(800 * 7 / 8 / (40 * TREE_FACTOR)))


def test_levels_of_a_tree_over_hosts_fill_one_after_the_other():
    """Eight hosts are three levels, of which the ramp holds the first; more tiers below change nothing."""
    moved = 800 * 31 / 32 / (4 * 10 * TREE_FACTOR)
    filling = 2 * (float(ramped(moved)) - moved)
    outer = span((4, 100.0, 1.0), (8, 10.0, 5.0))
    assert tree_pass(800.0, outer) == pytest.approx(2 + 3 * 5 + ramped(moved) + filling)


@pytest.mark.parametrize("port", [12.5e9, 50e9])
def test_a_level_of_a_tree_is_full_when_the_slots_of_its_channels_are(port):
    """Of a large tensor the ramp is longer: a slower port takes as many bytes more time."""
    moved = 1e9 * 31 / 32 / (4 * port * TREE_FACTOR)
    levels = 3 * 5e-6 + 2 * FILL_LIMIT_BYTES / port
    outer = span((4, 9 * port, 0.0), (8, port, 5e-6))
    assert tree_pass(1e9, outer) == pytest.approx(levels + float(ramped(moved)))


def test_the_fastest_algorithm_counts():
    """Without bytes to speak of an all-reduce takes the tree; with many the ring or the hierarchy."""
    tiny, huge, many = 1e-9, 1e9, span((4, 100.0, 1.0), (16, 10.0, 5.0))
    assert collective_time("all_reduce", tiny, many) == 2 * tree_pass(tiny, many)
    rings = min(float(ring_pass(huge, TWO_BY_FOUR)), float(hierarchical_pass(huge, TWO_BY_FOUR)))
    assert collective_time("all_reduce", huge, TWO_BY_FOUR) == 2 * rings < 2 * tree_pass(huge, TWO_BY_FOUR)
    assert collective_time("all_gather", huge, TWO_BY_FOUR) == rings


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_gpus_gather_and_scatter_over_one_ring(collective):
    """Whatever the bytes: no tree, no ring a tier."""
    gpus = span((4, 100.0, 1.0), (2, 10.0, 5.0), one_ring=True)
    for size in (1e-9, 1.0, 1e9):
        assert collective_time(collective, size, gpus) == ring_pass(size, gpus)
    assert collective_time("all_reduce", 1e-9, gpus) == 2 * tree_pass(1e-9, gpus)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("cluster", "one_ring"), [("dgx-h100:64", True), ("mi300x-8:64", True), ("tpu-v5p-pod:8x8x8", False)]
)
def test_who_lays_one_ring_follows_from_the_devices(cluster, one_ring, collective):
    """Of few bytes to 512 members: GPUs wait for each of them, chips of a torus for those of its axes."""
    members = group_span(load_cluster(cluster), 512, 1)
    at_once, by_tier = float(ring_pass(1.0, members)), float(hierarchical_pass(1.0, members))
    assert at_once > 2 * by_tier
    assert float(collective_time(collective, 1.0, members)) == pytest.approx(at_once if one_ring else by_tier)


@pytest.mark.parametrize(("cluster", "one_ring"), [("dgx-h100:8", True), ("tpu-v5p-pod:4x4x4", False)])
def test_every_group_of_a_plan_runs_by_its_devices_libraries(cluster, one_ring):
    own, s = load_cluster(cluster), make_strategies(tp=2, pp=2, dp=8, cp=2, ep=4, dp_replicate=2, hpz=2)
    groups = layer_groups(own, s) | dict(vars(state_spans(own, s)))
    assert {name for name, group in groups.items() if group.one_ring is not one_ring} == set()


def test_send_and_receive_is_one_hop_over_the_slowest_tier():
    assert collective_time("send_recv", 100.0, TWO_BY_FOUR) == 5 + 100 / 10
    assert collective_time("send_recv", 100.0, FOUR) == 1 + 100 / 100


def test_broadcast_sends_the_tensor_once():
    assert collective_time("broadcast", 400.0, TWO_BY_FOUR) == 2 + 5 + 400 / 40


def test_all_to_all_waits_for_the_tier_with_most_to_carry():
    """Of 800 bytes half leave the node at 10 a second, three eighths stay inside at 100."""
    assert collective_time("all_to_all", 800.0, TWO_BY_FOUR) == 2 + 5 + ramped(max(400 / 10, 300 / 100))


@pytest.mark.parametrize(
    ("name", "devices", "op", "measured_us"),
    [
        ("dgx-a100", 2, "reduce_scatter", 230),
        ("dgx-h100", 2, "all_gather", 160),
        ("dgx-b200", 2, "all_gather", 97),
        ("dgx-b200", 8, "all_gather", 140),
    ],
)
def test_gathers_and_scatters_of_64_mib_take_what_was_measured(name, devices, op, measured_us):
    """aiconfigurator database, NCCL 2.27 and 2.28; without a pair's own part it would be 0.7 to 0.8 of it."""
    group = group_span(load_cluster(name), devices, 1)
    assert float(collective_time(op, 2.0**26, group)) == pytest.approx(measured_us * 1e-6, rel=0.12)


def test_groups_of_one_and_empty_tensors_cost_nothing_in_a_batch():
    many = GroupSpan(np.array([[1.0], [4.0], [4.0]]), np.full((3, 1), 100.0), np.full((3, 1), 1.0))
    got = collective_time("all_reduce", np.array([800.0, 0.0, 800.0]), many)
    assert got.tolist() == [0, 0, float(collective_time("all_reduce", 800.0, FOUR))]


def test_a_pass_reaches_half_of_its_bandwidth_at_the_ramp_and_all_of_it_beyond():
    assert ramped(0.0) == 0
    assert ramped(RAMP_S) == pytest.approx(2 * RAMP_S)
    assert ramped(1.0) == pytest.approx(1.0, rel=1e-3)
