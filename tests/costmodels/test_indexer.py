"""The indexer's scores grow with the square of the sequence, its gradient with what it picks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.indexer import Indexer
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.shared import SharedGemm
from meshwright.costmodels.work import Shape

INDEX = Indexer("index", 4, 32, 256)


def scores(op: Indexer, shape: Shape, *, backward: bool = False) -> float:
    return sum(float(w.flops) for w in (op.backward if backward else op.forward)(shape))


def test_each_head_scores_all_earlier_keys() -> None:
    s = 4096
    assert scores(INDEX, Shape(2, s, 1, False)) == 2 * 2 * 4 * 32 * s * s / 2


@given(st.sampled_from([64, 256, 1024, 16_384]))
def test_the_gradient_reaches_the_chosen_keys_alone(s: int) -> None:
    shape = Shape(1, s, 1, False)
    forward, backward = scores(INDEX, shape), scores(INDEX, shape, backward=True)
    assert backward <= 2 * forward
    assert (backward == 2 * forward) == (s <= 256)
    frozen = Indexer("index", 4, 32, 256, trained=False)
    assert frozen.backward(shape) == ()


@given(st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 4]))
def test_queries_split_with_the_sequence_and_heads_do_not(tp: int, cp: int) -> None:
    whole = scores(INDEX, Shape(1, 4096, 1, False))
    assert scores(INDEX, Shape(1, 4096, tp, True, cp=cp)) * tp * cp == pytest.approx(whole)
    assert scores(INDEX, Shape(1, 4096, tp, False, cp=cp)) * cp == pytest.approx(whole)


def test_arrays_are_priced_as_scalars_are() -> None:
    lengths = np.array([128.0, 4096.0])
    arrays = INDEX.forward(Shape(1, lengths, 1, False))[0].flops
    assert arrays.tolist() == [scores(INDEX, Shape(1, s, 1, False)) for s in lengths]


@given(st.integers(1, 200), st.integers(1, 64))
def test_chunks_see_the_pairs_within_them(chunks: int, chunk: int) -> None:
    core = Attention("a", 1, 1, 8, 8, chunk=chunk)
    assert float(core.pairs(chunks * chunk)) == chunks * chunk * (chunk + 1) / 2


@given(st.integers(1, 4000), st.integers(1, 256), st.integers(1, 64), st.integers(1, 600))
def test_compressed_keys_are_counted_query_by_query(s: int, window: int, stride: int, topk: int) -> None:
    # Within one entry a query of the sum over whole tokens, which sees the floor of what is counted here.
    core = Attention("a", 1, 1, 8, 8, window=window, stride=stride, topk_keys=topk)
    near = sum(min(t + 1, window) for t in range(s))
    far = sum(min((t + 1) / stride, topk) for t in range(s))
    assert float(core.pairs(s)) <= near + far
    assert float(core.pairs(s)) == pytest.approx(near + far, abs=s / stride)


def test_a_shared_weight_works_again_without_memory() -> None:
    wide, vocab = Part(64, 64, "hidden features"), Part(1000, 1000, "vocabulary", padded=True)
    shape = Shape(1, 128, 2, True)
    own, shared = Gemm("h", wide, (vocab,), "column"), SharedGemm("h", wide, (vocab,), "column")
    assert shared.forward(shape) == own.forward(shape)
    assert shared.backward(shape) == own.backward(shape)
    assert (shared.parameters(), shared.local_parameters(shape)) == (0, 0)
