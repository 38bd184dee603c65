"""Memory-bound operators fused or eager: bytes, tensors kept, launches."""

from dataclasses import replace

import pytest

from meshwright.costmodels.fusion import GROUPS, chain_of, unfused
from meshwright.costmodels.operators import Pointwise
from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.work import ONE_KERNEL, Shape

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
    assert chain_of(op) is None
    assert unfused(op, ALL) == op


def test_only_eager_groups_change():
    assert unfused(RMS, ALL | {"norm": "fused"}) == RMS
    assert RMS.chain == ONE_KERNEL
    product = Gemm("up", Part(8, 8, "x"), (Part(8, 8, "x"),), "column")
    assert unfused(product, ALL) is product
