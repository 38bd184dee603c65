"""Array types shared by the cost models: every size, count and rate may be a scalar or an array."""

from collections.abc import Sequence
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


def stacked(values: Sequence[Num], tail: int = 0) -> FloatArray:
    """Return values broadcast together and stacked on a new axis, with ``tail`` axes of their own behind it.

    The same as :func:`numpy.stack` of :func:`numpy.broadcast_arrays`, in a fraction of its time for the few
    small arrays that a layer's price is made of.
    """
    arrays = [np.asarray(v, dtype=np.float64) for v in values]
    full = np.broadcast(*arrays).shape
    lead = len(full) - tail
    out = np.empty((*full[:lead], len(arrays), *full[lead:]))
    places = np.moveaxis(out, lead, 0)
    for i, array in enumerate(arrays):
        places[i] = array
    return out
