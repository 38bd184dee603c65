"""What runs beside the collectives of a tensor group in the backward pass of the products they surround.

A column-parallel product computes its input's gradient while its input is gathered again (sequence
parallelism), and its weight's gradient while its input's is reduced or scattered (Megatron-LM
``LinearWithGradAccumulationAndAsyncCommunication``, Transformer Engine, flash-attn ``FusedDenseFunc``). A
frozen weight has no gradient to compute, so nothing hides there.

Left out: schedules that put weight gradients off (zero bubble), whose reductions run beside nothing; and that
of several reductions behind one boundary (projections of their own) each has its own product's window alone.
"""

from collections.abc import Mapping

import numpy as np

from meshwright.costmodels.arrays import Num
from meshwright.costmodels.operators import Boundary, LayerKind
from meshwright.costmodels.product import Gemm
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.roofline import DeviceRates, total_time
from meshwright.costmodels.work import Shape, Window


def windows(
    kind: LayerKind, shape: Shape, rates: DeviceRates, profile: Profile
) -> dict[str, Mapping[Window, Num]]:
    """Return by the names of boundaries the seconds of what the products behind them compute, each (...).

    A boundary leads to the column-parallel products up to the next boundary; zero where none follow.
    """
    found: dict[str, dict[Window, Num]] = {}
    at: dict[Window, Num] = {}
    for op in kind.operators:
        if isinstance(op, Boundary):
            nothing: Num = np.float64(0.0)
            at = found[op.name] = {"input_gradient": nothing, "weight_gradient": nothing}
        elif at and isinstance(op, Gemm) and op.shard == "column":
            works = op.backward(shape)
            own = total_time(tuple(w for w in works if w.weight_gradient), rates, profile, True)
            at["weight_gradient"] = at["weight_gradient"] + own
            rest = total_time(tuple(w for w in works if not w.weight_gradient), rates, profile, True)
            at["input_gradient"] = at["input_gradient"] + rest
    return dict(found)
