"""Communication beside compute: what of it the step still feels."""

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray, Num


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


def ready_in_turn(parts_s: FloatArray, first_s: FloatArray, share: Num, cost: Num) -> FloatArray:
    """Return when what each part is needed for may start, parts being fetched one behind another from 0 on.

    A part hides beside all that runs until it is needed, and as :func:`exposed_time` has it beside the first
    pass that needs it. Hiding the parts that are still to come costs ``cost`` of their seconds; what of them
    does not overlap (``1 - share``) precedes the first pass. Of one part this is :func:`exposed_time`.

    Parameters
    ----------
    parts_s, first_s
        Seconds of the parts and of the first pass that needs each, (..., V), in the order of need.
    share
        Of a window in which parts hide, between 0 and 1.
    cost
        As for :func:`exposed_time`; scalar.
    """
    here, hides = np.cumsum(parts_s, axis=-1), share * (1 - cost)
    total = here[..., -1:]
    later = here + cost * (total - here) - hides * first_s
    first = parts_s + (1 - hides) * (total - parts_s) - hides * first_s
    behind = np.arange(parts_s.shape[-1]) > 0
    return np.asarray(np.maximum(np.where(behind, later, first), np.where(behind, 0.0, cost * total)))


def exposed_in_turn(parts_s: FloatArray, windows_s: FloatArray, cost: Num) -> tuple[FloatArray, IntArray]:
    """Return the seconds that parts sent one behind another add to a step, and the part that is waited for.

    Part ``k`` is ready when ``windows[k]`` seconds of compute are left. If the network idles before it and
    never again, parts from ``k`` on are sent during that window and behind it, those before ``k`` lie hidden:
    ``cost x (parts before k) + (parts from k on) - (1 - cost) windows[k]``. The step feels the largest of
    these, and at least what hiding costs. Of one part this is :func:`exposed_time`.

    Parameters
    ----------
    parts_s, windows_s
        Seconds, (..., V), in the order in which they are ready: windows never grow.
    cost
        As for :func:`exposed_time`; scalar.

    Returns
    -------
    tuple
        Seconds (...), and the part ``k`` that makes them so many, (...); -1 where all is hidden.
    """
    sent = np.cumsum(parts_s, axis=-1)
    total, before = sent[..., -1:], sent - parts_s
    late = total - (1 - cost) * (before + windows_s)
    part = late.argmax(axis=-1)
    longest, hidden = late.max(axis=-1), cost * total[..., 0]
    return np.maximum(hidden, longest), np.where(longest > hidden, part, -1)
