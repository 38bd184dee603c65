"""Implementations of the cross entropy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.loss import CHUNKS, FULL_LOGITS, LOSSES, find_loss
from meshwright.costmodels.part import Part
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.costmodels.work import Shape
from meshwright.hardware.errors import UnknownNameError


def test_full_logits_keep_the_softmax_in_fp32():
    assert find_loss("full") is FULL_LOGITS
    assert (FULL_LOGITS.saved_bytes, FULL_LOGITS.chunk_fraction) == (4, 1)


@pytest.mark.parametrize("name", ["chunked", "fused"])
def test_other_implementations_keep_nothing_and_hold_an_eighth_at_a_time(name):
    kernel = find_loss(name)
    assert (kernel.saved_bytes, kernel.chunk_fraction) == (0, 1 / CHUNKS)
    assert kernel.transient_bytes * kernel.chunk_fraction < FULL_LOGITS.transient_bytes


def test_only_the_chunked_loss_repeats_the_head():
    assert [name for name, kernel in LOSSES.items() if kernel.repeats_head] == ["chunked"]


def test_kernels_move_less_than_chains_and_what_is_fused_holds_least():
    moved = {name: k.forward_traffic + k.backward_traffic for name, k in LOSSES.items()}
    few = ("kernel", "fused", "pieces", "sliced", "torch", "eager")
    assert [moved[name] for name in few] == sorted({moved[name] for name in few})
    assert moved["compiled"] < moved["torch"]
    assert moved["metrics"] == moved["kernel"] + 2 * (4 + 6)  # a log-softmax in 16 bits and a cast up, twice
    assert moved["te"] < moved["jit"] < moved["full"]  # Megatron-Core's three
    same = {"traced": "torch", "jit": "full", "te": "kernel"}
    held = {name: k.transient_bytes * k.chunk_fraction for name, k in LOSSES.items()}
    assert all(held.pop(name) == held[other] for name, other in same.items())
    assert held.pop("metrics") == held["compiled"]
    fused, whole = ["fused", "chunked", "kernel", "compiled"], ["pieces", "full", "sliced"]
    assert sorted(held, key=held.__getitem__) == [*fused, *whole, "torch", "eager", "engine"]


@given(pp=st.integers(1, 4), tp=st.integers(1, 4), parallel=st.booleans())
def test_the_loss_at_the_end_of_a_pipeline_is_the_pipelines(pp, tp, parallel):
    vocab = Part(4096, 4096, "vocabulary", padded=True)
    both = CrossEntropy("loss", vocab, LOSSES["eager"], parallel, pipelined=LOSSES["torch"])
    own = CrossEntropy("loss", vocab, LOSSES["torch" if pp > 1 else "eager"], parallel)
    shape = Shape(1, 64, tp, 0, pipelined=pp > 1)
    assert both.forward(shape)[0].bytes == own.forward(shape)[0].bytes
    assert both.backward(shape)[0].bytes == own.backward(shape)[0].bytes
    assert both.saved_bytes(shape) == own.saved_bytes(shape)
    assert both.transient_bytes(shape) == own.transient_bytes(shape)


def test_a_traced_loss_is_as_whole_rows_whoever_holds_the_logits():
    whole = replace(LOSSES["torch"], split_bytes=0, split_forward_traffic=0, split_backward_traffic=0)
    assert LOSSES["traced"] == whole


@given(tp=st.integers(1, 16), parallel=st.booleans(), name=st.sampled_from(sorted(LOSSES)))
def test_only_logits_that_are_split_cost_a_chain(tp, parallel, name):
    kernel = LOSSES[name]
    loss = CrossEntropy("loss", Part(4096, 4096, "vocabulary", padded=True), kernel, parallel=parallel)
    plain = replace(kernel, split_bytes=0, split_forward_traffic=0, split_backward_traffic=0)
    whole, shape = replace(loss, kernel=plain), Shape(1, 64, tp, 0)
    chain = (tp > 1 and parallel) * loss.logits(shape)
    more = loss.transient_bytes(shape) - whole.transient_bytes(shape)
    assert more == pytest.approx(kernel.split_bytes * chain)
    ahead = loss.forward(shape)[0].bytes - whole.forward(shape)[0].bytes
    back = loss.backward(shape)[0].bytes - whole.backward(shape)[0].bytes
    assert (ahead, back) == pytest.approx(
        (kernel.split_forward_traffic * chain, kernel.split_backward_traffic * chain)
    )


def test_an_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(UnknownNameError, match=r"loss.*'fuse'.*fused"):
        find_loss("fuse")


@given(tp=st.integers(1, 16), vocab=st.integers(1, 10**6), name=st.sampled_from(sorted(LOSSES)))
def test_parts_of_gathered_logits_are_left_where_ranks_gather_them(tp, vocab, name):
    kernel = LOSSES[name]
    whole = CrossEntropy("loss", Part(vocab, vocab, "vocabulary", padded=True), kernel, parallel=False)
    shape = Shape(1, 64, tp, 0)
    alone = replace(whole, kernel=replace(kernel, gathered_bytes=0.0)).transient_bytes(shape)
    left = whole.transient_bytes(shape) - alone
    assert left == pytest.approx(kernel.gathered_bytes * (tp > 1) * whole.logits(shape))
    assert replace(whole, parallel=True).transient_bytes(shape) <= whole.transient_bytes(shape)
