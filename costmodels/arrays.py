"""Array types shared by the cost models: every size, count and rate may be a scalar or an array."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Num: TypeAlias = Any
"""A scalar or a numpy array that broadcasts with its neighbours (int, float, IntArray, FloatArray)."""


def ceil_div(a: Num, b: Num) -> Num:
    """Return ``a / b`` rounded up, for non-negative integers; broadcasts."""
    return -(-a // b)
