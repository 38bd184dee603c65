"""What groups get from the tiers: published shapes, physics, and a count of the devices by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.span import COPY_SHARE, group_span
from meshwright.hardware.units import GB
from tests.hardware.spans import spanned_tier
from tests.strategies import clusters, placed_groups

H100 = load_cluster("dgx-h100:16")
MI300X = load_cluster("mi300x-8:2")
POD = load_cluster("tpu-v5e-pod")


def members_by_hand(cluster, size, stride):
    """The fewest members that any group has in any block of each tier that it touches."""
    ranks = np.arange(cluster.num_devices // (size * stride) * size * stride)
    groups = ranks.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    return [
        min(min(np.unique(g // block, return_counts=True)[1]) for g in groups)
        for block in cluster.block_sizes
    ]


@pytest.mark.parametrize(
    ("size", "stride", "sizes", "tier"),
    [
        (1, 1, [1, 1], -1),
        (8, 1, [8, 1], 0),
        (4, 2, [4, 1], 0),
        (16, 8, [1, 16], 1),
        (16, 1, [8, 2], 1),
        (128, 1, [8, 16], 1),
        (32, 4, [2, 16], 1),
        (6, 1, [2, 3], 1),  # straddles: pairs in a node, three of them
        (12, 1, [4, 3], 1),
        (2, 6, [1, 2], 1),  # 6 does not divide 8: some pairs cross nodes
    ],
)
def test_which_tiers_a_group_joins(size, stride, sizes, tier):
    span = group_span(H100, size, stride)
    assert span.sizes.tolist() == sizes
    assert spanned_tier(span) == tier


def test_rates_are_wire_times_efficiency_over_oversubscription():
    span = group_span(load_cluster("meta-24k-roce:768"), 2, 3072)
    assert span.bandwidth_bytes_per_s == pytest.approx([450 * 0.81 * GB, 50 * 0.93 * GB, 50 * 0.93 / 7 * GB])
    assert span.latency_s == pytest.approx([2.8e-6, 8e-6, 8e-6])


def test_a_mesh_gives_small_groups_few_links():
    span = group_span(MI300X, [2, 4, 8], 1)
    assert span.bandwidth_bytes_per_s[:, 0] == pytest.approx(np.array([1, 3, 7]) * 64 * 0.7 * GB)
    measured = np.array([47.7, 312.9]) * GB  # RCCL all-reduce bus bandwidth of 2 and 8 GPUs
    assert span.bandwidth_bytes_per_s[[0, 2], 0] == pytest.approx(measured, rel=0.07)


def test_a_group_of_one_still_has_finite_rates():
    assert np.all(group_span(MI300X, 1, 1).bandwidth_bytes_per_s > 0)


def test_part_of_a_torus_axis_does_not_wrap_and_interleaved_groups_share_it():
    whole, part, interleaved, column = (
        group_span(POD, size, stride) for size, stride in ((16, 1), (4, 1), (4, 4), (16, 16))
    )
    link = 50 * 0.9 * GB
    assert whole.bandwidth_bytes_per_s[0] == pytest.approx(2 * link)
    assert part.bandwidth_bytes_per_s[0] == pytest.approx(link)
    assert interleaved.bandwidth_bytes_per_s[0] == pytest.approx(2 * link / 4)
    assert interleaved.latency_s[0] == pytest.approx(4 * part.latency_s[0])
    assert column.sizes.tolist() == [1, 16] and column.bandwidth_bytes_per_s[1] == pytest.approx(2 * link)


def test_interleaved_groups_share_an_axis_that_does_not_wrap():
    rates = group_span(load_cluster("tpu-v5e-pod:8x4"), [8, 4, 2], [1, 2, 4]).bandwidth_bytes_per_s[:, 0]
    assert rates == pytest.approx(50 * 0.9 * GB / np.array([1, 2, 4]))


def test_measured_ring_bandwidth_of_one_node():
    """nccl-tests ring bus bandwidth of 8 GPUs: A100 232, H100 360 to 370, B200 640 to 700 GB/s."""
    for name, low, high in (("dgx-a100", 225, 240), ("dgx-h100", 355, 375), ("dgx-b200", 640, 700)):
        assert low * GB <= group_span(load_cluster(name), 8, 1).bandwidth_bytes_per_s[0] <= high * GB


def test_gpus_copy_their_own_part_at_a_share_of_their_memory_bandwidth_and_other_devices_do_not():
    gpu, other = load_cluster("dgx-h100"), load_cluster("gaudi2-8")
    once = 1 / gpu.accelerator.memory_bandwidth_bytes_per_s
    assert group_span(gpu, 2, 1).copy_s_per_byte == pytest.approx(2 * once / COPY_SHARE)
    assert group_span(other, 2, 1).copy_s_per_byte == 0


@pytest.mark.parametrize("bad", [0, -2, 1.5, float("nan"), float("inf"), "8", None, 2**40])
def test_sizes_and_strides_are_whole_numbers(bad):
    with pytest.raises(MeshwrightError, match=r"size: .* whole numbers of at least 1"):
        group_span(H100, bad, 1)
    with pytest.raises(MeshwrightError, match="stride: "):
        group_span(H100, 1, bad)


def test_a_group_larger_than_the_cluster_is_refused():
    with pytest.raises(MeshwrightError, match="256 exceeds the 128 devices of dgx-h100:16"):
        group_span(H100, [2, 16], 16)


def test_arrays_broadcast_and_agree_with_scalars():
    sizes, strides = np.array([[1], [2], [8], [16]]), np.array([1, 2, 8])
    span = group_span(H100, sizes, strides)
    assert span.sizes.shape == span.bandwidth_bytes_per_s.shape == span.latency_s.shape == (4, 3, 2)
    assert spanned_tier(span).shape == (4, 3)
    for i, j in np.ndindex(4, 3):
        one = group_span(H100, int(sizes[i, 0]), int(strides[j]))
        for field in ("sizes", "bandwidth_bytes_per_s", "latency_s"):
            np.testing.assert_array_equal(getattr(one, field), getattr(span, field)[i, j])


def test_no_groups_are_no_error():
    assert group_span(H100, np.array([], dtype=int), 1).sizes.shape == (0, 2)


@given(st.data())
def test_sizes_multiply_to_the_group(data):
    cluster = data.draw(clusters())
    size, stride = data.draw(placed_groups(cluster))
    assert math.prod(group_span(cluster, size, stride).sizes) == size


@given(st.data())
def test_members_counted_are_those_that_every_group_has(data):
    cluster = data.draw(clusters(max_devices=64))
    size, stride = data.draw(placed_groups(cluster))
    counted = np.cumprod(group_span(cluster, size, stride).sizes)
    by_hand = members_by_hand(cluster, size, stride)
    assert all(counted <= by_hand)
    exact = [block % stride == 0 for block in cluster.block_sizes]
    assert all(c == h for c, h, known in zip(counted, by_hand, exact, strict=True) if known)


@given(st.data())
def test_no_group_gets_more_than_the_wire(data):
    cluster = data.draw(clusters())
    span = group_span(cluster, *data.draw(placed_groups(cluster)))
    assert np.all(span.bandwidth_bytes_per_s <= [t.bandwidth_bytes_per_s for t in cluster.tiers])
    assert np.all(span.bandwidth_bytes_per_s > 0)
    assert np.all(span.latency_s >= [t.latency_s for t in cluster.tiers])


@given(st.data(), st.sampled_from(["bandwidth_bytes_per_s", "efficiency", "oversubscription"]))
def test_better_hardware_is_never_slower(data, field):
    cluster = data.draw(clusters())
    group = data.draw(placed_groups(cluster))
    factor = {"bandwidth_bytes_per_s": 2.0, "efficiency": 1.1, "oversubscription": 1 / 2}[field]
    better = replace(
        cluster, tiers=tuple(replace(t, **{field: getattr(t, field) * factor}) for t in cluster.tiers)
    )
    assert np.all(
        group_span(better, *group).bandwidth_bytes_per_s >= group_span(cluster, *group).bandwidth_bytes_per_s
    )


@given(st.data())
def test_placing_a_group_further_apart_never_joins_more_inside(data):
    cluster = data.draw(clusters())
    size, stride = data.draw(placed_groups(cluster))
    near = group_span(cluster, size, 1)
    far = group_span(cluster, size, stride)
    assert np.all(np.cumprod(far.sizes)[:-1] <= np.cumprod(near.sizes)[:-1])
    assert spanned_tier(far) >= spanned_tier(near)
