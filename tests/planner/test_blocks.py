"""Blocks keep, move and multiply what the papers say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.recompute import input_bytes, saved_bytes
from meshwright.costmodels.work import Shape
from meshwright.planner.blocks import block_kind, decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.feeds import Mlp
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer
from tests.planner.graphs import dag

USUAL = Layer(SelfAttention(), Mlp())
SPEC = DecoderSpec(hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256)
GPT = DecoderSpec(
    hidden=6144,
    layers=48,
    heads=64,
    kv_heads=64,
    head_dim=96,
    ffn=4 * 6144,
    vocab=51200,
    gated=False,
    norm_bias=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    positions="learned",
    position_rows=2048,
    tied=True,
    attention_dropout=0.1,
    hidden_dropout=0.1,
)


def unfused(kind: LayerKind) -> LayerKind:
    ops = (replace(op, flash=False) if isinstance(op, Attention) else op for op in kind.operators)
    return replace(kind, operators=tuple(ops))


def kept(kind: LayerKind, shape: Shape) -> float:
    """Return what the operators keep, and the layer's input, which none of them does."""
    operators = sum(float(op.saved_bytes(shape)) for op in kind.operators)
    return operators + float(input_bytes(kind, shape))


@given(st.integers(1, 4), st.sampled_from([512, 2048, 8192]))
def test_gpt_block_keeps_34_sbh_and_5_a_s_squared_b(b: int, s: int) -> None:
    # arXiv 2205.05198, equation 1.
    h, a = GPT.hidden, GPT.heads
    expected = 34 * s * b * h + 5 * a * s**2 * b
    assert kept(unfused(block_kind(GPT, USUAL)), Shape(b, s, 1, False)) == expected


@pytest.mark.parametrize("t", [2, 4, 8])
def test_gpt_block_splits_as_the_paper_says(t: int) -> None:
    # arXiv 2205.05198, equations 2 (tensor parallel: 10 + 24/t) and 4 (with sequence parallel: 34/t).
    h, a, s, b = GPT.hidden, GPT.heads, 2048, 2
    kind = unfused(block_kind(GPT, USUAL))
    scores = 5 * a * s / (h * t)
    assert kept(kind, Shape(b, s, t, True)) == pytest.approx(s * b * h * (34 / t + scores))
    assert kept(kind, Shape(b, s, t, False)) == pytest.approx(s * b * h * (10 + 24 / t + scores))


@given(st.integers(1, 3), st.sampled_from([1024, 4096]), st.sampled_from([1, 2, 4, 8]))
def test_swiglu_block_with_grouped_queries_and_flash(b: int, s: int, t: int) -> None:
    h, a, g, d, f = SPEC.hidden, SPEC.heads, SPEC.kv_heads, SPEC.head_dim, SPEC.ffn
    expected = b * s * (8 * h + 4 * a * d + 4 * g * d + 6 * f + 4 * a) / t
    assert kept(block_kind(SPEC, USUAL), Shape(b, s, t, True)) == expected


def test_selective_recompute_of_gpt_frees_scores_norms_and_activation() -> None:
    # The scores' 5 a s^2 b as in arXiv 2205.05198, and the outputs of two norms (4) and of GELU (8).
    h, s, b = GPT.hidden, 2048, 1
    kind, shape = unfused(block_kind(GPT, USUAL)), Shape(1, 2048, 1, False)
    assert float(saved_bytes(kind, "selective", shape)) == s * b * h * (34 - 4 - 8)


def test_flops_of_a_gpt_block_are_24_b_s_h_squared_and_attention() -> None:
    # arXiv 2104.04473, appendix: 24 b s h^2 + 4 b s^2 h, the attention halved for causality (s + 1 pairs).
    h, s = GPT.hidden, 2048
    work = [w for op in block_kind(GPT, USUAL).operators for w in op.forward(Shape(1, s, 1, False))]
    assert sum(w.flops for w in work) == 24 * s * h**2 + 2 * s * (s + 1) * h


def test_parameters_of_megatron_models() -> None:
    # arXiv 2104.04473, equation 2: 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), and the final norm.
    h, layers, v, s = GPT.hidden, GPT.layers, GPT.vocab, 2048
    expected = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h)) + 2 * h
    assert decoder_graph(GPT, "gpt").parameters == round(expected)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        GPT,
        replace(SPEC, parallel=True, norms=("pre_attention",)),
        replace(SPEC, parallel=True),
        replace(SPEC, norms=("pre_attention", "post_attention", "pre_mlp", "post_mlp"), qk_norm="head"),
    ],
    ids=["llama", "gpt", "gptj", "neox", "gemma"],
)
def test_work_and_memory_of_a_block_over_tp_ranks_add_up_to_the_whole(spec: DecoderSpec) -> None:
    kind, t = block_kind(spec, USUAL), 8
    whole, part = Shape(1, 2048, 1, False), Shape(1, 2048, t, True)
    flops = [sum(float(w.flops) for op in kind.operators for w in op.forward(s)) for s in (whole, part)]
    assert flops[1] * t == pytest.approx(flops[0])
    assert kept(kind, part) * t == pytest.approx(kept(kind, whole))


def test_parallel_blocks_need_fewer_collectives() -> None:
    def exits(spec: DecoderSpec) -> int:
        names = [op.name for op in block_kind(spec, USUAL).operators]
        return sum(name.endswith("exit") for name in names)

    assert (exits(SPEC), exits(replace(SPEC, parallel=True))) == (2, 1)


def test_parallel_block_keeps_no_sum_in_the_middle() -> None:
    one_norm = replace(SPEC, parallel=True, norms=("pre_attention",))
    shape = Shape(1, 1024, 1, False)
    saved = kept(block_kind(SPEC, USUAL), shape) - kept(block_kind(one_norm, USUAL), shape)
    assert saved == 1024 * 2 * 2 * SPEC.hidden  # the sum and the second norm's output


def test_windows_make_kinds_and_only_attention_differs() -> None:
    graph = decoder_graph(replace(SPEC, layers=4, windows=(512, None)), "g")
    assert [graph.kinds[k].name for k in graph.layer_kinds] == [
        "embedding",
        "decoder.sliding",
        "decoder.global",
        "decoder.sliding",
        "decoder.global",
        "head",
    ]
    sliding, whole = graph.kinds[1], graph.kinds[2]
    assert [a == b for a, b in zip(sliding.operators, whole.operators, strict=True)].count(False) == 1
    assert sliding.parameters() == whole.parameters()


def test_two_windows_have_two_names() -> None:
    graph = decoder_graph(replace(SPEC, layers=3, windows=(512, 1024, None)), "g")
    assert [k.name for k in graph.kinds[1:4]] == [
        "decoder.sliding512",
        "decoder.sliding1024",
        "decoder.global",
    ]


def test_window_longer_than_the_sequence_changes_nothing() -> None:
    shape = Shape(1, 1024, 1, False)
    wide, full = (block_kind(SPEC, Layer(SelfAttention(w), Mlp())).operators for w in (4096, None))
    flops = [[w.flops for op in ops for w in op.forward(shape)] for ops in (wide, full)]
    assert flops[0] == flops[1]


def test_tied_head_counts_once_but_its_bias_counts() -> None:
    tied = replace(SPEC, tied=True)
    untied, plain = decoder_graph(SPEC, "u").parameters, decoder_graph(tied, "t").parameters
    assert untied - plain == SPEC.vocab * SPEC.hidden
    assert decoder_graph(replace(tied, head_bias=True), "b").parameters - plain == SPEC.vocab
    assert decoder_graph(tied, "t").copied_parameters == SPEC.vocab * SPEC.hidden


def test_embedding_narrower_than_the_stream_is_projected_in_and_out() -> None:
    narrow = replace(SPEC, embedding_dim=512)
    graph = decoder_graph(narrow, "opt-350m-like")
    change = 2 * SPEC.vocab * (SPEC.hidden - 512) - 2 * 512 * SPEC.hidden
    assert decoder_graph(SPEC, "x").parameters - graph.parameters == change


def test_what_the_head_multiplies_is_kept_for_its_weights_gradient() -> None:
    """A narrow head reads the projection's output, not the norm's: 512 features of 2 bytes a token."""
    shape = Shape(1, 1024, 1, False)
    wide, narrow = (
        decoder_graph(s, "g").kinds[-1]
        for s in (replace(SPEC, vocab=1000), replace(SPEC, vocab=1000, embedding_dim=512))
    )
    saved = [float(saved_bytes(kind, "none", shape)) for kind in (wide, narrow)]
    assert saved[1] - saved[0] == 1024 * 512 * 2


def test_layer_graph_is_a_chain_from_embedding_to_head() -> None:
    graph = decoder_graph(GPT, "gpt")
    layers = dag(graph)
    degrees = sorted(dict(layers.out_degree()).values())
    assert degrees == [0] + [1] * (GPT.layers + 1)
    assert layers.nodes[0]["role"] == "embedding"
    assert layers.nodes[GPT.layers + 1]["role"] == "head"
    assert graph.tied == ((0, GPT.layers + 1),)


def test_parts_name_what_tensor_parallelism_splits() -> None:
    parts = {p.what: p.units for p in decoder_graph(SPEC, "x").parts}
    assert parts == {"vocabulary": 128256, "attention heads": 32, "key/value heads": 8, "ffn columns": 14336}


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 64), st.booleans(), st.booleans())
def test_parameters_are_those_of_the_products_and_norms(
    g: int, q: int, d: int, gated: bool, bias: bool
) -> None:
    h, f, v = 8 * d, 24 * d, 1000
    spec = DecoderSpec(
        hidden=h,
        layers=3,
        heads=g * q,
        kv_heads=g,
        head_dim=d,
        ffn=f,
        vocab=v,
        gated=gated,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )
    wide, narrow, branches = g * q * d, g * d, 1 + gated
    products = 2 * h * wide + 2 * h * narrow + (1 + branches) * h * f
    biases = bias * (wide + 2 * narrow + h + branches * f + h)
    assert decoder_graph(spec, "x").parameters == 3 * (products + biases + 2 * h) + h + 2 * v * h


def test_only_products_and_attention_compute() -> None:
    for kind in decoder_graph(GPT, "gpt").kinds:
        for op in kind.operators:
            flops = sum(float(w.flops) for w in op.forward(Shape(1, 128, 1, False)))
            assert (flops > 0) == isinstance(op, Gemm | Attention)


def test_prefix_counts_tell_the_layers_of_each_kind_before_a_cut() -> None:
    graph = decoder_graph(replace(SPEC, layers=5, windows=(512, 512, None)), "g")
    counts = graph.prefix_counts
    assert counts.shape == (graph.num_layers + 1, len(graph.kinds))
    assert counts[0].sum() == 0
    assert counts[3].tolist() == [1, 2, 0, 0]
    assert counts[-1].tolist() == graph.kind_counts.tolist() == [1, 4, 1, 1]
