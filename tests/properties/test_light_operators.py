"""Operators beside products and attention: ranks share work, tokens add to it, alone nothing is sent."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.indexer import Indexer
from meshwright.costmodels.offload import host_update_s
from meshwright.costmodels.operators import Boundary
from meshwright.costmodels.part import Part
from meshwright.costmodels.precision import PRECISIONS
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.reduction import PartialSum
from meshwright.costmodels.rows import Contraction, OnRows
from meshwright.costmodels.shared import SharedGemm
from meshwright.costmodels.vocabulary import Embedding
from meshwright.costmodels.work import Shape
from meshwright.hardware.catalogue import load_cluster

HIDDEN, COLUMNS = Part(64, 64, "hidden features"), Part(96, 96, "columns")
GEMM = Gemm("product", HIDDEN, (COLUMNS,), "column", saves_output=True)
INDEXER = Indexer("index", 4, 32, 16)
EMBEDDING = Embedding("tokens", Part(1000, 1000, "vocabulary", padded=True), 64, extra_rows=7)
BOUNDARIES = tuple(
    Boundary("edge", direction, 64, on=on) for direction in ("enter", "exit") for on in ("own", "context")
)
CONTRACTIONS = tuple(Contraction("pair", 1000.0, 48.0, 16, 16, 16, split=split) for split in (False, True))
PARTIAL = PartialSum("parts", 48)
OPERATORS = (
    INDEXER,
    replace(INDEXER, stride=4),
    EMBEDDING,
    *BOUNDARIES,
    *CONTRACTIONS,
    PARTIAL,
    OnRows(GEMM, 0.25),
    OnRows(PARTIAL, 0.25),
    SharedGemm("again", HIDDEN, (COLUMNS,), "column"),
)
powers = st.integers(0, 4).map(lambda n: 2**n)
operators = st.sampled_from(OPERATORS)


@st.composite
def shapes(draw):
    """Tokens and degrees; sequences are longer than the ranks that share one."""
    return Shape(
        draw(st.integers(1, 8)),
        256 * draw(st.integers(1, 32)),
        draw(powers),
        draw(st.integers(0, 1)),
        cp=draw(st.sampled_from([1, 2, 4])),
        vocab_multiple=draw(st.sampled_from([1, 128])),
        context_length=128 * draw(st.integers(0, 8)),
    )


def costs(op, shape):
    """Return every number that an operator tells of a pass."""
    works = [n for w in (*op.forward(shape), *op.backward(shape)) for n in (w.flops, w.bytes)]
    return [*works, *sent(op, shape), op.saved_bytes(shape), op.local_parameters(shape)]


def sent(op, shape):
    return [t.bytes for way in op.traffic(shape) for t in way]


@given(operators, shapes())
def test_a_rank_alone_sends_nothing(op, shape):
    assert not any(sent(op, replace(shape, tp=1)))


@given(operators, st.lists(shapes(), min_size=2, max_size=4))
def test_arrays_cost_what_their_entries_do(op, drawn):
    columns = {f.name: [getattr(s, f.name) for s in drawn] for f in fields(Shape)}
    arrays = Shape(**{k: None if v[0] is None else np.array(v) for k, v in columns.items()})
    together = [np.broadcast_to(cost, len(drawn)) for cost in costs(op, arrays)]
    apart = [costs(op, shape) for shape in drawn]
    assert pytest.approx(np.array(apart, dtype=float)) == np.array(together).T


@given(operators, shapes(), st.integers(2, 4))
def test_more_sequences_cost_as_many_times_and_longer_ones_no_less(op, shape, times):
    own, more, longer = (
        (sum(w.flops for w in op.forward(s)), op.saved_bytes(s), sum(sent(op, s)))
        for s in (
            shape,
            replace(shape, sequences=times * shape.sequences),
            replace(shape, sequence_length=times * shape.sequence_length),
        )
    )
    assert more == pytest.approx([times * cost for cost in own])
    assert all(after >= before for after, before in zip(longer, own, strict=True))


@given(shapes(), st.sampled_from([1, 4]))
def test_ranks_that_split_the_sequence_share_the_index(shape, stride):
    op, whole = replace(INDEXER, stride=stride), replace(shape, tp=1, cp=1)
    ranks = shape.cp * shape.sequence_split
    for one, alone in zip(
        (*op.forward(shape), *op.backward(shape)), (*op.forward(whole), *op.backward(whole)), strict=True
    ):
        assert ranks * one.flops == pytest.approx(alone.flops)
        assert ranks * one.bytes == pytest.approx(alone.bytes)
    assert ranks * op.saved_bytes(shape) == pytest.approx(op.saved_bytes(whole))


@given(shapes(), st.integers(1, 20_000))
def test_the_index_s_gradient_reaches_the_chosen_keys_alone(shape, topk):
    chosen, all_of_them = replace(INDEXER, topk=topk), replace(INDEXER, topk=shape.sequence_length)
    scores, most = (op.backward(shape)[0].flops for op in (chosen, all_of_them))
    assert scores <= most * (1 + 1e-9)
    # every earlier key chosen: two products of the forward one's size
    assert most == pytest.approx(2 * chosen.forward(shape)[0].flops)


@given(st.sampled_from(BOUNDARIES), shapes())
def test_a_split_sequence_sends_an_all_reduce_as_its_two_halves(op, shape):
    """Bytes of the gather and scatter are each those of the all-reduce that they replace."""
    ways = {}
    for split in (0, 1):
        forward, backward = replace(op, keeps=True).traffic(replace(shape, sequence_parallel=split))
        ways[split] = {t.collective: t.bytes for t in (*backward, *forward) if t.bytes or not split}
        ways[split] = {"all_gather": 0, "reduce_scatter": 0, "all_reduce": 0} | ways[split]
    assert ways[0]["all_gather"] == ways[0]["reduce_scatter"] == ways[1]["all_reduce"] == 0
    assert ways[1]["all_gather"] == ways[1]["reduce_scatter"] == ways[0]["all_reduce"]


@given(shapes())
def test_the_ranks_rows_cover_the_vocabulary_and_little_more(shape):
    rows = (EMBEDDING.local_parameters(shape) / 64 - EMBEDDING.extra_rows) * shape.tp
    assert 1000 <= rows < 1000 + shape.tp * shape.vocab_multiple
    alone = replace(shape, tp=1, vocab_multiple=1)
    assert EMBEDDING.local_parameters(alone) == EMBEDDING.parameters()
    tied = replace(EMBEDDING, tied=True)
    assert tied.parameters() == EMBEDDING.parameters() - 1000 * 64
    assert tied.local_parameters(shape) == EMBEDDING.local_parameters(shape)
    assert replace(EMBEDDING, trained=False).backward(shape) == ()


@given(shapes())
def test_partial_sums_are_reduced_once_each_way(shape):
    forward, backward = PARTIAL.traffic(shape)
    whole = shape.tokens * 48 * shape.element_bytes * (shape.tp > 1)
    assert forward == backward
    assert [(t.collective, t.bytes) for t in forward] == [("all_reduce", whole)]


@given(shapes(), st.booleans())
def test_a_shared_weight_is_work_again_and_nothing_else(shape, trained):
    own = replace(GEMM, trained=trained)
    again = SharedGemm(**{f.name: getattr(own, f.name) for f in fields(Gemm)})
    assert again.forward(shape) == own.forward(shape)
    assert again.backward(shape) == own.backward(shape)
    assert again.saved_bytes(shape) == own.saved_bytes(shape)
    assert again.parameters() == again.local_parameters(shape) == 0


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**11), st.sampled_from(["a", "b"]))
def test_a_step_on_the_host_takes_longer_with_every_byte(touched, moved, more, which):
    cluster = load_cluster("dgx-h100:1")
    seconds = float(host_update_s(cluster, touched, moved))
    longer = host_update_s(cluster, touched + more * (which == "a"), moved + more * (which == "b"))
    assert longer > seconds
    parts = host_update_s(cluster, touched, 0) + host_update_s(cluster, 0, moved)
    assert seconds == pytest.approx(float(parts))
    grid = host_update_s(cluster, np.array([[touched], [0]]), np.array([moved, 0]))
    assert grid[0, 0] == pytest.approx(seconds)
    assert grid[1, 1] == 0
    assert host_update_s(cluster, touched, moved, True) >= seconds * (1 - 1e-12)


@pytest.mark.parametrize("recipe", PRECISIONS.values(), ids=list(PRECISIONS))
@given(copies=st.integers(0, 4))
def test_a_cast_writes_every_copy_at_the_product_s_width(recipe, copies):
    bytes_moved = recipe.cast_bytes(copies)
    if recipe.low_compute is None:
        assert bytes_moved == 0
    else:
        assert recipe.cast_bytes(copies + 1) - bytes_moved == pytest.approx(recipe.product_bytes)
        assert recipe.cast_bytes(0) >= recipe.element_bytes  # it reads the tensor at least once
