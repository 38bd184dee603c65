"""Experts: parameters and work are conserved however they are folded, and dispatch has limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.collectives import collective_time, dispatch_time
from meshwright.costmodels.moe import Exchange, ExpertActivation, ExpertGemm, Router, own_tokens
from meshwright.costmodels.part import Part
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.roofline import gemm_flops_time, work_time
from meshwright.costmodels.work import BiasChain, Shape, Work
from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.span import group_span
from tests.properties.test_compute import H100

USUAL_STACK = find_profile("generic")
CLUSTER = load_cluster("dgx-h100:8")
powers = st.integers(0, 3).map(lambda n: 2**n)


@st.composite
def experts(draw):
    """A grouped product of some experts, of widths and a number that folding divides."""
    inner, hidden = 8 * draw(st.integers(1, 64)), 8 * draw(st.integers(1, 64))
    wide, narrow = Part(inner, inner, "expert columns", axis="expert_tensor"), Part(hidden, hidden, "hidden")
    number = 8 * draw(st.integers(1, 8))
    topk = draw(st.integers(1, 8))
    gated = (wide, wide) if draw(st.booleans()) else (wide,)
    if draw(st.booleans()):
        return ExpertGemm("up", number, topk, narrow, gated, "column", saves_output=True)
    return ExpertGemm("down", number, topk, wide, (narrow,), "row")


@st.composite
def folded(draw):
    """Tokens and folds: ``ep`` x ``etp`` never beyond what the experts above divide by."""
    return Shape(
        draw(st.integers(1, 4)),
        64 * draw(st.integers(1, 32)),
        tp=draw(powers),
        sequence_parallel=1,
        cp=draw(st.sampled_from([1, 2, 4])),
        ep=draw(powers),
        etp=draw(powers),
    )


def alone(shape):
    return Shape(shape.sequences, shape.sequence_length, 1, 0)


@given(experts(), folded())
def test_all_ranks_together_hold_each_expert_once(op, shape):
    assert op.local_parameters(shape) * shape.ep * shape.etp == op.parameters()


@given(experts(), folded())
def test_all_ranks_together_multiply_every_row_once(op, shape):
    """Work of one rank times the ranks that share the tokens is the work of one rank alone."""
    ranks = shape.tp * shape.cp
    one = sum(w.flops for w in op.forward(alone(shape)))
    assert ranks * sum(w.flops for w in op.forward(shape)) == pytest.approx(one)
    both = sum(w.flops for w in op.backward(shape))
    assert both == pytest.approx(2 * sum(w.flops for w in op.forward(shape)))


@given(experts(), folded(), st.floats(1.0, 4.0))
def test_the_busiest_rank_sets_the_work(op, shape, load):
    plain, loaded = (Shape(*(2, 256, 1, 0), ep=shape.ep, expert_load=v) for v in (1.0, load))
    assert op.forward(loaded)[0].flops == pytest.approx(load * op.forward(plain)[0].flops)
    assert op.saved_bytes(loaded) == pytest.approx(load * op.saved_bytes(plain))


@given(experts(), folded())
def test_frozen_experts_have_no_weight_gradient(op, shape):
    frozen = replace(op, trained=False)
    assert not any(w.weight_gradient for w in frozen.backward(shape))
    gone = [w for w in op.backward(shape) if w.weight_gradient]
    assert [w.flops for w in gone] == [pytest.approx(op.forward(shape)[0].flops)]


@given(folded(), st.integers(1, 8), st.integers(1, 64))
def test_the_exchange_moves_what_it_brings_back(shape, topk, hidden):
    out, back = (Exchange(way, way, hidden, topk) for way in ("dispatch", "combine"))
    assert [t.bytes for t in out.traffic(shape)[0]] == [t.bytes for t in back.traffic(shape)[1]]
    assert [t.bytes for t in out.traffic(shape)[1]] == [t.bytes for t in back.traffic(shape)[0]]
    loaded = replace(shape, expert_load=1.5)
    many, few = (sum(t.bytes for t in out.traffic(s)[0]) for s in (loaded, shape))
    assert many == pytest.approx(1.5 * few)
    busy = [t for t in out.traffic(shape)[0] if np.any(t.bytes)]
    assert len(busy) == (shape.ep > 1) + (shape.etp > 1)


@given(folded(), st.integers(1, 8), st.integers(1, 64), st.floats(0.5, 1.1))
def test_rows_travel_in_the_recipe_s_type_or_quantised_on_the_way_to_the_experts(shape, topk, hidden, width):
    shape = replace(shape, quantised_bytes=width)
    for way, outward in (("dispatch", True), ("combine", False)):
        plain = Exchange(way, way, hidden, topk)
        wide, narrow = (replace(plain, lowered=q).traffic(shape)[0][0].bytes for q in (False, True))
        assert narrow == pytest.approx(wide * (width / shape.element_bytes if outward else 1))


@given(folded(), st.integers(1, 64), st.integers(2, 64), st.integers(1, 8))
def test_router_and_activation_work_on_the_rank_s_own_tokens(shape, hidden, number, topk):
    router = Router("router", hidden, number, topk)
    assert router.forward(shape)[0].m == own_tokens(shape) == shape.tokens / shape.sequence_split
    assert router.local_parameters(shape) == router.parameters() == number * hidden
    act = ExpertActivation("act", topk, 2, 1, 1, 8)
    assert act.saved_bytes(shape) * shape.tp * shape.cp == pytest.approx(act.saved_bytes(alone(shape)))


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 512), st.integers(1, 64))
def test_a_group_of_products_takes_at_least_its_share_of_waves(m, n, k, groups):
    one = gemm_flops_time(Work("gemm", 1, 1, m, n, k), H100)
    many = gemm_flops_time(Work("gemm", 1, 1, m, n, k, groups=groups), H100)
    assert one <= many <= groups * one * (1 + 1e-12)


@given(st.integers(64, 4096), st.integers(64, 4096), st.integers(64, 4096))
def test_a_low_precision_product_saves_up_to_half_and_fills_its_tiles_no_faster(m, n, k):
    rates = replace(H100, low_peak_flops_per_s=2 * H100.peak_flops_per_s)
    work = Work("gemm", 2.0 * m * n * k, 2.0 * m * n, m, n, k)
    fast, longer = replace(work, low_precision=True), replace(work, k=2 * k)
    assert work_time(work, rates, USUAL_STACK) == work_time(work, H100, USUAL_STACK)
    half, whole = gemm_flops_time(fast, rates), gemm_flops_time(work, rates)
    assert whole / 2 < half < whole
    # Twice the inner length at twice the rate takes the same time, filling included.
    assert gemm_flops_time(replace(longer, low_precision=True), rates) == pytest.approx(whole)


@given(experts(), folded())
def test_products_issued_one_by_one_are_the_same_work_in_more_kernels(op, shape):
    each = replace(op, one_by_one=True)
    for one, many in zip(op.backward(shape)[:2], each.backward(shape)[:2], strict=True):
        assert many == replace(one, kernels=op.groups(shape))


@given(experts(), folded(), st.floats(1.0, 40.0), st.floats(1.0, 40.0), st.integers(1, 9), st.integers(1, 9))
def test_biases_move_their_bytes_of_every_output_and_launch_each_expert_s(op, shape, ahead, back, each, once):
    biased = replace(op, bias_chain=BiasChain(ahead, back, each, each + 1, once, once + 1))
    outputs, _ = op.local_dims(shape)
    rows = op.rows(shape) * op.groups(shape)
    for plain, with_bias, width, more in (
        (op.forward, biased.forward, ahead, 0),
        (op.backward, biased.backward, back, 1),
    ):
        (work,) = (w for w in with_bias(shape) if w not in plain(shape))
        assert work.bytes == pytest.approx(width * rows * outputs)
        assert work.kernels == (each + more) * op.groups(shape) + once + more


@given(experts(), folded())
def test_padding_copies_the_hidden_features_of_every_row_once_each_way(op, shape):
    padded = replace(op, padded=True)
    hidden = op.inputs.features if op.shard == "column" else op.outputs[0].features
    copy = 2 * op.rows(shape) * op.groups(shape) * hidden * shape.element_bytes
    for plain, copied in ((op.forward, padded.forward), (op.backward, padded.backward)):
        more = sum(w.bytes for w in copied(shape)) - sum(w.bytes for w in plain(shape))
        assert more == pytest.approx(copy)


@given(folded(), st.integers(1, 8), st.integers(1, 64), st.floats(1.0, 2.0))
def test_tokens_sent_once_are_permuted_at_one_end_alone(shape, topk, hidden, load):
    shape = replace(shape, expert_load=load)
    plain = Exchange("dispatch", "dispatch", hidden, topk)
    both, one = (replace(plain, deduplicated=d).forward(shape)[0].bytes for d in (False, True))
    sent = 2.0 * own_tokens(shape) * topk * hidden * shape.element_bytes
    assert both - one == pytest.approx(sent)
    assert one == pytest.approx(sent * shape.etp * load)


# Dispatch ------------------------------------------------------------------------------------------------

spans = st.sampled_from([(2, 1), (8, 1), (16, 1), (64, 1), (8, 8), (4, 4), (32, 2)]).map(
    lambda group: group_span(CLUSTER, *group)
)


@given(st.floats(1.0, 1e9), st.integers(1, 16), spans)
def test_sending_a_token_once_to_a_node_is_never_slower_than_sending_every_copy(size, copies, span):
    plain = dispatch_time(size, copies, span, deduplicated=False)
    once = dispatch_time(size, copies, span, deduplicated=True)
    assert plain == collective_time("all_to_all", size * copies, span)
    assert once <= plain * (1 + 1e-9)


@given(st.floats(1.0, 1e9), st.integers(1, 16), spans)
def test_a_node_limit_only_spares_traffic(size, copies, span):
    free = dispatch_time(size, copies, span, deduplicated=True)
    bound = [dispatch_time(size, copies, span, deduplicated=True, node_limit=n) for n in (1, 2, 4, 64)]
    assert bound == sorted(bound)
    assert bound[-1] == free


@given(st.floats(1.0, 1e9), st.integers(1, 16), spans, st.integers(1, 4))
def test_groups_of_experts_may_be_visited_whole(size, copies, span, wide):
    """A limit of all groups is none; fewer, larger groups at the same share never send less."""
    free = dispatch_time(size, copies, span, deduplicated=True)
    limited = {"deduplicated": True, "node_limit": 2}
    assert dispatch_time(size, copies, span, deduplicated=True, node_limit=8, expert_groups=8) == free
    few, many = (dispatch_time(size, copies, span, expert_groups=g, **limited) for g in (4 * wide, 16 * wide))
    assert many <= few <= free


def test_a_limit_of_groups_counts_on_every_tier_that_they_span():
    """Sixteen nodes, eight groups: four groups reach eight nodes, whatever lies above the nodes."""
    span = group_span(load_cluster("dgx-h100:16"), 128, 1)
    eight = dispatch_time(1e6, 64, span, deduplicated=True, node_limit=8)
    assert dispatch_time(1e6, 64, span, deduplicated=True, node_limit=4, expert_groups=8) == eight


@given(st.floats(1.0, 1e9), st.integers(1, 15), spans)
def test_more_experts_a_token_take_longer(size, copies, span):
    for way in (True, False):
        fewer, more = (dispatch_time(size, c, span, deduplicated=way) for c in (copies, copies + 1))
        assert fewer <= more


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=4), st.integers(1, 8), spans)
def test_dispatch_is_priced_as_arrays_or_one_by_one(sizes, copies, span):
    many = dispatch_time(np.array(sizes), copies, span, deduplicated=True)
    assert many.tolist() == [float(dispatch_time(s, copies, span, deduplicated=True)) for s in sizes]
    assert dispatch_time(0.0, copies, span, deduplicated=True) == 0
    assert dispatch_time(1e6, copies, group_span(CLUSTER, 1, 1), deduplicated=True) == 0
