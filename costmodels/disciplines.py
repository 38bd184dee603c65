"""What distinguishes one schedule from another: where chunks live, in which order ranks run, what is legal.

Memory is micro-batches in flight times a rank's share of the model, on the fullest rank. The bubble is the
most that a rank of equal chunks waits between its first and its last pass, for passes F, B (input gradient)
and W (weight gradient) of a rank's whole share. ``p`` ranks, ``m`` micro-batches, ``v`` chunks a rank.

==============  ===========================================  =================  ==========================
name            source                                       memory             bubble
==============  ===========================================  =================  ==========================
gpipe           Huang et al. 2019                            m                  (p - 1) (F + B + W)
1f1b            Narayanan et al. 2021 (Megatron-LM)          p                  (p - 1) (F + B + W)
1f1b_ahead      1f1b, one forward more ahead         p + 1              (p - 1) (F + B + W)
interleaved     Narayanan et al. 2021, section 2.2           p + (p - 1) / v    (p - 1) (F + B + W) / v
zb1p            Qi et al. 2023, arXiv 2401.10241, ZB-H1      p on every rank    (p - 1) (F + B - W)
zb2p            the same paper, ZB-H2                        2 p - 1            (p - 1) (F + B - 2 W)
interleaved_zb  torch's ScheduleInterleavedZeroBubble        p on every rank    (p - 1) (F + B - W) / v
zbv             torch's ScheduleZBVZeroBubble                p                  none if F = B = W
v_half          Qi et al. 2024, arXiv 2405.15362             about p / 2        1f1b's half if F = B = W
v_min           the same paper                               about p / 3        1f1b's 2/3 if F = B = W
dualpipev       torch's ScheduleDualPipeV, arXiv 2412.19437  p + 1/2            (p - 1) (F + B - W) / 2
==============  ===========================================  =================  ==========================

Ranks that end one after the other wait for the last one: a step's gradient norm is a barrier here, so zb2p
and zbv still cost ``(p - 1) F``; the papers move that check behind the optimizer. What the zero-bubble
schedules gain shrinks as passes differ in length. 1f1b_ahead is what pipeline engines run that issue the next
forward before they wait for a gradient. DualPipe-V's own gain, kernels of a forward beside those
of a backward, is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.building_blocks import repeated_blocks
from meshwright.costmodels.orders import Order, loop_order, virtual_order
from meshwright.costmodels.orders_v import dualpipev, zbv

Objection = Callable[[int, int, int], str | None]


@dataclass(frozen=True)
class Discipline:
    """One schedule.

    Attributes
    ----------
    orders
        (pp, vpp, micro-batches) -> the order of every rank.
    objection
        (pp, vpp, micro-batches) -> why this schedule cannot run so, or None.
    split
        Whether weight gradients are passes of their own.
    v_shaped
        Whether rank ``r`` holds chunks ``r`` and ``2 pp - 1 - r`` rather than every ``pp``-th.
    rounds
        What is in flight is reached within so many times ``pp`` micro-batches; 0 if never.
    """

    orders: Callable[[int, int, int], list[Order]]
    objection: Objection
    split: bool = False
    v_shaped: bool = False
    rounds: int = 2


def group_size(pp: int, vpp: int, num_microbatches: int) -> int:
    """Micro-batches run through one chunk before the next one, the smallest that Megatron-Core accepts.

    Megatron-Core (``forward_backward_pipelining_with_interleaving``) wants at least ``pp`` micro-batches in a
    group and none or at least ``pp`` left over for the last group, because a shorter group stalls or
    deadlocks the ranks. It is ``pp`` where ``pp`` divides the micro-batches. Where torch's ``m // (m // pp)``
    divides the micro-batches, it is that.
    """
    if vpp == 1:
        return num_microbatches
    sizes = np.arange(pp, num_microbatches + 1)
    left = num_microbatches % sizes
    return int(sizes[(left == 0) | (left >= pp)][0])


def _gpipe(pp: int, vpp: int, m: int) -> list[Order]:
    """All forwards, then all backwards in the same order, as torch's ``ScheduleGPipe``."""
    return pp * [loop_order(virtual_order(vpp, m, m), m, None)]


def _loop(hops: int, delay: int | None = None) -> Callable[[int, int, int], list[Order]]:
    """Return the orders of a loop-shaped schedule.

    ``hops`` forwards more of warm-up, and ``delay`` backwards fewer before the first weight pass, for every
    rank that comes behind; beyond the first chunk a rank warms up with whole groups. Sources: Megatron-LM
    ``pp - rank - 1``; Megatron-Core ``2 (pp - rank - 1) + (vpp - 1) group``; torch ``_get_warmup_ops`` and
    ``num_1f1b_microbatches = rank`` (zero bubble, which with one chunk a rank is ZB-H1); ZB-H2 doubles both,
    so that ``2 pp - 1`` micro-batches fill the wait for the first backward.
    """

    def orders(pp: int, vpp: int, m: int) -> list[Order]:
        """Return the order of every rank."""
        group = group_size(pp, vpp, m)
        forwards = virtual_order(vpp, m, group)
        return [
            loop_order(
                forwards,
                hops * (pp - 1 - rank) + (vpp - 1) * group,
                None if delay is None else delay * rank,
            )
            for rank in range(pp)
        ]

    return orders


def _ahead(pp: int, vpp: int, m: int) -> list[Order]:
    """Return 1F1B with one forward more of warm-up on all ranks but the last."""
    forwards = virtual_order(vpp, m, m)
    return [loop_order(forwards, pp - 1 - rank + (rank < pp - 1), None) for rank in range(pp)]


def _by_rank(order: Callable[[int, int, int], Order]) -> Callable[[int, int, int], list[Order]]:
    return lambda pp, vpp, m: [order(pp, rank, m) for rank in range(pp)]


def _blocks(name: str) -> Callable[[int, int, int], list[Order]]:
    return lambda pp, vpp, m: repeated_blocks(name, pp, m)


def _one_chunk(many: str) -> Objection:
    """One chunk a rank; ``many`` is the schedule with more."""
    return lambda pp, vpp, m: (
        None if vpp == 1 else f"vpp = {vpp}: one chunk per rank only (use {many!r} for vpp >= 2)"
    )


def _several_chunks(one: str) -> Objection:
    """Several chunks a rank; ``one`` is the schedule with one."""

    def objection(pp: int, vpp: int, m: int) -> str | None:
        """Return why it cannot run, or None."""
        if vpp < 2:
            return f"vpp = {vpp}: needs at least 2 chunks per rank (use {one!r} for vpp = 1)"
        if pp < 2:
            return f"pp = {pp}: needs at least 2 ranks (use {one!r} for pp = 1)"
        if m < pp:
            return f"num_microbatches = {m}: needs at least pp = {pp} (lower pp or micro_batch_size)"
        return None

    return objection


def _in_rounds(pp: int, vpp: int, m: int) -> str | None:
    """``ScheduleInterleavedZeroBubble`` runs equal rounds only."""
    reason = _several_chunks("zb1p")(pp, vpp, m)
    rounds = max(1, m // pp)
    if reason is None and m % rounds:
        near = *[n for n in range(pp, m) if n % (n // pp) == 0][-1:], -(-m // pp) * pp
        options = " or ".join(map(str, near))
        return f"num_microbatches = {m}: must be a multiple of m // pp = {rounds} (for example {options})"
    return reason


def _v(least_per_rank: int = 0) -> Objection:
    """Two chunks on each of at least two ranks, and so many micro-batches for each rank."""

    def objection(pp: int, vpp: int, m: int) -> str | None:
        """Return why it cannot run, or None."""
        if vpp != 2:
            return f"vpp = {vpp}: V-shaped, needs exactly 2 chunks per rank"
        if pp < 2:
            return f"pp = {pp}: needs at least 2 ranks (use '1f1b' for pp = 1)"
        if m < least_per_rank * pp:
            return f"num_microbatches = {m}: needs at least {least_per_rank} pp = {least_per_rank * pp}"
        return None

    return objection


DISCIPLINES: dict[str, Discipline] = {
    "gpipe": Discipline(_gpipe, _one_chunk("interleaved"), rounds=0),
    "1f1b": Discipline(_loop(1), _one_chunk("interleaved")),
    "1f1b_ahead": Discipline(_ahead, _one_chunk("interleaved")),
    "interleaved": Discipline(_loop(2), _several_chunks("1f1b")),
    "zb1p": Discipline(_loop(1, 1), _one_chunk("interleaved_zb"), split=True),
    "zb2p": Discipline(_loop(2, 2), _one_chunk("interleaved_zb"), split=True),
    "interleaved_zb": Discipline(_loop(1, 1), _in_rounds, split=True),
    "zbv": Discipline(_by_rank(zbv), _v(), split=True, v_shaped=True),
    "v_half": Discipline(_blocks("v_half"), _v(), split=True, v_shaped=True),
    "v_min": Discipline(_blocks("v_min"), _v(), split=True, v_shaped=True),
    "dualpipev": Discipline(_by_rank(dualpipev), _v(2), split=True, v_shaped=True),
}
