"""Operators by hand: tiny sizes whose parameters, FLOPs, bytes and collectives one can count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.attention_kernels import attention_kernels, find_attention_kernel
from meshwright.costmodels.loss import FULL_LOGITS
from meshwright.costmodels.operators import Boundary, LayerKind, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.vocabulary import CrossEntropy, Embedding
from meshwright.costmodels.work import Shape, Traffic
from meshwright.hardware.errors import MeshwrightError

IN, OUT = Part(6, 6, "inputs"), Part(8, 8, "outputs")
ONE, PAIR = Shape(2, 5, 1, 0), Shape(2, 5, 2, 0)
SPLIT = Shape(2, 5, 2, 1)
NONE: tuple[tuple, tuple] = ((), ())


def test_a_column_parallel_layer_splits_outputs_and_bias():
    gemm = Gemm("g", IN, (OUT,), "column", bias=True, saves_output=True)
    assert gemm.parameters() == 6 * 8 + 8
    assert gemm.local_parameters(PAIR) == 6 * 4 + 4
    assert gemm.parts == (OUT,)
    assert gemm.saved_bytes(PAIR) == 10 * 4 * 2
    (work,) = gemm.forward(PAIR)
    assert (work.m, work.n, work.k, work.flops) == (10, 4, 6, 2 * 10 * 4 * 6)
    assert work.bytes == 2 * (10 * 6 + 6 * 4 + 10 * 4)


def test_a_row_parallel_layer_splits_inputs_and_copies_its_bias():
    gemm = Gemm("g", IN, (OUT,), "row", bias=True)
    assert gemm.local_parameters(PAIR) == 3 * 8 + 8
    assert gemm.parts == (IN,)
    assert gemm.saved_bytes(PAIR) == 0


def test_a_replicated_layer_is_whole_on_each_rank():
    gemm = Gemm("g", IN, (OUT,), "replicated")
    assert gemm.local_parameters(PAIR) == gemm.parameters() == 48
    assert gemm.forward(PAIR) == gemm.forward(ONE)
    assert gemm.parts == ()


def test_a_tied_layer_occupies_memory_but_counts_only_its_bias():
    gemm = Gemm("head", IN, (OUT,), "column", bias=True, tied=True)
    assert gemm.parameters() == 8
    assert gemm.local_parameters(ONE) == 48 + 8


def test_backward_is_the_gradient_of_the_input_and_of_the_weight():
    of_input, of_weight = Gemm("g", IN, (OUT,), "column").backward(ONE)
    assert (of_input.m, of_input.n, of_input.k) == (10, 6, 8)
    assert (of_weight.m, of_weight.n, of_weight.k) == (6, 8, 10)


@given(st.sampled_from(["column", "row", "replicated"]), st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_a_biass_gradient_reads_the_outputs_once(shard: str, tp: int, sequences: int) -> None:
    shape = Shape(sequences, 16, tp, 0)
    gemm = Gemm("g", IN, (OUT,), shard, bias=True)  # type: ignore[arg-type]
    *products, bias = gemm.backward(shape)
    assert tuple(products) == replace(gemm, bias=False).backward(shape)
    assert bias.kernel == "memory"
    assert bias.weight_gradient
    assert bias.bytes == sequences * 16 * gemm.local_dims(shape)[0] * 2
    assert len(replace(gemm, trained=False).backward(shape)) == 1


def test_heads_that_do_not_divide_are_padded_and_key_value_heads_copied():
    heads = Part(12 * 4, 12, "attention heads")
    keys = Part(2 * 4, 2, "key/value heads", replicable=True)
    assert [heads.local(tp) for tp in (1, 5, 8)] == [48, 12, 8]
    assert [keys.local(tp) for tp in (1, 2, 8)] == [8, 4, 4]


def test_attention_by_hand():
    """4 heads of 8, 2 key/value heads, 5 tokens: 15 causal pairs, 2 products of 8 multiply-adds each."""
    core = Attention("core", 4, 2, 8, 8)
    (forward,) = core.forward(ONE)
    assert forward.flops == 2 * 4 * 15 * 2 * (8 + 8)
    assert core.backward(ONE)[0].flops == 2.5 * forward.flops
    assert forward.bytes == 10 * (4 * 16 + 2 * 16) * 2
    assert core.saved_bytes(ONE) == 10 * 4 * 8 * 2 + 10 * 4 * 4
    assert core.parameters() == core.local_parameters(ONE) == 0
    assert not any(t.bytes for way in core.traffic(ONE) for t in way)


@given(dropout=st.booleans(), kernel=st.sampled_from(sorted(attention_kernels())), tokens=st.integers(1, 512))
def test_scores_have_gradients_beside_what_is_kept_of_them(dropout, kernel, tokens):
    """Flash kernels hold nothing as long as the square of the tokens; others do.

    Dropout's copy of the probabilities goes before the softmax runs, and makes room for its gradient.
    """
    known = find_attention_kernel(kernel)
    core = Attention("core", 4, 4, 8, 8, flash=known.flash, core=kernel, dropout=dropout)
    held = core.transient_bytes(replace(ONE, sequence_length=tokens))
    twice = core.transient_bytes(replace(ONE, sequence_length=2 * tokens))
    scores = ONE.sequences * 4 * tokens**2
    least = 2 if dropout else 0
    assert held == (not known.flash) * scores * max(known.working_bytes - 2 * dropout, least)
    assert twice == 4 * held


def test_unfused_attention_keeps_scores():
    """Softmax output, and with dropout its mask and the dropped copy: 2 a s, 5 a s bytes a token."""
    plain, dropped = (Attention("core", 4, 4, 8, 8, flash=False, dropout=d) for d in (False, True))
    assert plain.core_bytes(ONE) == 10 * 2 * 4 * 5
    assert dropped.core_bytes(ONE) == 10 * 5 * 4 * 5
    assert plain.backward(ONE)[0].flops == 2 * plain.forward(ONE)[0].flops
    launches = [sum(w.kernels for w in way) for way in (plain.forward(ONE), plain.backward(ONE))]
    assert launches == [4, 6]


def test_a_window_without_causality_looks_both_ways():
    """Of 5 tokens each sees those at most one away: 3 in the middle, 2 at the ends."""
    assert Attention("core", 1, 1, 8, 8, causal=False, window=2).pairs(5) == 3 + 3 + 3 + 2 + 2


def test_pointwise_work_is_split_by_sequence_or_by_features():
    norm = Pointwise("norm", "sequence", 6, 6, saves=6, mask_features=6, weights=6)
    assert norm.forward(ONE)[0].bytes == 10 * (12 * 2 + 6)
    assert [norm.forward(s)[0].bytes for s in (PAIR, SPLIT)] == [300, 150]
    assert norm.backward(ONE)[0].bytes == 450
    assert norm.saved_bytes(SPLIT) == 10 * (12 + 6) / 2
    assert norm.local_parameters(SPLIT) == norm.parameters() == 6
    activation = Pointwise("act", "tensor", 8, 8, saves=8, units=8)
    assert activation.saved_bytes(PAIR) == 10 * 8 * 2 / 2
    assert activation.parts == norm.parts == ()
    assert activation.traffic(PAIR) == NONE


def test_boundaries_reduce_or_gather_what_crosses_them():
    whole = 10 * 6 * 2
    enter, leave = Boundary("in", "enter", 6), Boundary("out", "exit", 6)

    def bytes_of(traffics):
        return {t.collective: t.bytes for t in traffics if t.bytes}

    both = {"all_gather": whole, "reduce_scatter": whole}
    assert [bytes_of(t) for t in enter.traffic(PAIR)] == [{}, {"all_reduce": whole}]
    assert [bytes_of(t) for t in leave.traffic(PAIR)] == [{"all_reduce": whole}, {}]
    assert [bytes_of(t) for t in enter.traffic(SPLIT)] == [{"all_gather": whole}, both]
    assert [bytes_of(t) for t in leave.traffic(SPLIT)] == [{"reduce_scatter": whole}, {"all_gather": whole}]
    assert [bytes_of(t) for t in leave.traffic(ONE)] == [{}, {}]
    assert all(t.hidden_behind == "none" for op in (enter, leave) for way in op.traffic(SPLIT) for t in way)
    beside = replace(enter, beside=True)
    assert [t for t in beside.traffic(SPLIT)[1] if t.bytes] == [
        Traffic("all_gather", whole, "input_gradient"),
        Traffic("reduce_scatter", whole, "weight_gradient"),
    ]
    assert [t for t in beside.traffic(PAIR)[1] if t.bytes] == [
        Traffic("all_reduce", whole, "weight_gradient")
    ]
    assert beside.traffic(SPLIT)[0] == enter.traffic(SPLIT)[0]
    assert enter.parameters() == enter.local_parameters(ONE) == enter.saved_bytes(ONE) == 0
    assert enter.forward(ONE) == enter.backward(ONE) == enter.parts == ()


def test_a_boundary_that_keeps_what_it_gathered_gathers_nothing_again():
    whole = 10 * 6 * 2
    enter, leave = (Boundary("edge", way, 6, keeps=True) for way in ("enter", "exit"))
    assert enter.saved_bytes(SPLIT) == whole / 2  # this rank's own half is its producer's
    assert enter.saved_bytes(PAIR) == enter.saved_bytes(ONE) == leave.saved_bytes(SPLIT) == 0
    assert not any(t.bytes for t in enter.traffic(SPLIT)[1] if t.collective == "all_gather")


def test_an_embedding_splits_its_rows_and_copies_its_positions():
    vocabulary = Part(10, 10, "vocabulary", padded=True)
    table = Embedding("tokens", vocabulary, 6, extra_rows=3)
    assert table.parameters() == (10 + 3) * 6
    assert table.local_parameters(PAIR) == (5 + 3) * 6
    assert table.local_parameters(Shape(2, 5, 2, 0, vocab_multiple=8)) == (8 + 3) * 6
    assert table.saved_bytes(PAIR) == 10 * 8
    assert table.forward(ONE)[0].bytes == 2 * 10 * 6 * 2
    assert table.backward(ONE)[0].bytes == 10 * 6 * (2 + 8)
    assert table.parts == (vocabulary,)
    assert table.traffic(PAIR) == NONE


def test_cross_entropy_reduces_three_numbers_a_token():
    loss = CrossEntropy("loss", Part(10, 10, "vocabulary", padded=True), FULL_LOGITS)
    forward, backward = loss.traffic(PAIR)
    assert [(t.collective, t.bytes) for t in forward] == [("all_reduce", 4 * 10)] * 3
    assert backward == ()
    assert all(t.bytes == 0 for t in loss.traffic(ONE)[0])
    assert loss.logits(PAIR) == 10 * 5
    assert loss.parameters() == loss.local_parameters(ONE) == 0
    assert (loss.forward(ONE)[0].bytes, loss.backward(ONE)[0].bytes) == (100 * 38, 100 * 14)


def test_a_kind_refuses_two_operators_of_one_name():
    norm = Pointwise("norm", "sequence", 6, 6)
    with pytest.raises(MeshwrightError, match="decoder: two operators are named 'norm'"):
        LayerKind("decoder", "block", (norm, norm), 6)


def test_a_kind_sums_its_operators():
    gemm = Gemm("g", IN, (OUT,), "column")
    assert LayerKind("k", "block", (gemm, Pointwise("n", "sequence", 6, 6, weights=6)), 6).parameters() == 54
