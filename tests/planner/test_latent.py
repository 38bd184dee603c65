"""Latent, sparse and compressed attention: products of the papers, splits that add up, keys that are few."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.operators import Boundary, LayerKind
from meshwright.costmodels.work import Shape
from meshwright.planner.blocks import block_kind, decoder_graph
from meshwright.planner.compressed import CompressedAttention
from meshwright.planner.decoder import DecoderSpec, Sublayer
from meshwright.planner.feeds import Mlp
from meshwright.planner.latent import LatentAttention, SparseIndex
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer

SPEC = DecoderSpec(hidden=1024, layers=2, heads=8, kv_heads=8, head_dim=96, ffn=2048, vocab=1000)
LATENT = LatentAttention(128, 64, 32, 64, 256)
INDEX = SparseIndex(4, 32, 256)
COMPRESSED = CompressedAttention(256, 64, 4, 48, 16, stride=4, index=INDEX)


def kind(mixer: Sublayer, spec: DecoderSpec = SPEC) -> LayerKind:
    return block_kind(spec, Layer(mixer, Mlp()))


def flops(of: LayerKind, s: int, **split: int) -> float:
    shape = Shape(1, s, split.get("tp", 1), "tp" in split)
    return sum(float(w.flops) for op in of.operators for w in op.forward(shape))


@pytest.mark.parametrize("q_rank", [None, 256])
def test_flops_are_two_a_weight_and_those_of_the_core(q_rank: int | None) -> None:
    s, mixer = 512, replace(LATENT, q_rank=q_rank)
    norms = 2 * 1024 + 128 + (q_rank or 0)
    core = 8 * 2 * (96 + 64) * s * (s + 1) / 2
    assert flops(kind(mixer), s) == 2 * s * (kind(mixer).parameters() - norms) + core


@pytest.mark.parametrize(
    "mixer", [LATENT, replace(LATENT, q_rank=None), replace(LATENT, index=INDEX), COMPRESSED]
)
def test_work_and_memory_over_tp_ranks_add_up_to_the_whole(mixer: Sublayer) -> None:
    # With sequence parallelism the down-projections split over the tokens.
    spec = replace(SPEC, kv_heads=1, head_dim=64) if isinstance(mixer, CompressedAttention) else SPEC
    whole, part = Shape(1, 1024, 1, False), Shape(1, 1024, 4, True)
    block = kind(mixer, spec)
    assert flops(block, 1024, tp=4) * 4 == pytest.approx(flops(block, 1024))
    kept = [sum(float(op.saved_bytes(s)) for op in block.operators) for s in (whole, part)]
    assert kept[1] * 4 == pytest.approx(kept[0], rel=1e-9)


def test_only_the_narrow_latents_are_gathered() -> None:
    widths = {op.name: op.features for op in kind(LATENT).operators if isinstance(op, Boundary)}
    assert widths["attention_enter"] == 256 + 128 + 32
    direct = {
        op.name: op.features
        for op in kind(replace(LATENT, q_rank=None)).operators
        if isinstance(op, Boundary)
    }
    assert (direct["attention_enter"], direct["latent_enter"]) == (1024, 128 + 32)


def test_an_indexer_makes_long_sequences_cheaper_and_short_ones_dearer() -> None:
    sparse = replace(LATENT, index=INDEX)
    assert flops(kind(sparse), 128) > flops(kind(LATENT), 128)
    assert flops(kind(sparse), 65_536) < 0.5 * flops(kind(LATENT), 65_536)


def test_a_shared_index_has_neither_products_nor_scores_of_its_own() -> None:
    own, shared = (kind(replace(LATENT, index=replace(INDEX, shared=x))) for x in (False, True))
    assert own.parameters() - shared.parameters() == 256 * 4 * 32 + 1024 * 32 + 1024 * 4 + 2 * 32
    assert shared.parameters() == kind(LATENT).parameters()
    assert flops(shared, 4096) < flops(own, 4096)


@given(st.sampled_from([256, 1024, 4096, 65_536]))
def test_compressed_entries_are_fewer_the_longer_their_stride(s: int) -> None:
    spec = replace(SPEC, kv_heads=1)
    sliding, heavy, light = (kind(replace(COMPRESSED, index=None, stride=n), spec) for n in (None, 128, 16))

    def core(of: LayerKind) -> float:
        op = next(op for op in of.operators if op.name == "attention")
        return float(op.forward(Shape(1, s, 1, False))[0].flops)

    assert core(sliding) < core(heavy) < core(light)
    assert core(heavy) - core(sliding) == pytest.approx((core(light) - core(sliding)) / 8)


def test_streams_of_hyper_connections_widen_the_residual_alone() -> None:
    one, four = (decoder_graph(replace(SPEC, residual_streams=n), "g") for n in (1, 4))
    assert [int(k.hidden) for k in four.kinds] == [4096, 4096, 1024]
    mixing = 24 * 4096 + 24 + 3
    assert four.parameters - one.parameters == 2 * 2 * mixing + 4 * 4096 + 4 + 1


def test_chunks_sinks_gates_and_rotation_are_what_they_say() -> None:
    def difference(mixer: SelfAttention) -> int:
        return kind(mixer).parameters() - kind(SelfAttention()).parameters()

    assert difference(SelfAttention(sinks=True)) == 8
    assert difference(SelfAttention(gate="feature")) == 1024 * 8 * 96
    assert difference(SelfAttention(gate="head")) == 1024 * 8
    assert difference(SelfAttention(chunk=64)) == difference(SelfAttention(rotary=False)) == 0
    assert flops(kind(SelfAttention(chunk=64)), 4096) < flops(kind(SelfAttention(64)), 4096)
    assert flops(kind(SelfAttention(chunk=4096)), 4096) == flops(kind(SelfAttention()), 4096)
