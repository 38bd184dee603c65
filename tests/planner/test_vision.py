"""Vision towers: streams, windows, gates and what patches cost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.work import Shape
from meshwright.planner.vision import PATCHES, WINDOWS, VisionSpec, streams, tower, vision_norm

SPEC = VisionSpec(hidden=64, layers=6, heads=4, head_dim=16, ffn=128, patch_features=588, patches=256)


def test_patches_are_one_product_a_patch() -> None:
    patches, _ = tower(SPEC)
    shape = Shape(1, 256, 1, 0)
    cost = sum(float(w.flops) for op in patches.layers[0].operators for w in op.forward(shape))
    assert cost == 2 * 256 * 588 * 64


def test_class_token_is_a_token_more_in_each_image() -> None:
    (stream,) = streams(replace(SPEC, extra_tokens=1), 64, 4.0)
    assert (stream.ratio * stream.block + stream.extra, stream.source) == (257, "image")


def test_windowed_layers_work_on_their_own_stream() -> None:
    spec = replace(SPEC, window=16, full_layers=(2, 5))
    _, blocks = tower(spec)
    assert [kind.stream for kind in blocks.layers] == [WINDOWS, WINDOWS, PATCHES] * 2
    assert len(set(blocks.layers)) == 2
    whole, windows = streams(spec, None, 4.0)
    assert (whole.block, windows.block, windows.ratio) == (None, 4, 4.0)
    assert {kind.parameters() for kind in blocks.layers} == {blocks.layers[0].parameters()}


@given(st.integers(1, 12))
def test_windows_conserve_tokens_and_save_scores(windows: int) -> None:
    (core,) = [op for op in tower(SPEC)[1].layers[0].operators if isinstance(op, Attention)]
    whole, split = Shape(1, 16 * windows, 1, 0), Shape(windows, 16, 1, 0)
    assert whole.tokens == split.tokens
    cost = [float(core.forward(shape)[0].flops) for shape in (whole, split)]
    assert cost[0] == pytest.approx(windows * cost[1])


def test_gated_layers_have_two_weights_more() -> None:
    _, blocks = tower(replace(SPEC, gated_layers=2))
    weights = [kind.parameters() for kind in blocks.layers]
    assert weights[-1] - weights[0] == 2
    assert weights == [weights[0]] * 4 + [weights[-1]] * 2


def test_norm_of_merged_patches_has_the_weights_of_one() -> None:
    one, four = vision_norm(SPEC, "n"), vision_norm(SPEC, "n", merged=4)
    assert one.parameters() == four.parameters() == 2 * 64
    moved = [float(op.forward(Shape(1, n, 1, 0))[0].bytes) for op, n in ((one, 256), (four, 64))]
    assert moved[0] == moved[1]
