"""Memory-bound operators fused or eager: bytes, tensors kept, launches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.fusion import EXPERT_BIASES, GROUPS, bias_chain, chain_of, unfused
from meshwright.costmodels.moe import ExpertActivation, ExpertGemm
from meshwright.costmodels.operators import Operator, Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.profiles import find_profile, sourced_profiles
from meshwright.costmodels.work import IN_EPILOGUE, ONE_KERNEL, Shape

ONE = Shape(1, 10, 1, 0)
RMS = Pointwise("norm", "sequence", 8, 8, saves=8, weights=8, group="norm")
LAYER = Pointwise("norm", "sequence", 8, 8, saves=8, weights=16, group="norm")
GATED = Pointwise("act", "tensor", 16, 8, saves=8, units=8, backward_ratio=5 / 3, group="activation")
PLAIN = Pointwise("act", "tensor", 8, 8, saves=8, units=8, group="activation")
ALL = dict.fromkeys(GROUPS, "eager")


def test_an_eager_rms_norm_moves_36_bytes_a_feature_and_keeps_4_more():
    chain = unfused(RMS, ALL)
    assert chain.forward(ONE)[0].bytes == 36 * 8 * 10
    assert chain.backward(ONE)[0].bytes == pytest.approx(86 * 8 * 10)
    assert chain.saved_bytes(ONE) - RMS.saved_bytes(ONE) == 4 * 8 * 10
    assert chain.forward(ONE)[0].kernels == 6


def test_an_eager_rms_norm_of_32_bits_casts_nothing():
    wide = replace(ONE, element_bytes=4)
    chain = unfused(RMS, ALL, wide=True)
    assert chain.forward(wide)[0].bytes == 28 * 8 * 10
    assert chain.backward(wide)[0].bytes == pytest.approx(80 * 8 * 10)
    assert chain.saved_bytes(wide) - RMS.saved_bytes(wide) == 4 * 8 * 10
    assert chain.forward(wide)[0].kernels < unfused(RMS, ALL).forward(ONE)[0].kernels
    assert unfused(GATED, ALL, wide=True) == unfused(GATED, ALL)


def test_an_eager_gated_activation_moves_10_and_18_bytes_and_keeps_the_gate():
    chain = unfused(GATED, ALL)
    assert chain.forward(ONE)[0].bytes == 10 * 8 * 10
    assert chain.backward(ONE)[0].bytes == pytest.approx(18 * 8 * 10)
    assert chain.saved_bytes(ONE) - GATED.saved_bytes(ONE) == 2 * 8 * 10


@pytest.mark.parametrize("op", [LAYER, PLAIN, Pointwise("sum", "sequence", 16, 8, group="residual")])
def test_what_is_one_kernel_in_pytorch_stays_one(op):
    assert chain_of(op, ALL) is None
    assert unfused(op, ALL) == op


def test_only_eager_groups_change():
    assert unfused(RMS, ALL | {"norm": "fused"}) == RMS
    assert RMS.chain == ONE_KERNEL
    product = Gemm("up", Part(8, 8, "x"), (Part(8, 8, "x"),), "column")
    assert unfused(product, ALL) is product


FUSED = dict.fromkeys(GROUPS, "fused")
CLAMPS = FUSED | {"clamp": "eager"}
EXPERT = ExpertActivation("act", 1, 16, 8, 8, 8)
WIDE = replace(ONE, element_bytes=4)
gates = st.sampled_from(["plain", "clamped", "clamped_offset"])


def per_feature(op: Operator, shape: Shape = ONE) -> tuple[float, float]:
    """Return the bytes of both passes for each of the 8 inner features of a token."""
    passes = (
        (sum(w.bytes for w in works) / (8 * shape.tokens))
        for works in (op.forward(shape), op.backward(shape))
    )
    forward, backward = passes
    return pytest.approx(forward), pytest.approx(backward)


@pytest.mark.parametrize("op", [GATED, EXPERT])
@pytest.mark.parametrize(
    ("gate", "how", "narrow", "wide", "kept"),
    [
        # clamps 4 + 4, silu 4, product 6; masks and choices 8 + 14, the silu's 18
        ("clamped", ALL, (18, 40), (36, 72), 6),
        # clamps 4 + 4, scale 4, sigmoid 4, product 6, sum 4, product 6; masks and choices 22, the gate's 40
        ("clamped_offset", ALL, (32, 62), (64, 116), 8),
        # clamps 4 + 4, join 8, kernel 6; kernel 10, masks and choices 22, join 8
        ("clamped", CLAMPS, (22, 40), (44, 72), 4),
        ("clamped_offset", CLAMPS, (22, 40), (44, 72), 4),
        ("clamped_offset", FUSED, (6, 10), (12, 20), 0),
        ("plain", CLAMPS, (6, 10), (12, 20), 0),
    ],
)
def test_clamped_branches_move_what_their_operators_read_and_write(op, gate, how, narrow, wide, kept):
    op = replace(op, gate=gate)
    chain = unfused(op, how)
    assert per_feature(chain) == narrow
    assert per_feature(unfused(op, how, wide=True), WIDE) == wide
    assert chain.saved_bytes(ONE) - op.saved_bytes(ONE) == kept * 8 * 10


@given(gates, st.booleans())
def test_a_stack_that_fuses_less_moves_and_launches_no_less(gate, wide):
    shape = WIDE if wide else ONE
    ways = [unfused(replace(EXPERT, gate=gate), how, wide) for how in (FUSED, CLAMPS)]
    fused, clamps = (op.forward(shape) + op.backward(shape) for op in ways)
    for a, b in zip(fused, clamps, strict=True):
        assert a.bytes <= b.bytes and a.kernels <= b.kernels
        assert (a == b) == (gate == "plain")


@given(
    st.integers(1, 16), st.integers(1, 8), st.sampled_from(list(EXPERT_BIASES)), st.booleans(), st.booleans()
)
def test_biases_of_the_second_product_alone_are_weighted_behind_it(number, topk, how, wide, biased):
    inner, outer = Part(8, 8, "x", axis="expert_tensor"), Part(24, 24, "hidden")
    first = ExpertGemm("up", number, topk, outer, (inner, inner), "column", biased)
    last = ExpertGemm("down", number, topk, inner, (outer,), "row", biased)
    assert bias_chain(first, how, wide) == IN_EPILOGUE
    chain = bias_chain(last, how, wide)
    assert (chain == IN_EPILOGUE) == (how == "epilogue" or not biased)
    if chain != IN_EPILOGUE:
        # product, sum, join and cast; casts, two products, two sums and a join (no casts of 32 bits)
        assert chain.forward == (4 + 12 + 8 if wide else 4 + 10 + 8 + 6)
        assert chain.backward == (8 + 8 + 4 + 4 + 8 if wide else 6 + 6 + 8 + 8 + 4 + 4 + 4)
        shape = replace(ONE, element_bytes=4 if wide else 2)
        more, less = (
            sum(w.bytes for w in op.forward(shape)) for op in (replace(last, bias_chain=chain), last)
        )
        assert more - less == pytest.approx(chain.forward * 24 * 10 * topk)


@pytest.mark.parametrize("name", sourced_profiles())
def test_a_stack_with_eager_activations_clamps_apart(name):
    profile = find_profile(name)
    assert (profile.activation, profile.clamp) != ("eager", "fused")
