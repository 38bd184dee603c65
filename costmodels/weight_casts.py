"""Weights that ZeRO-3 gathers in 16 bits and every pass casts anew for its 8- and 4-bit products.

A gathered weight is freed after the pass, and its quantised copy with it (torchao's float8 linear without
``enable_fsdp_float8_all_gather``; Transformer Engine's copies live in the module's weight). The forward pass
reads one copy and the backward pass another. Left out: weights that stay, which are cast once a step; shards
that are cast before they are gathered (a share of this); and the copy of a pass that recomputation repeats.
"""

import numpy as np

from meshwright.costmodels.arrays import FloatArray
from meshwright.costmodels.precision import CAST_SHARES
from meshwright.costmodels.strategy import Setting, Strategies


def weight_cast_s(setting: Setting, s: Strategies, low_parameters: FloatArray) -> FloatArray:
    """Return the seconds in which a pass casts the weights of a layer, (B, K).

    Parameters
    ----------
    low_parameters
        Parameters of low-precision products on a rank by place, (B, K, places).
    """
    recipe, rates = setting.precision, setting.rates
    if recipe.weight_bytes is not None:
        return np.zeros(low_parameters.shape[:-1])
    moved = recipe.cast_bytes(1) * low_parameters.sum(axis=-1) * (s.zero_stage == 3)[:, None]
    share = CAST_SHARES.get(rates.architecture, 1.0)
    return np.asarray(moved / (rates.memory_bytes_per_s * rates.memory_fraction * share))
