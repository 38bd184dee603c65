"""A micro-batch's shape: how many tokens a rank sees, and in how many pieces."""

import numpy as np
import pytest

from meshwright.costmodels.arrays import ceil_div
from meshwright.costmodels.work import Shape


@pytest.mark.parametrize(("tp", "sequence_parallel", "split"), [(1, 0, 1), (8, 0, 1), (8, 1, 8), (1, 1, 1)])
def test_the_sequence_is_split_by_tp_only_under_sequence_parallelism(tp, sequence_parallel, split):
    assert Shape(2, 512, tp, sequence_parallel).sequence_split == split


def test_shapes_broadcast():
    shape = Shape(np.array([1, 2, 4]), 512, np.array([1, 2, 8]), np.array([0, 0, 1]))
    assert shape.tokens.tolist() == [512, 1024, 2048]
    assert shape.sequence_split.tolist() == [1, 1, 8]


def test_division_rounds_up_for_scalars_and_arrays():
    assert ceil_div(7, 2) == 4
    assert ceil_div(np.array([0, 8, 9]), 4).tolist() == [0, 2, 3]
