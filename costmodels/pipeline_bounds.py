"""Lower bounds on the makespan of a pipeline whatever the split of its work over the chunks, in closed form.

They are what the search prices all meshes with before it builds any schedule. Each is the length of paths
through the schedule, so never above the simulation. Sources of the orders:
:mod:`meshwright.costmodels.disciplines`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.schedule import names, rank_of_chunk, splits_backward
from meshwright.hardware.errors import UnknownNameError

_WAITED_WORK: dict[str, Callable[[IntArray, int, FloatArray], ArrayLike]] = {
    "gpipe": lambda m, behind, fraction: m - 1,
    "1f1b": lambda m, behind, fraction: m - 1 - (np.minimum(m, behind) - 1) * fraction,
}
"""Times that a path through every chunk, forward and back, holds one rank's work after the first time, from
(micro-batches, ranks from this one to the last, forward fraction). The path is: first micro-batch through all
chunks and back to the rank, all that the rank has left to do, last micro-batch back to chunk 0. Under 1F1B
the rank has run ``min(m, behind)`` forwards by then; under GPipe the path waits for its forwards too. The
other schedules use it only as the chain of a single micro-batch."""


def _through_bound(name: str, pp: IntArray, m: IntArray, fraction: FloatArray) -> FloatArray:
    """Lower bound on makespan / work from paths through all chunks: ``1 + 1 / sum over ranks of 1 / waited``.

    If every path ``work + waited[r] * work[r]`` is at most M, then ``work[r] <= (M - work) / waited[r]``; the
    sum over ranks gives the bound.
    """
    if name not in _WAITED_WORK:
        return np.ones(np.broadcast_shapes(pp.shape, m.shape, fraction.shape))
    inverse = np.zeros(np.broadcast_shapes(pp.shape, m.shape, fraction.shape))
    with np.errstate(divide="ignore"):
        for behind in range(1, int(pp.max()) + 1):
            waited = np.asarray(_WAITED_WORK[name](m, behind, fraction), dtype=np.float64)
            inverse = inverse + np.where(behind <= pp, 1 / waited, 0)
    return 1 + 1 / inverse


def _ladder_bound(pp: IntArray, vpp: IntArray, m: IntArray) -> FloatArray:
    """Lower bound on makespan / work from what each rank waits for at the start and leaves behind at the end.

    For rank ``r`` and its chunk of place ``l`` the path is: first micro-batch up to that chunk, all that the
    rank then does up to its last backward of that chunk, and on back to chunk 0. It holds all passes of the
    rank but a group of micro-batches in the places below ``l``, and each chunk before it once. The mean over
    ``l``, weighted over ranks, holds the chunk of rank ``r`` with ``above`` places above its own
    ``weight[r] m + (above (1 - weight[r] group) + sum of weight beyond r) / vpp`` times. Any weights that sum
    to 1 give a bound, the smallest of these; the ones here make them nearly equal.
    """
    group = np.where(m % pp == 0, pp, m)  # at least the schedule's own, which may only strengthen the bound
    ranks = range(int(pp.max()) - 1, -1, -1)
    aim = m / pp + (pp - 1) / (2 * pp * vpp)
    weights, total = [], np.zeros(np.broadcast_shapes(pp.shape, vpp.shape, m.shape))
    for rank in ranks:
        equalising = [(aim * vpp - above - total) / (m * vpp - above * group) for above in (0 * vpp, vpp - 1)]
        weights.append(np.where(rank < pp, np.maximum(*equalising), 0))
        total = total + weights[-1]
    bound, beyond = np.full(total.shape, np.inf), np.zeros(total.shape)
    for rank, weight in zip(ranks, weights, strict=True):
        share = weight / total
        held = share * m + (np.minimum(0, (vpp - 1) * (1 - share * group)) + beyond) / vpp
        bound = np.minimum(bound, np.where(rank < pp, held, np.inf))
        beyond = beyond + share
    return bound


_STAIRS = {"zb1p": 1, "zb2p": 2}
"""Forwards of warm-up that a rank has more than the one behind it."""


def _stairs_bound(hops: int, pp: IntArray, m: IntArray, work: FloatArray, weight: FloatArray) -> FloatArray:
    """Lower bound on the makespan of zero-bubble loops from the wait for the first backward.

    For rank ``r`` the path is: first micro-batch through all chunks and back to the rank, and all that the
    rank has left to do. It holds every forward once, the backwards of the ranks from ``r`` on once, and of
    rank ``r`` ``m - 1 - hops (pp - 1 - r)`` forwards more (the others ran while it waited), ``m - 1``
    backwards more, and all ``m`` weight passes. The weighted mean over ranks holds any second of work as
    often as its smallest coefficient at least; the weights here equalise those of the backwards.
    """
    ratio = 1 - 1 / m
    level = 1 / (1 - ratio**pp)
    shape = np.broadcast_shapes(level.shape, work.shape, weight.shape)
    either, apart = np.broadcast_to(level, shape), level * ratio ** (pp - 1)
    for rank in range(int(pp.max())):
        share = level * ratio**rank / m
        forwards = 1 + share * np.maximum(m - 1 - hops * (pp - 1 - rank), 0)
        either = np.where(rank < pp, np.minimum(either, forwards), either)
    return work * either + weight * np.minimum(apart - either, 0)


def _split_bound(name: str, pp: IntArray, m: IntArray, work: FloatArray, weight: FloatArray) -> FloatArray:
    """Lower bound for schedules with weight passes: the mean rank's work, and the wait for backwards."""
    even = m / pp * work
    return np.maximum(even, _stairs_bound(_STAIRS[name], pp, m, work, weight)) if name in _STAIRS else even


def _transfers(name: str, pp: IntArray, vpp: IntArray) -> IntArray:
    """Transfers of one micro-batch through all chunks and back; the turn of a V stays on its rank."""
    turns = 1 if rank_of_chunk(name, 2, 2)[2] == 1 else 0
    return np.asarray(2 * (pp * vpp - 1 - turns) * (pp > 1))


def uniform_bound(
    name: str,
    pp: ArrayLike,
    vpp: ArrayLike,
    num_microbatches: ArrayLike,
    total_s: ArrayLike,
    forward_fraction_max: ArrayLike,
    transfer_s: ArrayLike = 0.0,
    weight_s: ArrayLike = np.inf,
) -> FloatArray:
    """Lower bound on the makespan over all ways to spread work over the chunks, in seconds.

    Parameters
    ----------
    name
        The schedule; every argument but this one broadcasts, and the sizes must be legal for it.
    pp, vpp, num_microbatches
        As for `meshwright.costmodels.schedule.build`.
    total_s
        Seconds of the forward and backward of one micro-batch through the whole model.
    forward_fraction_max
        The most that the forward takes of forward + backward in any chunk. Only "1f1b" depends on it: a
        rank that waits for its first backward has forwards done already.
    transfer_s
        Seconds of one transfer between ranks.
    weight_s
        Seconds of ``total_s`` that are weight gradients, at most; matters only where these are passes of
        their own, which no other rank waits for. Infinite: all of them may be.

    Raises
    ------
    UnknownNameError
        No schedule has this name.
    """
    if name not in names():
        raise UnknownNameError("schedule", name, list(names()))
    pp, vpp, m = (np.asarray(size, dtype=np.int64) for size in (pp, vpp, num_microbatches))
    work, fraction = np.asarray(total_s, dtype=np.float64), np.asarray(forward_fraction_max, dtype=np.float64)
    hops = _transfers(name, pp, vpp) * np.asarray(transfer_s)
    if splits_backward(name):
        apart = np.minimum(np.asarray(weight_s, dtype=np.float64), work)
        return np.asarray(np.maximum(work - apart + hops, _split_bound(name, pp, m, work, apart)))
    through = work * _through_bound(name, pp, m, fraction) + hops
    within_ranks = work * np.maximum(m / pp, _ladder_bound(pp, vpp, m))
    return np.asarray(np.maximum(through, within_ranks))
