"""Scans by hand: FLOPs, bytes and weights of sizes that one can count."""

from fractions import Fraction

import pytest

from meshwright.costmodels.convolution import CausalConvolution
from meshwright.costmodels.delta import DeltaRule
from meshwright.costmodels.part import Part
from meshwright.costmodels.recurrence import GatedRecurrence
from meshwright.costmodels.reduction import PartialSum
from meshwright.costmodels.scan import ChunkedScan, SelectiveScan
from meshwright.costmodels.work import Shape, Traffic

ONE, PAIR = Shape(2, 512, 1, 0), Shape(2, 512, 2, 0)
TOKENS = 1024
SSD = ChunkedScan("ssd", heads=8, head_dim=64, groups=2, state=128, chunk=256)
DELTA = DeltaRule("delta", heads=4, key_heads=2, key_dim=32, value_dim=16)


def flops(works):
    return sum(w.flops for w in works)


def of_kind(works, kernel):
    return [w for w in works if w.kernel == kernel]


def test_a_convolution_has_a_filter_a_feature_and_moves_each_feature_twice():
    conv = CausalConvolution("conv", (Part(16, 4, "heads"), Part(8, 1, "groups", replicable=True)), 4, True)
    assert conv.parameters() == 24 * 5
    assert conv.local_parameters(PAIR) == (8 + 8) * 5
    (work,) = conv.forward(ONE)
    assert (work.flops, work.bytes) == (TOKENS * 24 * 2 * 4, TOKENS * 24 * 2 * 2)
    assert conv.saved_bytes(ONE) == TOKENS * 24 * 2


def test_a_convolution_that_keeps_nothing_runs_again_in_the_backward_pass():
    kept = CausalConvolution("conv", (Part(16, 4, "heads"),), 4)
    dropped = CausalConvolution("conv", (Part(16, 4, "heads"),), 4, saves_output=False)
    assert dropped.saved_bytes(ONE) == 0
    assert dropped.backward(ONE) == (*kept.forward(ONE), *kept.backward(ONE))


def test_a_selective_scan_keeps_decay_rates_and_a_skip_weight_a_channel():
    scan = SelectiveScan("scan", channels=64, state=16)
    assert scan.parameters() == 64 * 17
    assert scan.local_parameters(PAIR) == 32 * 17
    (work,) = scan.forward(ONE)
    assert work.kernel == "vector"
    assert work.bytes == TOKENS * (4 * 64 + 2 * 16) * 2
    assert work.flops == 9 * TOKENS * 64 * 16


def test_a_chunked_scan_has_the_flops_of_its_four_products():
    state = output = 2 * 64 * 128
    scores = 2 * 256 * 128
    below_the_diagonal = 2 * 64 * Fraction(257, 2)
    want = TOKENS * (8 * (state + output + below_the_diagonal) + 2 * scores)
    assert flops(SSD.forward(ONE)) == want
    assert [(w.m, w.n, w.k, w.groups) for w in of_kind(SSD.forward(ONE), "gemm")] == [
        (64, 128, 256, 4 * 8),
        (256, 256, 128, 4 * 2),
        (256, 64, 128 + 128.5, 4 * 8),
    ]


def test_a_chunked_scan_runs_twice_its_products_backward_and_states_and_scores_again():
    again = TOKENS * (8 * 2 * 64 * 128 + 2 * 2 * 256 * 128)
    of_decays = TOKENS * 8 * 2 * 64 * Fraction(257, 2)
    assert flops(SSD.backward(ONE)) == 2 * flops(SSD.forward(ONE)) + again + of_decays


def test_a_chunk_is_no_longer_than_the_sequence():
    short = Shape(16, 64, 1, 0)
    assert flops(SSD.forward(short)) < flops(SSD.forward(Shape(2, 512, 1, 0)))
    assert of_kind(SSD.forward(short), "gemm")[1].m == 64


def test_groups_are_copied_where_tensor_parallelism_exceeds_them():
    wide = Shape(2, 512, 8, 0)
    one_head = TOKENS * (2 * (2 * 64 * 128) + 2 * 64 * 128.5 + 2 * 256 * 128)
    assert flops(SSD.forward(wide)) == one_head
    assert SSD.local_parameters(wide) == 3


def test_states_in_fp32_live_while_a_chunked_scan_runs_backward():
    states, scores = TOKENS // 256 * 8 * 64 * 128 * 4, TOKENS * 2 * 256 * 4
    assert SSD.transient_bytes(ONE) == 2 * (states + scores)


def test_the_delta_rule_has_the_flops_of_its_kernels():
    c, k, v = 64, 32, 16
    forward = c * (2 * k + 2 * k + 2 * v + 2 * k + 2 * v) + c * c / 3 + 6 * k * v
    backward = 16 * k * v + c * (18 * k + 10 * v) + 4 * c * c
    assert flops(DELTA.forward(ONE)) == pytest.approx(TOKENS * 4 * forward)
    assert flops(DELTA.backward(ONE)) == pytest.approx(TOKENS * 4 * backward)


def test_the_delta_rules_recurrence_fills_the_device_with_heads_and_sequences_only():
    long = max(of_kind(DELTA.forward(ONE), "gemm"), key=lambda w: w.k)
    assert (long.m, long.n, long.k, long.groups) == (32, 16, 2 * 512, 2 * 4)


def test_the_delta_rule_keeps_its_output_the_inverses_and_the_decays():
    assert DELTA.parameters() == 8
    assert DELTA.saved_bytes(ONE) == TOKENS * 4 * (16 * 2 + 64 * 2 + 4)


def test_gates_of_a_recurrence_are_blocks_of_a_head():
    op = GatedRecurrence("rec", width=64, heads=4)
    assert op.parameters() == 2 * (4 * 16 * 16 + 64) + 64
    assert op.local_parameters(PAIR) == op.parameters() / 2
    gates, scan = op.forward(ONE)
    assert (gates.m, gates.n, gates.k, gates.groups) == (TOKENS, 16, 16, 8)
    assert scan.kernel == "memory"


def test_a_partial_sum_is_reduced_both_ways_and_only_among_several_ranks():
    there, back = PartialSum("sum", 10).traffic(PAIR)
    assert there == back == (Traffic("all_reduce", TOKENS * 10 * 2),)
    assert PartialSum("sum", 10).traffic(ONE)[0][0].bytes == 0


@pytest.mark.parametrize(
    "op", [SSD, DELTA, SelectiveScan("s", 4, 4), GatedRecurrence("r", 4, 2), CausalConvolution("c", (), 4)]
)
def test_scans_do_not_split_the_sequence(op):
    assert not op.splits_sequence
