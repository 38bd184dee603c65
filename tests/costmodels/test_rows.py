"""An operator on other rows is the operator on another shape; a product of activations has no weights."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.part import Part
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.rows import Contraction, OnRows
from meshwright.costmodels.work import Shape

GEMM = Gemm("x", Part(64, 64, "hidden features"), (Part(96, 96, "columns"),), "replicated", saves_output=True)


@given(st.floats(0.01, 8), st.integers(1, 8), st.integers(1, 4096))
def test_rows_scale_work_and_memory_but_no_weight(ratio: float, sequences: int, length: int) -> None:
    shape, op = Shape(sequences, length, 1, False), OnRows(GEMM, ratio)
    assert op.parameters() == GEMM.parameters()
    assert op.local_parameters(shape) == GEMM.local_parameters(shape)
    assert op.forward(shape)[0].flops == pytest.approx(ratio * GEMM.forward(shape)[0].flops)
    assert op.saved_bytes(shape) == pytest.approx(ratio * GEMM.saved_bytes(shape))
    assert OnRows(GEMM, 1.0).backward(shape) == GEMM.backward(shape)


@given(st.integers(1, 16), st.booleans())
def test_products_of_activations_split_with_their_operands(tp: int, split: bool) -> None:
    op = Contraction("x", flops=1000.0, features=48.0, rows=16, columns=16, inner=16, split=split)
    shape = Shape(2, 512, tp, False)
    share = 1 / tp if split else 1.0
    assert op.forward(shape)[0].flops == pytest.approx(1000.0 * 1024 * share)
    backward = sum(w.flops for w in op.backward(shape))
    assert backward == pytest.approx(2 * op.forward(replace(shape))[0].flops)
    assert op.parameters() == 0
