"""What runs beside a tensor group's collectives in the backward pass: the products they surround, once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.beside import windows
from meshwright.costmodels.operators import Boundary
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.roofline import total_time
from meshwright.costmodels.work import Shape
from tests.costmodels.cases import make_setting

SETTING = make_setting(overlap_backward=True)
BLOCK = next(kind for kind in SETTING.kinds if kind.role == "block")
ENTRIES = [op.name for op in BLOCK.operators if isinstance(op, Boundary) and op.direction == "enter"]


def seconds(shape: Shape, kind=BLOCK):
    return windows(kind, shape, SETTING.rates, SETTING.profile)


@given(st.sampled_from([2, 4]), st.integers(0, 1), st.integers(1, 8))
def test_windows_are_the_backward_passes_of_the_column_parallel_products_once(tp, split, sequences):
    shape = Shape(sequences, 512, tp, split)
    found = seconds(shape)
    columns = [op for op in BLOCK.operators if isinstance(op, Gemm) and op.shard == "column"]
    assert len(columns) == len(ENTRIES) == 2
    for name, product in zip(ENTRIES, columns, strict=True):
        whole = total_time(product.backward(shape), SETTING.rates, SETTING.profile, True)
        assert sum(found[name].values()) == pytest.approx(float(whole))
        assert min(found[name].values()) > 0
    leave = [w for name, own in found.items() if name not in ENTRIES for w in own.values()]
    assert leave == [0.0] * 4  # row-parallel products stand before what leaves the region


def test_a_frozen_product_makes_no_gradient_of_its_weight():
    still = tuple(replace(op, trained=False) if isinstance(op, Gemm) else op for op in BLOCK.operators)
    shape = Shape(2, 512, 2, 1)
    frozen, trained = seconds(shape, replace(BLOCK, operators=still)), seconds(shape)
    for name in ENTRIES:
        assert frozen[name]["weight_gradient"] == 0 < trained[name]["weight_gradient"]
        assert frozen[name]["input_gradient"] == trained[name]["input_gradient"]


def test_arrays_are_scalars_side_by_side():
    degrees = np.array([1, 2, 4])
    together = seconds(Shape(2, 512, degrees, 0))
    for at, tp in enumerate(degrees):
        for name, own in seconds(Shape(2, 512, int(tp), 0)).items():
            for window, value in own.items():
                assert np.broadcast_to(together[name][window], 3)[at] == pytest.approx(value)
