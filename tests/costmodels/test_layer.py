"""Layers: what each recompute mode repeats and keeps, and where tensor-parallel time goes."""

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.layer import price_layer
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.operators import LayerKind, Pointwise
from meshwright.costmodels.precision import CAST_SHARES, find_precision
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.profiles import sourced_profile
from meshwright.costmodels.recompute import MODES, input_bytes, repeated
from meshwright.costmodels.roofline import device_rates
from meshwright.costmodels.vocabulary import CrossEntropy
from meshwright.costmodels.work import Shape
from meshwright.hardware.catalogue import load_accelerator, load_cluster
from meshwright.hardware.span import group_span
from meshwright.planner.blocks import decoder_graph
from tests.costmodels.cases import SMALL

CLUSTER = load_cluster("dgx-h100:1")
RATES = device_rates(CLUSTER.accelerator, find_precision("bf16"))
EMBEDDING, BLOCK, HEAD = decoder_graph(SMALL, "small").kinds
GENERIC, EARLY = sourced_profile("generic"), sourced_profile("fsdp2")
SHAPE = Shape(2, 512, 2, 1)


def names(operators):
    return [op.name for op in operators]


def priced(profile=GENERIC, kind=BLOCK, shape=SHAPE):
    return price_layer(kind, shape, RATES, {"tensor": group_span(CLUSTER, shape.tp, 1)}, profile)


def test_a_stack_brings_its_attention_kernel_and_its_loss():
    eager = replace(GENERIC, attention="megatron-softmax")
    (core,) = (op for op in adapt(BLOCK, eager, find_loss("full")).operators if isinstance(op, Attention))
    assert not core.flash
    (loss,) = (op for op in adapt(HEAD, eager, find_loss("fused")).operators if isinstance(op, CrossEntropy))
    assert loss.kernel is find_loss("fused")


def test_full_recompute_repeats_the_layer_or_stops_before_its_last_product():
    assert repeated(BLOCK, "full", GENERIC) == BLOCK.operators
    early = names(repeated(BLOCK, "full", EARLY))
    assert early == names(BLOCK.operators)[: len(early)]
    assert names(BLOCK.operators)[len(early)] == "down"


def test_selective_recompute_repeats_what_is_light():
    light = names(repeated(BLOCK, "selective", GENERIC))
    assert light == ["pre_attention_norm", "pre_mlp_norm", "activation"]
    eager = adapt(BLOCK, replace(GENERIC, attention="megatron-softmax"), find_loss("full"))
    assert "attention" in names(repeated(eager, "selective", GENERIC))


@pytest.mark.parametrize("kind", [EMBEDDING, HEAD], ids=["embedding", "head"])
def test_only_blocks_are_recomputed(kind):
    assert all(repeated(kind, mode, GENERIC) == () for mode in MODES)
    cost = priced(kind=kind)
    assert len(set(cost.saved_bytes.tolist())) == 1
    assert not cost.recompute_s.any()


def test_a_block_without_products_is_repeated_whole():
    norms = LayerKind("norms", "block", (Pointwise("norm", "sequence", 8, 8, saves=8),), 8)
    assert repeated(norms, "full", EARLY) == norms.operators


def test_the_input_of_a_layer_is_its_checkpoint():
    assert input_bytes(BLOCK, SHAPE) == 2 * 512 * 256 * 2 / 2
    assert input_bytes(EMBEDDING, SHAPE) == 0


def test_recomputed_tensors_exist_while_the_layer_runs_backward():
    cost = priced()
    alive = cost.saved_bytes + cost.working_bytes
    assert alive[0] == alive[-1]  # what is dropped is restored for the backward pass
    assert cost.working_bytes[0] > 0


def test_overlap_moves_tensor_parallel_time_from_exposed_to_hidden():
    hiding = replace(GENERIC, overlap_tensor=0.75)
    plain, hidden = priced(), priced(hiding)
    assert hidden.comm_forward_s.tolist() == pytest.approx((0.25 * plain.comm_forward_s).tolist())
    both = [c.comm_forward_s + c.comm_backward_s + c.comm_hidden_s for c in (plain, hidden)]
    assert both[0].tolist() == pytest.approx(both[1].tolist())


def test_what_runs_beside_a_product_is_exposed_only_as_far_as_it_slows_the_product():
    beside = adapt(BLOCK, replace(GENERIC, overlap_backward=True), find_loss("full"))
    windows = Counter(t.hidden_behind for op in beside.operators for t in op.traffic(SHAPE)[1] if t.bytes)
    assert windows == {"input_gradient": 2, "weight_gradient": 2, "none": 2}
    free = priced(replace(GENERIC, overlap_cost=0.0), beside)
    useless = priced(replace(GENERIC, overlap_cost=1.0), beside)
    assert free.comm_backward_s[0] < useless.comm_backward_s[0]
    assert useless.comm_hidden_s[0] == 0
    assert useless.comm_backward_s.tolist() == pytest.approx(priced().comm_backward_s.tolist())


@pytest.mark.parametrize("split", [0, 1])
def test_a_frozen_weight_has_no_product_beside_which_to_reduce(split):
    """Its input's gradient is reduced as if nothing ran beside; only its input is gathered beside one."""
    shape = replace(SHAPE, sequence_parallel=split)
    stack = replace(GENERIC, overlap_backward=True, overlap_cost=0.0)
    beside = adapt(BLOCK, stack, find_loss("full"))
    still = tuple(replace(op, trained=False) if isinstance(op, Gemm) else op for op in beside.operators)
    trained, frozen = (priced(stack, kind, shape) for kind in (beside, replace(beside, operators=still)))
    assert trained.comm_backward_s[0] < frozen.comm_backward_s[0]
    assert (frozen.comm_hidden_s[0] > 0) == bool(split)


@pytest.mark.parametrize("kernels", [1, 3])
def test_a_cast_is_its_kernels_and_its_bytes_at_the_rate_that_casts_reach(kernels):
    recipe = find_precision("mxfp8")
    (product,) = (op for op in BLOCK.operators if op.name == "out")
    kind = adapt(LayerKind("one", "block", (product,), SMALL.hidden), GENERIC, find_loss("full"), recipe)
    rates = replace(device_rates(load_accelerator("b200-sxm"), recipe), kernel_launch_s=1e-5)
    bare = replace(SHAPE, tp=1, quantised_bytes=recipe.product_bytes, cast_kernels=0)
    cast = replace(bare, cast_kernels=kernels, cast_bytes=recipe.cast_bytes())
    plain, whole = (price_layer(kind, shape, rates, {}, GENERIC).forward_s for shape in (bare, cast))
    moved = cast.tokens * SMALL.heads * SMALL.head_dim * recipe.cast_bytes()
    streaming = rates.memory_bytes_per_s * rates.memory_fraction
    assert whole - plain == pytest.approx(kernels * 1e-5 + moved / streaming / CAST_SHARES["blackwell"])


def test_projections_that_are_modules_each_reduce_their_gradient_unless_one_gather_serves_them_all():
    apart = replace(GENERIC, projections_apart=True)
    joined, alone = (adapt(BLOCK, stack, find_loss("full")) for stack in (GENERIC, apart))
    whole = replace(SHAPE, sequence_parallel=0)
    once, each = priced(kind=joined, shape=whole), priced(apart, alone, whole)
    assert each.comm_forward_s.tolist() == once.comm_forward_s.tolist()
    assert each.comm_backward_s[0] / once.comm_backward_s[0] == pytest.approx((3 + 2) / (1 + 1))
    assert each.backward_launches - once.backward_launches == 3
    split, gathered = priced(kind=joined), priced(apart, alone)
    assert gathered.comm_backward_s.tolist() == split.comm_backward_s.tolist()


@pytest.mark.parametrize(("name", "hides"), [("bf16", True), ("mxfp8", True), ("nvfp4-all", False)])
def test_buffers_without_room_for_4_bit_operands_leave_their_traffic_between_the_products(name, hides):
    """Everything else overlaps as it did, and a stack without such buffers does not ask for the bits."""
    bytes_ = find_precision(name).product_bytes
    shape = SHAPE if bytes_ is None else replace(SHAPE, quantised_bytes=bytes_)
    stands, any_, buffers = (
        replace(GENERIC, overlap_tensor=share, overlap_narrow=narrow)
        for share, narrow in [(0.0, False), (0.7, True), (0.7, False)]
    )
    exposed = [priced(p, shape=shape).comm_forward_s.sum() for p in (stands, any_, buffers)]
    assert exposed[1] == pytest.approx(0.3 * exposed[0])
    assert exposed[2] == pytest.approx(exposed[1 if hides else 0])


@pytest.mark.parametrize("name", ["fp8", "mxfp8", "nvfp4-all"])
def test_what_a_low_precision_product_reads_is_gathered_as_it_reads_it_and_sums_travel_in_16_bits(name):
    recipe, stack = find_precision(name), replace(GENERIC, quantised_gathers=True)
    shape = replace(SHAPE, quantised_bytes=recipe.product_bytes)

    def moved(profile, precision, kind=BLOCK):
        edges = (op for op in adapt(kind, profile, find_loss("full"), precision).operators)
        sent = [t for op in edges for way in op.traffic(shape) for t in way if t.group == "tensor"]
        return {
            way: [t.bytes for t in sent if t.collective == way] for way in ("all_gather", "reduce_scatter")
        }

    plain, low = moved(GENERIC, recipe), moved(stack, recipe)
    assert low["reduce_scatter"] == plain["reduce_scatter"]
    assert low["all_gather"] == pytest.approx([b * recipe.product_bytes / 2 for b in plain["all_gather"]])
    assert moved(stack, find_precision("bf16")) == plain
    assert moved(stack, recipe, HEAD) == moved(GENERIC, recipe, HEAD)


@pytest.mark.parametrize(("name", "turned"), [("fp8-current", 2.0), ("mxfp8", 0.0)])
def test_ranks_cast_their_part_of_what_they_gather_and_transpose_what_has_one_scale(name, turned):
    """Inputs of column-parallel products forward, gradients of row-parallel ones' outputs backward."""
    recipe = find_precision(name)
    rates = replace(device_rates(load_accelerator("h100-sxm"), find_precision("fp8")), kernel_launch_s=0.0)
    sent, behind = recipe.gathered_cast_bytes("hopper")
    assert behind == turned
    bare = replace(SHAPE, tp=4, quantised_bytes=recipe.product_bytes, cast_kernels=0)
    shape = replace(bare, cast_bytes=recipe.cast_bytes(), sent_bytes=sent, turned_bytes=behind)
    stack = replace(GENERIC, quantised_gathers=True)
    low = [adapt(BLOCK, profile, find_loss("full"), recipe).operators for profile in (GENERIC, stack)]
    streaming = rates.memory_bytes_per_s * rates.memory_fraction

    free = {"cast_bytes": 0.0, "sent_bytes": 0.0, "turned_bytes": 0.0}

    def cast(op, own):
        kind = LayerKind("one", "block", (op,), SMALL.hidden)
        costs = [price_layer(kind, s, rates, {}, GENERIC) for s in (own, replace(own, **free))]
        return [
            (getattr(costs[0], way) - getattr(costs[1], way)) * streaming
            for way in ("forward_s", "backward_s")
        ]

    for whole, part in zip(*low, strict=True):
        if whole.name not in ("qkv", "gate_up", "out", "down"):
            continue
        way = int(whole.shard == "row")
        all_of_it, own = cast(whole, shape), cast(part, shape)
        assert own[1 - way] == pytest.approx(all_of_it[1 - way])
        elements = all_of_it[way] / recipe.cast_bytes()
        assert own[way] == pytest.approx(elements * (sent / 4 + behind))
        alone = replace(shape, sequence_parallel=0)
        assert cast(part, alone)[way] == pytest.approx(cast(whole, alone)[way])
