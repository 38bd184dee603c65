"""Encoder blocks: what the norm's place, a context and a window change, and what they do not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.recompute import saved_bytes
from meshwright.costmodels.work import Shape
from meshwright.planner.encoders import BlockSpec, EmbeddingSpec, block_kind, embedding_kind

SPEC = BlockSpec(hidden=64, heads=4, head_dim=16, ffn=256)
SHAPE = Shape(sequences=2, sequence_length=48, tp=1, sequence_parallel=0, context_length=80)


def flops(kind: LayerKind, shape: Shape = SHAPE) -> float:
    return sum(float(work.flops) for op in kind.operators for work in op.forward(shape))


def flops_of(kind: LayerKind, name: str, shape: Shape = SHAPE) -> float:
    (op,) = [op for op in kind.operators if op.name == name]
    return sum(float(work.flops) for work in op.forward(shape))


def block(spec: BlockSpec) -> LayerKind:
    return block_kind(spec, "block")


def test_bert_layer_has_the_parameters_of_the_paper() -> None:
    # BERT-large (arXiv 1810.04805): 24 layers of 12 h^2 + 13 h weights.
    large = BlockSpec(hidden=1024, heads=16, head_dim=64, ffn=4096, place="post")
    assert block(large).parameters() == 12 * 1024**2 + 13 * 1024


def test_encoder_block_costs_24_h_squared_and_4_s_h_a_token() -> None:
    h, s = SPEC.hidden, SHAPE.sequence_length
    assert flops(block(SPEC)) == SHAPE.tokens * (24 * h**2 + 4 * s * h)


def test_causal_attention_costs_half_and_a_window_less() -> None:
    full = flops_of(block(SPEC), "attention")
    causal = flops_of(block(replace(SPEC, causal=True)), "attention")
    s = SHAPE.sequence_length
    assert causal == pytest.approx(full * (s + 1) / (2 * s))
    near = [flops_of(block(replace(SPEC, window=w)), "attention") for w in (1, 5, 20, 48, 100)]
    assert near == sorted(near)
    assert near[0] == full / s
    assert near[-1] == near[-2] == full


def test_place_of_norms_moves_no_weight_and_keeps_as_much() -> None:
    pre, post = block(SPEC), block(replace(SPEC, place="post"))
    assert pre.parameters() == post.parameters()
    # Each keeps the layer's input, one sum and two other tensors of the stream's width.
    assert saved_bytes(pre, "none", SHAPE) == saved_bytes(post, "none", SHAPE)
    assert post.operators[-1].name == "mlp_norm"
    assert pre.operators[0].name == "pre_attention_norm"


def test_norms_on_both_sides_add_two() -> None:
    both = replace(SPEC, place="both", norm_bias=False)
    assert block(both).parameters() - block(replace(SPEC, norm_bias=False)).parameters() == 2 * SPEC.hidden


def test_keys_without_bias_are_a_product_of_their_own() -> None:
    whisper = block(replace(SPEC, qkv_biases=(True, False, True)))
    assert block(SPEC).parameters() - whisper.parameters() == SPEC.hidden
    names = [op.name for op in whisper.operators if isinstance(op, Gemm)]
    assert names == ["qkv_qv", "qkv_k", "out", "up", "down"]
    assert flops(whisper) == flops(block(SPEC))


def test_cross_attention_adds_an_attention_sub_block() -> None:
    cross = block(replace(SPEC, context=64))
    added = cross.parameters() - block(SPEC).parameters()
    assert added == 4 * (64**2 + 64) + 2 * 64
    assert cross.carries == 64
    assert block(SPEC).carries == 0


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 100))
def test_cross_attention_reads_the_context_and_only_it(short: int, more: int, width: int) -> None:
    kind = block(replace(SPEC, context=width))
    near, far = (replace(SHAPE, context_length=s) for s in (short, short + more))
    # Keys, values and scores grow in proportion; everything else does not depend on the context.
    keys = 2 * 2 * width * 64
    scores = 4 * SHAPE.sequence_length * 64
    assert flops(kind, far) - flops(kind, near) == pytest.approx(
        SHAPE.sequences * more * (keys + scores), rel=1e-9
    )
    own = ("qkv", "attention", "out", "cross_q", "cross_out", "up", "down")
    assert all(flops_of(kind, name, near) == flops_of(kind, name, far) for name in own)


@pytest.mark.parametrize("sequence_parallel", [0, 1])
def test_context_enters_the_tensor_parallel_region_as_often_as_it_is_read(sequence_parallel: int) -> None:
    kind = block(replace(SPEC, context=32))
    shape = replace(SHAPE, tp=2, sequence_parallel=sequence_parallel)
    (entry,) = [op for op in kind.operators if op.name == "context_enter"]
    forward, backward = (sum(float(t.bytes) for t in each) for each in entry.traffic(shape))
    tensor = SHAPE.sequences * SHAPE.context_length * 32 * 2
    # The keys' input is gathered if it is split; its gradient is reduced in either case.
    assert forward == tensor * sequence_parallel
    assert backward == tensor * (1 + sequence_parallel)


def test_cross_attention_alone_needs_no_own_keys() -> None:
    alone = block(replace(SPEC, context=64, self_attention=False))
    cores = [op for op in alone.operators if isinstance(op, Attention)]
    assert [(op.cross, op.causal) for op in cores] == [(True, False)]
    assert alone.parameters() == block(SPEC).parameters()


@given(st.sampled_from((1, 2, 4)))
def test_tensor_parallel_ranks_share_the_work_evenly(tp: int) -> None:
    for spec in (SPEC, replace(SPEC, gated=True, rotary=True), replace(SPEC, context=32, causal=True)):
        split = flops(block(spec), replace(SHAPE, tp=tp))
        assert split * tp == pytest.approx(flops(block(spec)))


def test_gated_mlp_has_a_third_product() -> None:
    gated = block(replace(SPEC, gated=True, mlp_bias=False))
    assert gated.parameters() - block(replace(SPEC, mlp_bias=False)).parameters() == 64 * 256


def test_embedding_counts_tables_norm_and_projection() -> None:
    spec = EmbeddingSpec(vocab=100, hidden=64, width=16, position_rows=20, type_rows=2, norm=True)
    assert embedding_kind(spec).parameters() == (100 + 20 + 2 + 2) * 16 + 16 * 64 + 64


def test_tied_embedding_counts_its_positions_only_but_occupies_memory() -> None:
    own = embedding_kind(EmbeddingSpec(vocab=100, hidden=64, position_rows=20))
    tied = embedding_kind(EmbeddingSpec(vocab=100, hidden=64, position_rows=20, tied=True))
    assert own.parameters() - tied.parameters() == 100 * 64
    held = [sum(float(op.local_parameters(SHAPE)) for op in kind.operators) for kind in (own, tied)]
    assert held[0] == held[1]
