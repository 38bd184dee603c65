"""Layers are pairs of mixer and feed: equal pairs are one kind, and names tell what differs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.blocks import block_kind, decoder_graph
from meshwright.planner.decoder import DecoderSpec, Sublayer, repeated
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.latent import LatentAttention, SparseIndex
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer, kind_names, layer_behind, layers_of

SPEC = DecoderSpec(hidden=512, layers=6, heads=8, kv_heads=4, head_dim=64, ffn=1024, vocab=1000)
LATENT = LatentAttention(64, 32, 16, 32)
MIXERS: list[Sublayer | None] = [SelfAttention(), SelfAttention(512), SelfAttention(kv_heads=2), LATENT, None]
FEEDS: list[Sublayer | None] = [Mlp(), Mlp(96), Experts(8, 2, 256), None]


def test_the_flat_fields_are_attention_and_mlp() -> None:
    assert set(layers_of(SPEC)) == {Layer(SelfAttention(), Mlp())}
    said = replace(SPEC, mixers=(SelfAttention(),), feeds=(Mlp(1024),))
    flat, explicit = decoder_graph(SPEC, "g"), decoder_graph(said, "g")
    assert flat.kinds == explicit.kinds


@given(
    st.lists(st.sampled_from(MIXERS), min_size=1, max_size=6),
    st.lists(st.sampled_from(FEEDS), min_size=1, max_size=6),
)
def test_kinds_are_the_distinct_pairs_and_the_graph_is_their_sum(
    mixers: list[Sublayer | None], feeds: list[Sublayer | None]
) -> None:
    spec = replace(SPEC, mixers=tuple(mixers), feeds=tuple(feeds))
    pairs = list(zip(repeated(mixers, 6), repeated(feeds, 6), strict=True))
    graph = decoder_graph(spec, "g")
    blocks = graph.kinds[1:-1]
    assert len(blocks) == len(set(pairs))
    assert len({k.name for k in blocks}) == len(blocks)
    assert all(k.name.startswith("decoder") for k in blocks)
    each = sum(block_kind(spec, Layer(*pair)).parameters() for pair in pairs)
    assert graph.parameters == each + graph.kinds[0].parameters() + graph.kinds[-1].parameters()


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ([(SelfAttention(), Mlp())], ["decoder"]),
        ([(SelfAttention(), Mlp()), (SelfAttention(), Experts(8, 2, 64))], ["decoder.dense", "decoder.moe"]),
        ([(SelfAttention(8), Mlp()), (SelfAttention(), Mlp())], ["decoder.sliding", "decoder.global"]),
        (
            [(SelfAttention(), Mlp()), (SelfAttention(rotary=False), Mlp())],
            ["decoder.attention", "decoder.attention.nope"],
        ),
        ([(SelfAttention(), None), (None, Mlp())], ["decoder.attention", "decoder.dense"]),
        ([(SelfAttention(), Mlp(64)), (SelfAttention(), Mlp(96))], ["decoder.dense64", "decoder.dense96"]),
        ([(SelfAttention(), Mlp()), (None, None)], ["decoder.attention.dense", "decoder.empty"]),
        (
            [(LATENT, Mlp()), (replace(LATENT, index=SparseIndex(4, 8, 16)), Experts(8, 2, 64))],
            ["decoder.latent.dense", "decoder.latent.sparse.moe"],
        ),
        (
            [(SelfAttention(head_dim=8), Mlp()), (SelfAttention(head_dim=16), Mlp())],
            ["decoder.attention-1", "decoder.attention-2"],
        ),
    ],
)
def test_names_tell_what_differs(
    layers: list[tuple[Sublayer | None, Sublayer | None]], names: list[str]
) -> None:
    assert list(kind_names([Layer(*pair) for pair in layers])) == names


def test_a_missing_sublayer_leaves_out_its_norm_and_residual() -> None:
    alone = [op.name for op in block_kind(SPEC, Layer(None, Mlp())).operators]
    assert alone[0] == "pre_mlp_norm"
    assert sum("residual" in name for name in alone) == 1
    assert block_kind(SPEC, Layer(None, None)).operators == ()


def test_behind_the_last_layer_is_the_last_again_unless_the_pattern_says_more() -> None:
    moe = Experts(8, 2, 256)
    assert layer_behind(replace(SPEC, feeds=(Mlp(), *(moe,) * 5))).feed == moe
    assert layer_behind(replace(SPEC, feeds=(*(moe,) * 6, Mlp()))).feed == Mlp()
    assert layer_behind(SPEC) == Layer(SelfAttention(), Mlp())
