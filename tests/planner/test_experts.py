"""A mixture of experts multiplies what its tokens visit, and splits by its own degrees."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.layer import price_layer
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.moe import ExpertGemm
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.roofline import device_rates
from meshwright.costmodels.work import Shape
from meshwright.hardware.catalogue import load_accelerator
from meshwright.planner.blocks import block_kind, decoder_graph
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer

SPEC = DecoderSpec(hidden=512, layers=4, heads=8, kv_heads=4, head_dim=64, ffn=1024, vocab=1000)
ONE = Shape(1, 1024, 1, False)


def kind(feed: Experts | Mlp, spec: DecoderSpec = SPEC) -> LayerKind:
    return block_kind(spec, Layer(SelfAttention(), feed))


def flops(of: LayerKind, shape: Shape = ONE) -> float:
    return sum(float(w.flops) for op in of.operators for w in op.forward(shape))


@given(st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_topk_experts_cost_what_one_wider_mlp_does_and_the_router(topk: int, width: int, gated: bool) -> None:
    spec, one = replace(SPEC, gated=gated), 64 * width
    routed, dense = kind(Experts(8, topk, one), spec), kind(Mlp(topk * one), spec)
    assert flops(routed) - flops(dense) == 2 * 1024 * 512 * 8


@given(st.integers(1, 8), st.integers(1, 4))
def test_parameters_grow_with_the_experts_and_active_ones_with_the_visits(topk: int, shared: int) -> None:
    graph = decoder_graph(replace(SPEC, feeds=(Experts(8, topk, 256, shared=64 * shared),)), "g")
    one = 3 * 512 * 256
    assert graph.parameters - graph.active_parameters == 4 * (8 - topk) * one
    bare = decoder_graph(replace(SPEC, feeds=(Experts(8, topk, 256),)), "g")
    assert graph.parameters - bare.parameters == 4 * 3 * 512 * 64 * shared


def test_biases_and_gates_are_counted() -> None:
    base = kind(Experts(8, 2, 256, shared=128)).parameters()
    assert kind(Experts(8, 2, 256, shared=128, shared_gate=True)).parameters() - base == 512
    assert kind(Experts(8, 2, 256, shared=128, router_bias=True)).parameters() - base == 8
    assert kind(Experts(8, 2, 256, shared=128, output_bias=True)).parameters() - base == 512
    assert kind(Experts(8, 2, 256, shared=128, bias=True)).parameters() - base == 8 * (2 * 256 + 512)


@pytest.mark.parametrize(("ep", "etp"), [(8, 1), (1, 8), (4, 2)])
def test_work_and_weights_over_a_group_add_up_to_the_whole(ep: int, etp: int) -> None:
    # Eight data-parallel ranks with one sequence each work like one rank with eight sequences.
    feed = Experts(8, 2, 256, shared=128)
    whole, part = Shape(8, 1024, 1, False), Shape(1, 1024, 1, False, ep=ep, etp=etp)
    assert flops(kind(feed), part) * 8 == pytest.approx(flops(kind(feed), whole))
    experts = [op for op in kind(feed).operators if isinstance(op, ExpertGemm)]
    assert all(op.local_parameters(part) * 8 == op.parameters() for op in experts)


def test_imbalance_stretches_the_experts_alone() -> None:
    feed = Experts(8, 2, 256)
    even, skewed = (flops(kind(feed), Shape(1, 1024, 1, False, expert_load=x)) for x in (1.0, 1.5))
    assert skewed - even == 0.5 * 2 * 1024 * 2 * 3 * 512 * 256


def test_a_latent_narrows_what_is_sent_and_what_is_multiplied() -> None:
    wide, narrow = kind(Experts(8, 4, 256)), kind(Experts(8, 4, 256, latent=128))

    def sent(of: LayerKind) -> float:
        shape = Shape(1, 1024, 1, False, ep=8)
        return sum(float(t.bytes) for op in of.operators for t in op.traffic(shape)[0])

    assert sent(wide) == 4 * sent(narrow) > 0
    assert wide.parameters() - narrow.parameters() == 8 * 3 * 256 * (512 - 128) - 2 * 512 * 128


def test_the_order_is_router_dispatch_products_combine_and_shared_experts() -> None:
    names = [op.name for op in Experts(8, 2, 256, shared=128).operators(SPEC)]
    assert names == [
        "router",
        "dispatch",
        "expert_gate_up",
        "expert_activation",
        "expert_down",
        "combine",
        "shared_enter",
        "shared_gate_up",
        "shared_activation",
        "shared_down",
        "shared_exit",
        "shared_sum",
    ]


def launches(**switches: float) -> tuple[float, float]:
    """Return the kernels that the host issues forward for a dense block and for one with experts."""
    profile = replace(find_profile("generic"), **switches)
    rates = device_rates(load_accelerator("h100-sxm"), find_precision("bf16"))
    kinds = kind(Mlp(64)), kind(Experts(8, 2, 64))
    costs = [price_layer(adapt(k, profile, find_loss("full")), ONE, rates, {}, profile) for k in kinds]
    return float(costs[0].forward_launches), float(costs[1].forward_launches)


def test_graphs_of_the_rest_of_a_block_spare_all_launches_but_the_experts() -> None:
    dense, whole = launches()
    _, captured = launches(host_share=0.0)
    assert 0 < captured < whole
    assert launches(host_share=0.0, expert_host_share=0.0) == (0, 0)
    assert launches(expert_host_share=0.0) == (dense, whole - captured)
    # Eight experts on the rank: seven kernels more for each of the two grouped products.
    assert launches(expert_by_expert=True) == (dense, whole + 2 * 7)
