"""Memory: how ZeRO and tensor ranks share states and activations, and what recompute frees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.memory import activation_bytes, optimizer_traffic, state_bytes, transient_bytes
from meshwright.costmodels.operators import Pointwise
from meshwright.costmodels.precision import OPTIMIZERS, PRECISIONS, find_optimizer, find_precision
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.profiles import find_profile, sourced_profiles
from meshwright.costmodels.recompute import MODES, input_bytes, saved_bytes
from meshwright.costmodels.schedule import build
from meshwright.costmodels.step import price
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.planner.blocks import block_kind, decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.feeds import Mlp
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer
from tests.costmodels.cases import SMALL, even_counts, make_setting, make_strategies
from tests.properties.test_compute import GROWTH
from tests.strategies import decoders, schedules, work_shapes

USUAL = Layer(SelfAttention(), Mlp())

recipes = st.sampled_from(sorted(PRECISIONS)).map(find_precision)
optimizers = st.sampled_from(sorted(OPTIMIZERS)).map(find_optimizer)
stacks = st.sampled_from(tuple(sourced_profiles())).map(find_profile)
copying_stacks = stacks.filter(lambda stack: stack.working_copy)
gradients = st.sampled_from((2.0, 4.0))
many = st.integers(2, 4096)


copies = st.tuples(recipes, optimizers, copying_stacks, gradients)
"""A recipe, an optimizer, a stack that keeps a working copy of the weights, bytes of a gradient."""


def states(stage, dp, recipe, optimizer, stack, gradient):
    return state_bytes(stage, dp, recipe, optimizer, stack, gradient)


# States --------------------------------------------------------------------------------------------------


@given(many, copies)
def test_each_zero_stage_keeps_no_more_than_the_one_before(dp, rest):
    totals = [float(states(stage, dp, *rest).total) for stage in range(4)]
    assert totals == sorted(totals, reverse=True)


@given(many, recipes, gradients)
def test_fsdp_shards_keep_no_more_stage_by_stage_under_adam(dp, recipe, gradient):
    rest = recipe, find_optimizer("adamw"), find_profile("fsdp2"), gradient
    totals = [float(states(stage, dp, *rest).total) for stage in range(4)]
    assert totals == sorted(totals, reverse=True)


@given(st.integers(0, 3), copies)
def test_sharding_over_one_rank_changes_nothing(stage, rest):
    assert states(stage, 1, *rest).total == states(0, 1, *rest).total


@given(many, copies)
def test_the_shards_of_all_ranks_sum_to_the_whole(dp, rest):
    whole, shard = states(0, dp, *rest), states(3, dp, *rest)
    for item in ("weights", "gradients", "master_weights", "optimizer_moments"):
        assert float(getattr(shard, item)) * dp == pytest.approx(float(getattr(whole, item)))


@given(st.integers(0, 3), many, many, st.tuples(recipes, optimizers, stacks, gradients))
def test_more_ranks_never_keep_more_each(stage, dp, more, rest):
    assert states(stage, dp + more, *rest).total <= states(stage, dp, *rest).total


@given(st.integers(2, 3), many, st.tuples(recipes, optimizers, stacks, gradients), st.booleans())
def test_late_gradients_are_whole_and_weights_are_only_where_they_stay(stage, dp, rest, stays):
    early, late = (state_bytes(stage, dp, *rest, late=late, stays=late and stays) for late in (False, True))
    assert late.gradients == states(0, dp, *rest).gradients > early.gradients
    assert (late.weights > early.weights) == (stays and stage == 3 and not rest[2].working_copy)
    assert (late.master_weights, late.optimizer_moments) == (early.master_weights, early.optimizer_moments)


_DRAWN = tuple(st.integers(*ends) for ends in ((0, 3), (1, 64), (1, 3), (1, 12)))


@given(st.lists(st.tuples(*_DRAWN), min_size=1, max_size=4), st.sampled_from(("fsdp2", "deepspeed")))
def test_gradients_to_come_are_part_of_what_is_held_and_of_what_activations_give_way_to(plans, stack):
    setting = make_setting(profile=stack, cluster="dgx-h100:8")
    stages, dps, counts, sizes = (list(column) for column in zip(*plans, strict=True))
    columns = {"zero_stage": stages, "dp": dps, "num_microbatches": counts, "micro_batch_size": sizes}
    got = priced(setting, make_strategies(**columns))
    assert np.all(got.idle_bytes >= 0)
    assert np.all(got.idle_bytes <= np.minimum(got.memory["gradients"], got.memory["activations"]))
    for row, (stage, dp, count, _) in enumerate(plans):
        alone = priced(setting, make_strategies(**{name: values[row] for name, values in columns.items()}))
        assert got.idle_bytes[row, 0] == alone.idle_bytes[0, 0]
        assert (alone.idle_bytes[0, 0] > 0) == (stack == "fsdp2" and stage >= 2 and dp > 1 and count == 1)


def priced(setting, strategies):
    return price(setting, strategies, np.concatenate([even_counts(SMALL, 1)] * len(strategies)))


@given(st.integers(0, 3), st.integers(1, 64), optimizers, stacks, gradients)
def test_eight_bit_moments_keep_a_quarter(stage, dp, optimizer, stack, gradient):
    full, small = (
        states(stage, dp, find_precision(name), optimizer, stack, gradient).optimizer_moments
        for name in ("bf16", "bf16-8bit")
    )
    own = find_optimizer(optimizer.name).moment_bytes is not None
    assert small * (1 if own else 4) == full


@given(recipes, optimizers, gradients)
def test_an_optimizer_step_touches_every_state_at_least_once(recipe, optimizer, gradient):
    kept = states(0, 1, recipe, optimizer, find_profile("generic"), gradient)
    moved = optimizer_traffic(recipe, optimizer, gradient)
    assert kept.total <= moved <= 2 * kept.total


# Parameters on a rank ------------------------------------------------------------------------------------


@given(decoders(), work_shapes())
def test_ranks_together_hold_every_parameter(spec, shape):
    graph = decoder_graph(replace(spec, tied=False), "drawn")
    for op in (op for kind in graph.kinds for op in kind.operators):
        held = float(op.local_parameters(shape)) * shape.tp
        assert held >= op.parameters()
        if isinstance(op, Gemm) and not any(p.padded for p in op.outputs) and op.shard != "row":
            assert held == op.parameters()  # weights and biases split over columns; a row's bias is copied
        if isinstance(op, Pointwise):
            assert held == shape.tp * op.parameters()


multiples = st.sampled_from((1, 64, 128))


@given(st.integers(1, 300_000), st.sampled_from((1, 2, 4, 8, 16)), multiples, st.integers(1, 9))
def test_a_padded_vocabulary_is_a_multiple_of_ranks_and_multiple(vocab, tp, multiple, features):
    part = replace(_vocabulary(vocab), features=vocab * features)
    padded = part.local(tp, multiple) * tp / features
    assert padded % (tp * multiple) == 0
    assert vocab <= padded < vocab + tp * multiple


def _vocabulary(vocab):
    return DecoderSpec(hidden=1, layers=1, heads=1, kv_heads=1, head_dim=1, ffn=1, vocab=vocab).vocabulary


# Activations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", GROWTH)
@given(spec=decoders(), shape=work_shapes(), steps=st.integers(1, 4), flash=st.booleans())
def test_saved_bytes_and_parameters_grow_with_every_size(size, spec, shape, steps, flash):
    small, large = (_kept(*case, flash) for case in ((spec, shape), GROWTH[size](spec, shape, steps)))
    assert np.all(large >= small)


def _kept(spec, shape, flash):
    """Return what one micro-batch keeps in the whole model in each mode, and the parameters of a rank."""
    stack = replace(find_profile("generic"), attention="flash-2" if flash else "megatron-softmax")
    graph = decoder_graph(spec, "drawn")
    kinds = [adapt(kind, stack, find_loss("full")) for kind in graph.kinds]
    per_mode = [[float(saved_bytes(kind, mode, shape)) for kind in kinds] for mode in MODES]
    own = [sum(float(op.local_parameters(shape)) for op in kind.operators) for kind in kinds]
    return np.array([*per_mode, own]) @ graph.kind_counts


@given(decoders(), work_shapes(), st.booleans())
def test_recompute_frees_memory(spec, shape, flash):
    kind = block_kind(spec, USUAL)
    ops = (replace(op, flash=flash) if isinstance(op, Attention) else op for op in kind.operators)
    kind = replace(kind, operators=tuple(ops))
    kept = {mode: float(saved_bytes(kind, mode, shape)) for mode in MODES}
    assert 0 == kept["offload"] < kept["full"] < kept["selective"] == kept["moe"] < kept["none"]
    assert kept["full"] == float(input_bytes(kind, shape))


@given(decoders(), work_shapes(tps=(2,)))
def test_sequence_parallelism_splits_what_is_whole_otherwise(spec, shape):
    kind, alone = block_kind(spec, USUAL), replace(shape, tp=1, sequence_parallel=0)
    split, whole = (replace(shape, sequence_parallel=on) for on in (1, 0))
    for mode in MODES:
        one = float(saved_bytes(kind, mode, alone))
        assert float(saved_bytes(kind, mode, split)) * 2 == pytest.approx(one)
        assert one / 2 <= float(saved_bytes(kind, mode, whole)) <= one


@given(decoders(), work_shapes())
def test_logits_take_as_many_bytes_as_the_loss_says(spec, shape):
    head = decoder_graph(spec, "drawn").kinds[-1]
    (loss,) = (op for op in head.operators if isinstance(op, CrossEntropy))
    logits = loss.logits(shape)
    assert logits * shape.tp >= shape.tokens * spec.vocab
    # fp32 softmax kept, at the peak the 16-bit logits and their gradient beside it (loss.py, "full").
    assert loss.saved_bytes(shape) == 4 * logits
    assert loss.saved_bytes(shape) + loss.transient_bytes(shape) == 6 * logits


@given(schedules(), st.data())
def test_activations_lie_between_one_micro_batch_and_all(schedule, data):
    per_chunk = st.lists(st.floats(1, 1e9), min_size=schedule.num_chunks, max_size=schedule.num_chunks).map(
        np.array
    )
    saved = data.draw(per_chunk)
    peak = activation_bytes(schedule, saved)
    own = saved[schedule.chunks_of_rank].T
    assert np.all(peak >= own.max(axis=0))
    assert np.all(peak <= schedule.num_microbatches * own.sum(axis=0) * (1 + 1e-12))
    assert np.all(activation_bytes(schedule, 2 * saved) == 2 * peak)


@given(st.integers(1, 8), st.integers(1, 16), st.floats(1, 1e9))
def test_1f1b_keeps_no_more_than_gpipe(pp, m, saved):
    chunks = np.full(pp, saved)
    gpipe, late = (activation_bytes(build(name, pp, 1, m), chunks) for name in ("gpipe", "1f1b"))
    assert np.all(late <= gpipe)
    # Rank r holds min(m, pp - r) micro-batches under 1F1B, all of them under GPipe (arXiv 2104.04473).
    assert late.tolist() == [saved * min(m, pp - rank) for rank in range(pp)]
    assert gpipe.tolist() == [saved * m] * pp


BYTES = st.floats(0, 1e12)
ROUNDING = 1 + 1e-12
"""Of sums that are taken in another order."""


@given(*[BYTES] * 6)
def test_a_layer_needs_its_work_and_no_more_than_all_of_its_moments(
    gathered, working, saved, left, sent, more
):
    def needs(work: float, kept: float, after: float, way: float) -> float:
        one = (np.array([[v]]) for v in (gathered, after, way))
        weights, unreduced, pending = one
        lives = np.array([[[work]]]), np.array([[[kept]]])
        return float(transient_bytes(weights, *lives, unreduced, pending, np.array([True])).item())

    got = needs(working, saved, left, sent)
    most = gathered + working + left + sent
    assert (gathered + working) / ROUNDING <= got <= most * ROUNDING
    assert needs(working + more, saved, left, sent) * ROUNDING >= got
    assert needs(working, saved, left + more, sent + more) * ROUNDING >= got
    assert needs(working, saved + more, left, sent) <= got
