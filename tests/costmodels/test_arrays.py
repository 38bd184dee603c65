"""Arrays are stacked as numpy stacks them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.arrays import ceil_div, stacked

SHAPES = ((), (1,), (3,), (2, 1), (2, 3), (1, 3))


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6), st.integers(0, 1))
def test_values_are_broadcast_and_stacked_before_their_own_axes(
    shapes: list[tuple[int, ...]], tail: int
) -> None:
    values = [np.random.default_rng(i).normal(size=(*shape, 4)[: None if tail else len(shape)])
              for i, shape in enumerate(shapes)]  # fmt: skip
    expected = np.stack(np.broadcast_arrays(*values), axis=-1 - tail)
    np.testing.assert_array_equal(stacked(values, tail), expected)


@pytest.mark.parametrize(("a", "b", "expected"), [(7, 2, 4), (8, 2, 4), (0, 3, 0)])
def test_division_rounds_up(a: int, b: int, expected: int) -> None:
    assert ceil_div(a, b) == expected
