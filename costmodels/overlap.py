"""Communication beside compute: what of it the step still feels."""

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num


def exposed_time(communication_s: Num, window_s: Num, cost: Num) -> FloatArray:
    """Return the seconds that communication adds to a step when compute runs beside it.

    What fits into the window is hidden, but each hidden second slows the compute beside it by ``cost``
    seconds (cores and memory bandwidth are shared; measured slowdown 1.19 in the mean, arXiv 2507.03114):
    ``max(cost x, x - (1 - cost) window)``. Convex and piecewise linear, so CP-SAT has it exactly.

    Parameters
    ----------
    communication_s, window_s
        Seconds; broadcast.
    cost
        Between 0 (hidden for free) and 1 (nothing gained by overlap).
    """
    late = communication_s - (1 - cost) * np.asarray(window_s)
    return np.asarray(np.maximum(cost * np.asarray(communication_s), late))
