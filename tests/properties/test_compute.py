"""Arithmetic and memory traffic: what physics says of FLOPs, bytes and the time that they take."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.adaptation import adapt
from meshwright.costmodels.attention import Attention
from meshwright.costmodels.layer import price_layer
from meshwright.costmodels.loss import LOSSES, find_loss
from meshwright.costmodels.precision import find_precision
from meshwright.costmodels.product import Gemm, gemm_work
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.roofline import DeviceRates, device_rates, work_time
from meshwright.costmodels.work import Shape, Work
from meshwright.hardware.catalogue import load_accelerator, load_cluster
from meshwright.hardware.span import group_span
from meshwright.planner.blocks import block_kind, decoder_graph
from meshwright.planner.feeds import Mlp
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer
from tests.strategies import decoders, software, work_shapes

USUAL = Layer(SelfAttention(), Mlp())

PROFILE = find_profile("generic")
H100 = device_rates(load_accelerator("h100-sxm"), find_precision("bf16"))
RATES = (
    "peak_flops_per_s",
    "memory_bytes_per_s",
    "gemm_fraction",
    "memory_fraction",
    "vector_flops_per_s",
)
ROUNDING = 1 + 1e-12
dims = st.integers(1, 40_000)


@st.composite
def rates(draw):
    """Any device from a laptop to a wafer."""
    peak = draw(st.floats(1e11, 1e17))
    return DeviceRates(
        peak_flops_per_s=peak,
        memory_bytes_per_s=draw(st.floats(1e10, 1e14)),
        gemm_fraction=draw(st.floats(0.2, 1.0)),
        memory_fraction=draw(st.floats(0.2, 1.0)),
        kernel_launch_s=draw(st.floats(0, 1e-4)),
        num_cores=draw(st.integers(1, 1024)),
        vector_flops_per_s=peak * draw(st.floats(0.01, 1.0)),
    )


@st.composite
def works(draw):
    """Work of any kernel class."""
    kernel = draw(st.sampled_from(("gemm", "attention", "memory", "vector")))
    if kernel == "gemm":
        return gemm_work(draw(dims), draw(dims), draw(dims), draw(st.sampled_from((2, 4))))
    flops = 0.0 if kernel == "memory" else draw(st.floats(0, 1e15))
    return Work(kernel, flops, draw(st.floats(1, 1e12)), k=draw(dims), kernels=draw(st.integers(1, 6)))


def layer(kind, shape, profile=PROFILE, cluster="dgx-h100:1", **changed):
    """Return the price of a layer on a tensor group inside a node of H100s."""
    span = replace(group_span(load_cluster(cluster), shape.tp, 1), **changed)
    return price_layer(kind, shape, H100, {"tensor": span}, profile)


def moved_bytes(spec, shape):
    ops = [op for kind in decoder_graph(spec, "drawn").kinds for op in kind.operators]
    return sum(float(w.bytes) for op in ops for w in (*op.forward(shape), *op.backward(shape)))


def flops(kind, shape, backward=False):
    passes = (op.backward(shape) if backward else op.forward(shape) for op in kind.operators)
    return sum(float(w.flops) for works in passes for w in works)


def model_flops(spec, shape):
    graph = decoder_graph(spec, "drawn")
    each = [flops(kind, shape) + flops(kind, shape, backward=True) for kind in graph.kinds]
    return float(np.dot(graph.kind_counts, each))


GROWTH = {
    "hidden": lambda spec, shape, n: (replace(spec, hidden=spec.hidden + 64 * n), shape),
    "ffn": lambda spec, shape, n: (replace(spec, ffn=spec.ffn + 64 * n), shape),
    "heads": lambda spec, shape, n: (replace(spec, heads=spec.heads + spec.kv_heads * n), shape),
    "kv_heads": lambda spec, shape, n: (replace(spec, kv_heads=spec.heads), shape),
    "head_dim": lambda spec, shape, n: (replace(spec, head_dim=spec.head_dim + 8 * n), shape),
    "layers": lambda spec, shape, n: (replace(spec, layers=spec.layers + n), shape),
    "vocab": lambda spec, shape, n: (replace(spec, vocab=spec.vocab + n), shape),
    "sequence_length": lambda spec, shape, n: (
        spec,
        replace(shape, sequence_length=shape.sequence_length + 2 * n),
    ),
    "micro_batch_size": lambda spec, shape, n: (spec, replace(shape, sequences=shape.sequences + n)),
}
"""How each size of a model or of a micro-batch grows by ``n`` steps."""


# Roofline ------------------------------------------------------------------------------------------------


@given(works(), rates())
def test_no_work_is_faster_than_the_peak_or_the_memory_allows(work, device):
    seconds = work_time(work, device, PROFILE)
    assert seconds * ROUNDING >= work.flops / device.peak_flops_per_s
    assert seconds * ROUNDING >= work.bytes / device.memory_bytes_per_s
    assert seconds >= work.kernels * device.kernel_launch_s


@given(works(), rates(), st.sampled_from(RATES), st.floats(1, 100))
def test_no_work_is_slower_on_a_faster_device(work, device, rate, factor):
    faster = replace(device, **{rate: getattr(device, rate) * factor})
    assert work_time(work, faster, PROFILE) <= work_time(work, device, PROFILE) * ROUNDING


@given(works(), rates(), st.floats(0, 1))
def test_no_work_is_slower_with_quicker_launches(work, device, share):
    quicker = replace(device, kernel_launch_s=share * device.kernel_launch_s)
    assert work_time(work, quicker, PROFILE) <= work_time(work, device, PROFILE) * ROUNDING


@given(works(), rates(), st.floats(0.1, 10))
def test_a_device_that_is_faster_in_everything_takes_that_much_less_time(work, device, factor):
    faster = replace(
        device,
        peak_flops_per_s=device.peak_flops_per_s * factor,
        memory_bytes_per_s=device.memory_bytes_per_s * factor,
        kernel_launch_s=device.kernel_launch_s / factor,
        vector_flops_per_s=device.vector_flops_per_s * factor,
    )
    assert work_time(work, faster, PROFILE) * factor == pytest.approx(work_time(work, device, PROFILE))


@given(dims, dims, dims, st.integers(0, 5000), st.sampled_from("mnk"), rates())
def test_a_larger_product_never_takes_less_time(m, n, k, more, dim, device):
    sizes = {"m": m, "n": n, "k": k}
    small = gemm_work(**sizes, element_bytes=2)
    large = gemm_work(**(sizes | {dim: sizes[dim] + more}), element_bytes=2)
    assert work_time(small, device, PROFILE) <= work_time(large, device, PROFILE) * ROUNDING


@given(dims, dims, dims, rates())
def test_a_product_and_its_transpose_take_the_same_time(m, n, k, device):
    there, back = gemm_work(m, n, k, 2), gemm_work(n, m, k, 2)
    assert work_time(there, device, PROFILE) == pytest.approx(work_time(back, device, PROFILE))


@given(st.lists(st.tuples(dims, dims, dims), min_size=1, max_size=5), rates())
def test_products_are_priced_as_arrays_or_one_by_one(sizes, device):
    m, n, k = np.array(sizes).T
    together = work_time(gemm_work(m, n, k, 2), device, PROFILE)
    assert together.tolist() == [float(work_time(gemm_work(*s, 2), device, PROFILE)) for s in sizes]


# FLOPs and bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", GROWTH)
@given(spec=decoders(), shape=work_shapes(), steps=st.integers(1, 4))
def test_flops_and_bytes_grow_with_every_size(size, spec, shape, steps):
    larger = GROWTH[size](spec, shape, steps)
    assert model_flops(*larger) >= model_flops(spec, shape)
    assert moved_bytes(*larger) >= moved_bytes(spec, shape)


@given(decoders(), work_shapes(tps=(1,)), st.sampled_from((2,)))
def test_flops_over_tensor_ranks_sum_to_the_whole(spec, shape, tp):
    split = replace(shape, tp=tp)
    for kind in (block_kind(spec, USUAL), block_kind(spec, Layer(SelfAttention(256), Mlp()))):
        for backward in (False, True):
            assert flops(kind, split, backward) * tp == pytest.approx(flops(kind, shape, backward))


@given(decoders(), work_shapes())
def test_products_run_twice_their_forward_flops_backward(spec, shape):
    kind = block_kind(spec, USUAL)
    for op in kind.operators:
        if isinstance(op, Gemm):
            forward, backward = (sum(w.flops for w in p) for p in (op.forward(shape), op.backward(shape)))
            assert backward == 2 * forward


@given(st.integers(1, 4000), st.integers(1, 5000))
def test_causal_attention_sees_half_and_a_window_no_more(length, window):
    causal = Attention("a", 1, 1, 64, 64)
    banded = replace(causal, window=window)
    whole = replace(causal, causal=False).pairs(length)
    assert whole / 2 <= causal.pairs(length) <= whole
    assert length <= banded.pairs(length) <= causal.pairs(length)
    assert (banded.pairs(length) == causal.pairs(length)) == (window >= length or length == 1)


@given(st.integers(1, 40), st.integers(1, 60), st.booleans())
def test_pairs_are_those_that_one_counts(length, window, causal):
    mask = np.subtract.outer(np.arange(length), np.arange(length))
    seen = (mask >= 0) & (mask < window) if causal else np.abs(mask) < window
    assert Attention("a", 1, 1, 64, 64, causal=causal, window=window).pairs(length) == seen.sum()


@given(decoders(), work_shapes())
def test_unfused_attention_moves_more_bytes_and_keeps_more(spec, shape):
    (core,) = (op for op in block_kind(spec, USUAL).operators if isinstance(op, Attention))
    unfused, one = replace(core, flash=False), shape
    assert unfused.forward(one)[0].bytes > core.forward(one)[0].bytes
    assert unfused.saved_bytes(one) >= core.saved_bytes(one) or one.sequence_length < 4


# Layers --------------------------------------------------------------------------------------------------


@given(decoders(), work_shapes(), software())
def test_no_layer_is_faster_than_its_flops_and_bytes_allow(spec, shape, stack):
    kind = adapt(block_kind(spec, USUAL), stack, find_loss("full"))
    cost, ops = layer(kind, shape, stack), kind.operators
    assert cost.forward_s * ROUNDING >= flops(kind, shape) / H100.peak_flops_per_s
    assert cost.backward_s * ROUNDING >= flops(kind, shape, True) / H100.peak_flops_per_s
    moved = sum(float(w.bytes) for op in ops for w in op.forward(shape))
    assert cost.forward_s * ROUNDING >= moved / H100.memory_bytes_per_s


@given(decoders(), work_shapes(), software())
def test_recompute_costs_nothing_then_a_little_then_at_most_a_forward_pass(spec, shape, stack):
    kind = adapt(block_kind(spec, USUAL), stack, find_loss("full"))
    cost = layer(kind, shape, stack)
    again = dict(zip(MODES, cost.recompute_s.tolist(), strict=True))
    full = again["full"]
    assert 0 == again["none"] == again["offload"] < again["selective"] < full <= cost.forward_s * ROUNDING
    flops_of = dict(zip(MODES, cost.recompute_flops.tolist(), strict=True))
    assert 0 == flops_of["none"] <= flops_of["selective"] <= flops_of["full"] <= cost.forward_flops
    # A stack that stops early leaves the last product of a layer out.
    assert (full == pytest.approx(float(cost.forward_s))) == stack.recompute_exit


@given(decoders(), work_shapes(), software(), st.integers(0, 2))
def test_layers_are_priced_as_arrays_or_one_by_one(spec, shape, stack, pick):
    sequences = np.array([1, 3, shape.sequences])
    kind = adapt(decoder_graph(spec, "drawn").kinds[pick], stack, find_loss("chunked"))
    many = layer(kind, replace(shape, sequences=sequences), stack)
    one = layer(kind, replace(shape, sequences=int(sequences[-1])), stack)
    for field in fields(one):
        whole = np.broadcast_to(getattr(many, field.name), (3, *np.shape(getattr(one, field.name))))
        assert np.array_equal(whole[-1], getattr(one, field.name)), field.name


@given(decoders(), work_shapes(tps=(1,)), software())
def test_one_tensor_rank_has_no_tensor_parallel_time(spec, shape, stack):
    for kind in decoder_graph(spec, "drawn").kinds:
        cost = layer(kind, shape, stack)
        assert not np.any([cost.comm_forward_s, cost.comm_backward_s, cost.comm_hidden_s])
        assert not cost.comm_recompute_s.any()


@given(decoders(), st.integers(1, 4), st.integers(1, 32))
def test_sequence_parallelism_moves_as_many_bytes_as_all_reduce(spec, sequences, length):
    """A ring all-reduce is a reduce-scatter and an all-gather (arXiv 2205.05198, section 4.2.2).

    Where attention and MLP have a norm each on one input, two gathers face one reduction. What ranks copy for
    themselves crosses nothing.
    """
    plain, kind = Shape(sequences, 64 * length, 2, 0), block_kind(spec, USUAL)
    joined, split = (layer(kind, replace(plain, sequence_parallel=s), copy_s_per_byte=0.0) for s in (0, 1))
    extra = 1.5 if spec.parallel else 1.0
    assert split.comm_forward_s.tolist() == pytest.approx((extra * joined.comm_forward_s).tolist())


@given(decoders(), work_shapes(), software())
def test_a_chunked_loss_repeats_the_head_and_keeps_no_logits(spec, shape, stack):
    head = decoder_graph(spec, "drawn").kinds[-1]
    price = {name: layer(adapt(head, stack, kernel), shape, stack) for name, kernel in LOSSES.items()}
    products = flops(head, shape)
    assert price["chunked"].backward_flops - price["full"].backward_flops == pytest.approx(products)
    again = layer(adapt(head, stack, replace(LOSSES["full"], repeats_head=True)), shape, stack)
    assert again.backward_s > price["full"].backward_s  # chunked, it also moves fewer bytes
    for name in ("chunked", "fused"):
        assert price[name].saved_bytes[0] < price["full"].saved_bytes[0]
        peak = [p.saved_bytes[0] + p.working_bytes[0] for p in (price[name], price["full"])]
        assert peak[0] < peak[1]
