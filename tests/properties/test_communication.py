"""Collectives and their overlap with compute: bounds, limits and identities."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.costmodels.collectives import (
    RING_HOP,
    collective_time,
    group_size,
    hierarchical_pass,
    ring_pass,
    tree_pass,
)
from meshwright.costmodels.layer import CAUSES
from meshwright.costmodels.overlap import exposed_in_turn, exposed_time, ready_in_turn
from meshwright.costmodels.tables import BACKWARD, build_tables
from meshwright.costmodels.work import Collective
from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.span import GroupSpan, group_span
from tests.costmodels.cases import make_setting, make_strategies
from tests.strategies import clusters, placed_groups

COLLECTIVES = get_args(Collective)
PASSES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
ROUNDING = 1 + 1e-12
tensor_bytes = st.just(0.0) | st.floats(1.0, 1e12)
tensor_degrees = st.integers(0, 3).map(lambda n: 2**n)
PLACES = ("dgx-h100:1", "dgx-a100:1")
seconds = st.floats(0, 1e3)
shares = st.floats(0, 1)


@st.composite
def spans(draw, min_size=1):
    """Where a group of any size lies on any cluster."""
    cluster = draw(clusters())
    size, stride = draw(placed_groups(cluster))
    assume(size >= min_size)
    return group_span(cluster, size, stride)


def slower(span, links=1.0, hops=1.0):
    rates, latencies = span.bandwidth_bytes_per_s / links, span.latency_s * hops
    return replace(span, bandwidth_bytes_per_s=rates, latency_s=latencies)


collectives = st.sampled_from(COLLECTIVES)


@given(collectives, tensor_bytes, clusters())
def test_a_group_of_one_costs_nothing(collective, size, cluster):
    assert collective_time(collective, size, group_span(cluster, 1, 1)) == 0


@given(collectives, spans())
def test_no_bytes_take_no_time(collective, span):
    assert collective_time(collective, 0.0, span) == 0


@given(tensor_bytes, spans())
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_that_copy_nothing_or_a_tree(size, span):
    still = replace(span, copy_s_per_byte=0.0)
    both = collective_time("reduce_scatter", size, still) + collective_time("all_gather", size, still)
    tree = 2 * tree_pass(size, span) * (group_size(span) > 1) * (size > 0)
    whole = collective_time("all_reduce", size, span)
    assert whole == collective_time("all_reduce", size, still) == min(float(both), float(tree))


@given(st.sampled_from(["all_gather", "reduce_scatter"]), st.floats(1.0, 1e12), st.integers(0, 9))
def test_a_gather_over_gpus_passes_every_member_and_a_sum_a_logarithm_of_them(collective, size, doublings):
    """Without bytes to speak of: each node more costs a gather a network hop, each doubling a sum two."""
    nodes = [2**doublings, 2 ** (doublings + 1)]
    few, many = (group_span(load_cluster(f"dgx-h100:{n}"), n, 8) for n in nodes)
    hop, tiny = float(many.latency_s[-1]), 1e-3
    gathered, summed = (
        float(collective_time(each, tiny, many) - collective_time(each, tiny, few))
        for each in (collective, "all_reduce")
    )
    assert gathered >= RING_HOP * hop * nodes[0] / ROUNDING
    assert summed <= 2 * hop * (1 + 1e-3)
    assert collective_time(collective, size, few) <= collective_time(collective, size, many) * ROUNDING


@given(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), tensor_bytes, spans())
def test_more_algorithms_never_take_longer(collective, size, span):
    one, any_ = (float(collective_time(collective, size, replace(span, one_ring=b))) for b in (True, False))
    assert any_ <= one


@given(st.sampled_from(["all_gather", "reduce_scatter", "all_to_all"]), st.floats(1.0, 1e12), spans(2))
def test_own_parts_are_copied_once_and_weigh_less_in_a_larger_group(collective, size, span):
    whole, still = (
        float(collective_time(collective, size, s)) for s in (span, replace(span, copy_s_per_byte=0.0))
    )
    own = size / float(group_size(span)) * span.copy_s_per_byte
    assert whole == pytest.approx(still + own)
    assert own <= size / 2 * span.copy_s_per_byte


@given(st.floats(1.0, 1e12), spans(min_size=2))
def test_no_collective_beats_the_best_link(size, span):
    n, best = float(group_size(span)), float(np.where(span.sizes > 1, span.bandwidth_bytes_per_s, 0).max())
    received = size * (n - 1) / n / best
    assert collective_time("all_gather", size, span) * ROUNDING >= received
    assert collective_time("reduce_scatter", size, span) * ROUNDING >= received
    assert collective_time("all_reduce", size, span) * ROUNDING >= 2 * received
    assert collective_time("send_recv", size, span) * ROUNDING >= size / best
    # What a member sends to the others leaves over all its links together at most.
    links = float(np.where(span.sizes > 1, span.bandwidth_bytes_per_s, 0).sum())
    assert collective_time("all_to_all", size, span) * ROUNDING >= size * (n - 1) / n / links


@given(collectives, st.floats(1.0, 1e12), spans(min_size=2))
def test_every_collective_waits_for_one_hop_at_least(collective, size, span):
    hop = float(np.where(span.sizes > 1, span.latency_s, np.inf).min())
    assert collective_time(collective, size, span) >= hop


@given(collectives, tensor_bytes, st.floats(1, 1e6), spans())
def test_more_bytes_never_take_less_time(collective, size, factor, span):
    less, more = (collective_time(collective, size * f, span) for f in (1, factor))
    assert less <= more * ROUNDING


@given(collectives, tensor_bytes, st.floats(1, 100), spans())
def test_longer_hops_never_help(collective, size, factor, span):
    here, there = (collective_time(collective, size, s) for s in (span, slower(span, hops=factor)))
    assert here <= there * ROUNDING


@given(collectives, tensor_bytes, st.floats(1, 100), spans())
def test_slower_links_never_help(collective, size, factor, span):
    here, there = (collective_time(collective, size, s) for s in (span, slower(span, links=factor)))
    assert here <= there * ROUNDING


@given(collectives, tensor_bytes, st.floats(1, 100), spans())
def test_slower_links_and_hops_slow_down_at_most_in_proportion(collective, size, factor, span):
    """The ramp is the protocols' own time: it grows less than the wire's."""
    here = float(collective_time(collective, size, span))
    there = float(collective_time(collective, size, slower(span, links=factor, hops=factor)))
    assert here / ROUNDING <= there <= factor * here * ROUNDING


@given(collectives, tensor_bytes, tensor_bytes, spans())
def test_one_message_is_never_slower_than_the_same_bytes_in_two(collective, first, second, span):
    together = collective_time(collective, first + second, span)
    apart = collective_time(collective, first, span) + collective_time(collective, second, span)
    assert together <= apart * ROUNDING


@given(tensor_bytes, clusters(max_tiers=1))
def test_on_one_tier_a_hierarchical_ring_is_a_flat_one(size, cluster):
    span = group_span(cluster, cluster.num_devices, 1)
    assert float(hierarchical_pass(size, span)) == pytest.approx(float(ring_pass(size, span)))


@given(st.floats(1.0, 1e12), clusters())
def test_tiers_that_a_group_does_not_reach_do_not_matter(size, cluster):
    inner = replace(cluster, tiers=cluster.tiers[:1])
    group = cluster.tiers[0].fan_out
    for collective in COLLECTIVES:
        whole = collective_time(collective, size, group_span(cluster, group, 1))
        alone = collective_time(collective, size, group_span(inner, group, 1))
        assert float(whole) == pytest.approx(float(alone))


@given(collectives, st.lists(tensor_bytes, min_size=1, max_size=4), spans())
def test_collectives_are_priced_as_arrays_or_one_by_one(collective, sizes, span):
    columns = (np.stack([v] * len(sizes)) for v in (span.sizes, *_rates(span)))
    rows = GroupSpan(*columns, span.copy_s_per_byte, span.one_ring)
    together = collective_time(collective, np.array(sizes), rows)
    assert together.tolist() == [float(collective_time(collective, s, span)) for s in sizes]


def _rates(span):
    return span.bandwidth_bytes_per_s, span.latency_s


# Overlap -------------------------------------------------------------------------------------------------


@given(seconds, seconds)
def test_free_overlap_hides_what_fits_the_window(communication, window):
    assert exposed_time(communication, window, 0.0) == max(0.0, communication - window)


@given(seconds, seconds)
def test_overlap_that_gains_nothing_exposes_all(communication, window):
    assert exposed_time(communication, window, 1.0) == communication


@given(seconds, shares)
def test_without_a_window_all_is_exposed(communication, cost):
    assert exposed_time(communication, 0.0, cost) == communication


@given(seconds, shares)
def test_behind_endless_compute_only_the_slowdown_remains(communication, cost):
    far = (1 + communication) * 1e6
    assert exposed_time(communication, far, min(cost, 0.99)) == min(cost, 0.99) * communication


@given(seconds, seconds, shares, st.floats(1, 10))
def test_exposed_time_lies_between_slowdown_and_all_and_is_monotone(communication, window, cost, factor):
    exposed = exposed_time(communication, window, cost)
    assert cost * communication <= exposed <= communication
    assert exposed <= exposed_time(communication * factor, window, cost)
    assert exposed >= exposed_time(communication, window * factor, cost)


@given(seconds, seconds, seconds, seconds, shares, shares)
def test_exposed_time_is_convex(x, y, v, w, cost, share):
    mixed = exposed_time(share * x + (1 - share) * y, share * v + (1 - share) * w, cost)
    ends = share * exposed_time(x, v, cost) + (1 - share) * exposed_time(y, w, cost)
    assert mixed <= ends + 1e-9


@given(seconds, seconds, shares, seconds)
def test_compute_that_grows_never_shortens_compute_and_what_it_exposes(communication, window, cost, more):
    now, later = (w + exposed_time(communication, w, cost) for w in (window, window + more))
    assert now <= later * ROUNDING


@st.composite
def queues(draw):
    """Seconds of parts sent one behind another, and how long before the end each is ready."""
    size = draw(st.integers(1, 6))
    parts, windows = (draw(st.lists(seconds, min_size=size, max_size=size).map(np.array)) for _ in range(2))
    return parts, -np.sort(-windows)


@given(queues())
def test_parts_hidden_for_free_are_late_as_a_queue_is(queue):
    """Played from part to part: each starts when it is ready and the one before is sent."""
    sent = -np.inf
    for part, window in zip(*queue, strict=True):
        sent = max(sent, -window) + part
    assert exposed_in_turn(*queue, 0.0)[0] == pytest.approx(max(sent, 0.0), abs=1e-9)


@given(queues(), shares)
def test_parts_in_turn_are_late_no_longer_than_together_at_the_last(queue, cost):
    """Nor less than if all were ready with the first; where all are ready at once they are one."""
    parts, windows = queue
    late, part = exposed_in_turn(parts, windows, cost)
    first, last = (exposed_time(parts.sum(), window, cost) for window in windows[[0, -1]])
    assert first / ROUNDING - 1e-9 <= late <= last * ROUNDING + 1e-9
    assert (part < 0) == (late <= cost * parts.sum())
    together, _ = exposed_in_turn(parts, np.full_like(windows, windows[-1]), cost)
    assert together == pytest.approx(last, abs=1e-9)


@given(queues(), queues(), shares, shares)
def test_parts_in_turn_are_late_convexly(one, other, cost, share):
    """CP-SAT has what is convex and linear in pieces."""
    size = min(len(one[0]), len(other[0]))
    (x, v), (y, w) = ([each[:size] for each in queue] for queue in (one, other))
    mixed, _ = exposed_in_turn(share * x + (1 - share) * y, share * v + (1 - share) * w, cost)
    ends = share * exposed_in_turn(x, v, cost)[0] + (1 - share) * exposed_in_turn(y, w, cost)[0]
    assert mixed <= ends + 1e-9


@given(queues(), shares, shares, st.floats(1, 10))
def test_what_parts_are_needed_for_ends_no_earlier_with_longer_passes_and_no_later_with_overlap(
    queue, share, cost, factor
):
    parts, passes = queue
    ready = ready_in_turn(parts, passes, share, cost)
    assert ready[0] >= cost * parts.sum() / ROUNDING
    assert (ready <= parts.sum() * ROUNDING).all()
    assert (ready <= ready_in_turn(parts, passes, 0.0, cost) * ROUNDING).all()
    longer = ready_in_turn(parts, passes * factor, share, cost)
    assert (longer <= ready).all()
    assert (longer + passes * factor >= (ready + passes) / ROUNDING).all()
    assert (ready_in_turn(parts * factor, passes, share, cost) >= ready / ROUNDING - 1e-9).all()


@given(seconds, seconds, shares, shares)
def test_one_part_is_ready_as_it_is_exposed(part, window, share, cost):
    (ready,) = ready_in_turn(np.array([part]), np.array([window]), share, cost)
    assert ready == pytest.approx(exposed_time(part, share * window, cost), abs=1e-9)


@given(tensor_degrees, st.integers(0, 1), st.integers(1, 8), shares, st.sampled_from(PLACES))
def test_traffic_beside_products_is_exposed_or_hidden_and_never_lost(tp, split, sequences, cost, cluster):
    """What backward collectives take in all does not depend on whether they run beside products."""
    spread = make_strategies(tp=tp, sequence_parallel=split, micro_batch_size=sequences)
    apart, beside = (
        make_setting(cluster=cluster, overlap_backward=on, overlap_cost=cost, overlap_tensor=0.0)
        for on in (False, True)
    )
    waited, hidden = (build_tables(setting, spread) for setting in (apart, beside))
    exposed = [BACKWARD.index(cause) for cause in CAUSES]
    each = [t.backward_parts[..., 0, exposed].sum(-1) for t in (waited, hidden)]
    gone = [t.hidden_comm_s.sum(-1) for t in (waited, hidden)]
    assert np.all(each[1] <= each[0] * ROUNDING)
    assert each[0] + gone[0] == pytest.approx(each[1] + gone[1])
