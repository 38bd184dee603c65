"""What is alive in a layer's backward pass: bounds, growth, and a layer of three operators by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.alive import HOLDERS, fullest_bytes
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.moe import Exchange, ExpertActivation
from meshwright.costmodels.operators import LayerKind, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm, Product
from meshwright.costmodels.profiles import sourced_profile
from meshwright.costmodels.recompute import MODES, input_bytes, mode_bytes, saved_by_operator
from meshwright.costmodels.work import Shape
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.importers import load_model, preset_names
from meshwright.planner.pieces import wide
from tests.strategies import decoders, software, work_shapes

H, F, TOKENS = 8, 32, 16
INNER = Part(F, F, "ffn columns")
UP = Gemm("up", wide(H), (INNER,), "column", saves_output=True)
ACT = Pointwise("activation", "tensor", F, F, saves=F, units=F, group="activation")
DOWN = Gemm("down", INNER, (wide(H),), "row")
FEED = LayerKind("feed", "block", (UP, ACT, DOWN), H)
SHAPE = Shape(1, TOKENS, 1, 0)
STACKS = [sourced_profile(name) for name in ("megatron-core", "deepspeed", "fsdp2")]


def fullest(kind, shape, stack):
    each = saved_by_operator(kind, shape)
    return fullest_bytes(kind, shape, stack, input_bytes(kind, shape), each)


def everything(kind, shape):
    return input_bytes(kind, shape) + sum(saved_by_operator(kind, shape).values())


def beyond(stack, tokens=TOKENS):
    shape = replace(SHAPE, sequence_length=tokens)
    return float(fullest(FEED, shape, stack) - everything(FEED, shape)) / 2


@pytest.mark.parametrize("tokens", [2, 16, 4096])
def test_a_feed_by_hand(tokens):
    """Of few tokens the weights' gradients rule, of many the activations'.

    Saved are input, product and activation. Elements beside them at each product and at the activation.

    The stream's gradient (H a token) passes by. At the last product: its output's gradient, its input's, and
    its weight's if apart. At the activation: two gradients, its own output gone, and the weight's that waits.
    At the first product: its output's gradient where its output was, its input's, both weights'; the
    activation's output is gone.
    """
    weight, stream = H * F, tokens * H
    last, act, first = tokens * (F + H), tokens * F, tokens * (H - F)
    epilogue, added, waits = (beyond(stack, tokens) for stack in STACKS)
    assert epilogue == stream + max(last, act, first)
    assert added == stream + max(last + weight, act, first + weight)
    assert waits == stream + max(last + weight, act + weight, first + 2 * weight)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_streams_gradient_is_split_like_the_stream(sequence_parallel):
    shape = replace(SHAPE, tp=4, sequence_parallel=sequence_parallel)
    passes_by, none = (
        fullest(kind, shape, STACKS[0]) - everything(kind, shape) for kind in (FEED, replace(FEED, hidden=0))
    )
    assert passes_by - none == 2 * TOKENS * H / (4 if sequence_parallel else 1)


def test_an_end_holds_what_it_saved_as_features_are_small_beside_logits():
    """Its weight's gradient leaves behind the blocks: none waits here."""
    for stack in STACKS:
        for shape in (SHAPE, replace(SHAPE, sequence_length=2)):
            assert fullest(replace(FEED, role="head"), shape, stack) == everything(FEED, shape)


def test_a_frozen_feed_without_a_backward_pass_by_hand():
    """The input, and both ends of the last product; no stream's gradient, nothing saved."""
    frozen = tuple(replace(op, trained=False) if isinstance(op, Product) else op for op in FEED.operators)
    for stack in STACKS:
        held = fullest(replace(FEED, operators=frozen, backward=False), SHAPE, stack)
        assert held == 2 * TOKENS * (H + (F + H))


def test_a_quantised_weight_is_there_once_more_while_it_is_expanded():
    """Frozen, so that it has no gradient; of 2 tokens the weight rules."""
    shape = replace(SHAPE, sequence_length=2)

    def held(stored_bytes):
        down = replace(DOWN, trained=False, stored_bytes=stored_bytes)
        kind = replace(FEED, operators=(UP, ACT, down))
        return fullest(kind, shape, STACKS[0]) - everything(kind, shape)

    assert held(0.5) - held(None) == 2 * H * F


@pytest.mark.parametrize("quantised_bytes", [None, 1.0])
def test_an_output_that_was_kept_is_gone_with_as_many_bytes_as_were_kept(quantised_bytes):
    """With it go both ends' gradients, of 16 bits whatever products read: of two experts a token twice."""
    ends = {
        replace(ACT, feeds_product=True): F + F,
        Pointwise("sum", "sequence", 2 * H, H): H,
        Pointwise("norm", "sequence", H, H, saves=H, group="norm"): H + H,
        Pointwise("turn", "tensor", H, H, units=H, group="rotary"): H + H,
        ExpertActivation("act", 2, 2 * F, F, F, F): 2 * (2 * F + F),
        Exchange("dispatch", "dispatch", H, 2): 2 * (H + H),
        Exchange("combine", "combine", H, 2): 2 * (H + H),
    }
    shape = replace(SHAPE, quantised_bytes=quantised_bytes)
    for op, features in ends.items():
        assert op.transient_bytes(shape) + op.saved_bytes(shape) == 2 * TOKENS * features
    assert ACT.transient_bytes(replace(shape, tp=4)) == ACT.transient_bytes(shape) / 4


@given(decoders(), work_shapes(), software())
def test_a_layer_holds_what_it_saved_and_no_more_than_all_gradients_beside(spec, shape, stack):
    for kind in decoder_graph(spec, "drawn").kinds:
        own = adapt(kind, stack, find_loss("full"))
        held, saved = fullest(own, shape, stack), everything(own, shape)
        rest = [op.transient_bytes(shape) for op in own.operators if hasattr(op, "transient_bytes")]
        weights = 2 * shape.element_bytes * sum(op.local_parameters(shape) for op in own.operators)
        assert saved <= held <= saved + input_bytes(own, shape) + sum(rest) + weights


@given(decoders(), work_shapes(), software())
def test_a_layer_without_a_backward_pass_holds_one_operator_at_a_time(spec, shape, stack):
    for kind in decoder_graph(spec, "drawn").kinds:
        frozen = tuple(replace(op, trained=False) if isinstance(op, Product) else op for op in kind.operators)
        own = adapt(replace(kind, operators=frozen, backward=False), stack, find_loss("full"))
        each = [fullest(replace(own, operators=(op,)), shape, stack) for op in own.operators]
        assert fullest(own, shape, stack) == pytest.approx(np.max(each))
        assert fullest(own, shape, stack) <= fullest(replace(own, backward=True), shape, stack)


@pytest.mark.parametrize("name", preset_names())
def test_every_operator_that_tells_what_it_holds_in_its_backward_pass_is_asked(name):
    told = {
        type(op) for kind in load_model(name).kinds for op in kind.operators if hasattr(op, "transient_bytes")
    }
    assert told
    assert all(issubclass(each, HOLDERS) for each in told)


@given(decoders(), work_shapes(), st.integers(2, 4))
def test_more_tokens_hold_more(spec, shape, times):
    for stack in STACKS:
        for kind in decoder_graph(spec, "drawn").kinds:
            few, many = (
                fullest(kind, replace(shape, sequences=n * shape.sequences), stack) for n in (1, times)
            )
            assert few < many <= times * few


@given(st.integers(1, 8), st.sampled_from([64, 2048]))
def test_what_a_feed_saved_is_gone_when_the_scores_have_gradients(wider, length):
    """A wider feed behind an unfused core adds nothing to the moment at which scores rule."""
    core = Attention("core", 64, 64, 1, 1, flash=False)

    def layer(width: int) -> LayerKind:
        up = replace(UP, outputs=(Part(width, width, "ffn columns"),))
        return LayerKind(
            "layer", "block", (core, up, replace(ACT, reads=width, writes=width, saves=width)), H
        )

    kinds = (layer(F), layer(wider * F))
    shape = Shape(1, length, 1, 0)
    narrow, wide_one = (float(fullest(kind, shape, STACKS[0])) for kind in kinds)
    assert wide_one >= narrow
    if length > 64:  # 64 heads of 2,048 scores a token outweigh 256 features
        assert wide_one == narrow


@given(decoders(), work_shapes(), st.integers(0, 2), st.booleans())
def test_keys_that_outputs_keep_are_saved_in_every_mode_beside_those_that_the_core_reads(
    spec, shape, steps, backward
):
    """Without a backward pass the core keeps none itself."""
    plain, keeps = (replace(sourced_profile("fsdp1"), kept_keys=n) for n in (0, steps))
    for drawn in decoder_graph(spec, "drawn").kinds:
        kind = replace(drawn, backward=backward)
        own, more = (mode_bytes(kind, shape, stack) for stack in (plain, keeps))
        keys = sum(op.key_bytes(shape) for op in kind.operators if isinstance(op, Attention))
        added = np.subtract(more.saved, own.saved)
        lone = [mode in ("full", "offload") or not backward for mode in MODES]
        assert added.tolist() == pytest.approx([keys * max(steps - (not alone), 0) for alone in lone])
        assert more.working == own.working
