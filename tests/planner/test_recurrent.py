"""Mixers with a state: what they consist of, what tensor parallelism does to them, how a stack is named."""

from dataclasses import replace

import pytest

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import Boundary
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.reduction import PartialSum
from meshwright.costmodels.scan import ChunkedScan
from meshwright.costmodels.work import Shape
from meshwright.planner.block_sparse import BlockSparseAttention
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.gated_mixers import RecurrentBlock, ShortConvolution, SquareProduct
from meshwright.planner.linear_attention import GatedDeltaNet, KimiDelta, LightningAttention
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.recurrent import Beside, Mamba, Mamba2

SPEC = DecoderSpec(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=256)
MIXERS = (
    Mamba(128, 8, 4),
    Mamba(128, 8, 4, norms="weighted"),
    Mamba2(8, 16, 2, 32),
    GatedDeltaNet(2, 4, 16, 16),
    KimiDelta(4, 16),
    LightningAttention(4, 16),
    RecurrentBlock(64, 4),
    ShortConvolution(3),
    SquareProduct("attention"),
    Beside((SelfAttention(), Mamba2(8, 16, 2, 32))),
)
ONE, PAIR = Shape(1, 256, 1, 0), Shape(1, 256, 2, 1)


def parameters(mixer):
    return sum(op.parameters() for op in mixer.operators(SPEC))


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda m: m.detail)
def test_a_mixer_enters_and_leaves_the_tensor_region_once(mixer):
    directions = [op.direction for op in mixer.operators(SPEC) if isinstance(op, Boundary)]
    assert directions == ["enter", "exit"]


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda m: m.detail)
def test_two_ranks_share_the_work_and_hold_the_weights_once(mixer):
    # What both hold whole: norms, the low-rank products of Kimi, biases behind a row-parallel product.
    for op in mixer.operators(SPEC):
        whole, half = (sum(float(w.flops) for w in op.forward(s)) for s in (ONE, PAIR))
        replicated = isinstance(op, Gemm) and op.shard == "replicated"
        assert half * (1 if replicated else 2) == pytest.approx(whole)
        assert op.parameters() <= 2 * op.local_parameters(PAIR) <= 2 * op.parameters()


def test_mamba_has_the_parameters_of_its_shapes():
    d, n, r, h = 128, 8, 4, 64
    want = h * 2 * d + d * 4 + d + d * (r + 2 * n) + r * d + d + d * n + d + d * h
    assert parameters(Mamba(d, n, r)) == want
    assert parameters(Mamba(d, n, r, norms="plain")) == want
    assert parameters(Mamba(d, n, r, norms="weighted")) == want + r + 2 * n


def test_mambas_selection_is_summed_over_ranks_because_its_inputs_are_split():
    (total,) = (op for op in Mamba(128, 8, 4).operators(SPEC) if isinstance(op, PartialSum))
    assert total.features == 4 + 2 * 8
    assert total.traffic(PAIR)[0][0].bytes == 256 * 20 * 2


def test_mamba2_has_the_parameters_of_its_shapes():
    inner, groups, heads, h = 128, 2 * 32, 8, 64
    conv = (inner + 2 * groups) * (4 + 1)
    want = h * (2 * inner + 2 * groups + heads) + conv + 3 * heads + inner + inner * h
    assert parameters(Mamba2(8, 16, 2, 32)) == want
    assert parameters(Mamba2(8, 16, 2, 32, norm=False)) == want - inner
    assert parameters(Mamba2(8, 16, 2, 32, out_bias=True)) == want + h


def test_mixers_side_by_side_cost_both_and_one_pair_of_boundaries():
    one, other = SelfAttention(), Mamba2(8, 16, 2, 32)
    assert parameters(Beside((one, other))) == parameters(one) + parameters(other)
    assert Beside((one, other)).label == "attention+mamba2"


def test_lightning_attention_is_a_chunked_scan_with_a_key_for_each_head():
    (scan,) = (op for op in LightningAttention(4, 16, 64).operators(SPEC) if isinstance(op, ChunkedScan))
    assert (scan.groups, scan.state, scan.chunk, scan.parameters()) == (4, 16, 64, 0)


def test_block_sparse_attention_sees_local_blocks_and_a_share_of_the_rest():
    local, stride, length = 256, 8, 4096
    ops = BlockSparseAttention(local, stride).operators(SPEC)
    (core,) = (op for op in ops if isinstance(op, Attention))
    seen = sum(min(t, local) + max(0, t - local) / stride for t in range(1, length + 1))
    assert core.pairs(length) == pytest.approx(seen, rel=0.01)
    (dense,) = (op for op in BlockSparseAttention(256, 1).operators(SPEC) if isinstance(op, Attention))
    assert dense.pairs(length) == length * (length + 1) / 2


def test_a_stack_of_several_mixers_names_its_kinds_by_them():
    spec = replace(SPEC, layers=4, mixers=(MIXERS[0], SelfAttention()), feeds=())
    graph = decoder_graph(spec, "drawn")
    assert [kind.name for kind in graph.kinds] == ["embedding", "decoder.mamba", "decoder.attention", "head"]
    assert graph.layer_kinds == (0, 1, 2, 1, 2, 3)


def test_a_stack_without_feeds_has_one_norm_a_layer():
    graph = decoder_graph(replace(SPEC, mixers=(MIXERS[2],), feeds=(None,)), "drawn")
    assert graph.kinds[1].parameters() == parameters(MIXERS[2]) + SPEC.hidden


def test_layers_with_and_without_a_mixer_are_told_apart_by_name():
    spec = replace(SPEC, layers=2, mixers=(SelfAttention(), None), feeds=())
    names = [kind.name for kind in decoder_graph(spec, "drawn").kinds[1:-1]]
    assert names == ["decoder.attention.dense", "decoder.dense"]


def test_a_model_without_attention_and_feeds_tells_neither_heads_nor_ffn():
    given = decoder_graph(replace(SPEC, mixers=(MIXERS[0],), feeds=(None,)), "drawn").attributes
    assert (given["heads"], given["kv_heads"], given["ffn"]) == (0, 0, 0)
    given = decoder_graph(replace(SPEC, mixers=(MIXERS[0], SelfAttention())), "drawn").attributes
    assert (given["heads"], given["kv_heads"], given["ffn"]) == (4, 2, 128)
