"""V-half and V-min: orders that repeat one building block every six passes, whose lifespan is the memory.

The block says at which slot each rank runs the passes of one micro-batch, all passes being equally long; the
next micro-batch follows six slots later (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory",
arXiv 2405.15362, section 3). The order of forwards and input gradients is the block's. Weight gradients fill
the slots in which a rank would wait, and come earlier where the next forward would hold more in flight than
the repeated block does (the paper's squeezing and reordering, here by one greedy rule). Left out: the search
over blocks for unequal passes.
"""

from collections import deque
from functools import lru_cache

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.orders import BACKWARD, FORWARD, WEIGHT, Order

PERIOD = 6
"""Passes of one micro-batch on a rank: forward, input gradient and weight gradient of two chunks."""


def v_min_block(pp: int) -> IntArray:
    """Slots of (F0, F1, B1, B0) on each rank, (pp, 4), one from rank to rank; a third of 1F1B's memory."""
    rank = np.arange(pp)
    turn = 2 * pp + 2 * (pp % 3 == 0)  # where the loss leaves no free slots, the backward starts two later
    return np.stack([rank, 2 * pp - 1 - rank, turn + rank, turn + 2 * pp - 1 - rank], axis=1)


def v_half_block(pp: int) -> IntArray:
    """Slots of (F0, F1, B1, B0), (pp, 4), two down and one up the ranks; half of 1F1B's memory."""
    rank = np.arange(pp)
    turn = 3 * pp + 3 * (pp % 2 == 0)
    return np.stack([2 * rank, 3 * pp - 2 - rank, turn + 2 * rank, turn + 3 * pp - 2 - rank], axis=1)


_BLOCKS = {"v_min": v_min_block, "v_half": v_half_block}


def in_flight_limit(name: str, pp: int) -> int:
    """Micro-batches times chunks that the fullest rank holds where the block is repeated for ever.

    Each weight gradient stands in the first free slot behind its backward.
    """
    most = 0
    for slots in _BLOCKS[name](pp):
        free = np.setdiff1d(np.arange(PERIOD), slots % PERIOD)
        ends = np.empty(2, dtype=np.int64)
        for place, backward in ((1, slots[2]), (0, slots[3])):
            ahead = (free - backward - 1) % PERIOD
            ends[place] = backward + 1 + ahead.min()
            free = np.delete(free, ahead.argmin())
        now = np.arange(PERIOD)[:, None]
        alive = (now - slots[:2]) // PERIOD - (now - ends) // PERIOD
        most = max(most, int(alive.sum(axis=1).max()))
    return most


def _main_order(slots: IntArray, num_microbatches: int) -> list[tuple[int, int, int]]:
    """(kind, place, micro-batch) of a rank's forwards and input gradients by rising slot."""
    passes = ((FORWARD, 0), (FORWARD, 1), (BACKWARD, 1), (BACKWARD, 0))
    timed = sorted(
        (int(slot) + PERIOD * m, kind, place, m)
        for m in range(num_microbatches)
        for slot, (kind, place) in zip(slots, passes, strict=True)
    )
    return [(kind, place, m) for _, kind, place, m in timed]


class _Rank:
    """One rank in the greedy run."""

    def __init__(self, pp: int, rank: int, main: list[tuple[int, int, int]], limit: int) -> None:
        self.chunks, self.last, self.limit = (rank, 2 * pp - 1 - rank), 2 * pp - 1, limit
        self.main, self.waiting = deque(main), deque[int]()
        self.alive = 0
        self.ran: list[tuple[int, int]] = []

    def _needed(self) -> tuple[int, int, int] | None:
        """Return the pass (kind, chunk, micro-batch) whose output the next one of the main order needs."""
        kind, place, m = self.main[0]
        chunk = self.chunks[place]
        if kind == FORWARD:
            return (FORWARD, chunk - 1, m) if chunk else None
        return (BACKWARD, chunk + 1, m) if chunk < self.last else (FORWARD, chunk, m)

    def step(self, done: set[tuple[int, int, int]]) -> tuple[int, int, int] | None:
        """Run the next pass if its input is there, else a weight pass; return what others may wait for."""
        needed = self._needed() if self.main else None
        ready = bool(self.main) and (needed is None or needed in done)
        if ready and (self.main[0][0] == BACKWARD or self.alive < self.limit):
            kind, place, m = self.main.popleft()
            self.ran.append((kind, place))
            self.alive += kind == FORWARD
            if kind == BACKWARD:
                self.waiting.append(place)
            return kind, self.chunks[place], m
        if self.waiting:
            self.ran.append((WEIGHT, self.waiting.popleft()))
            self.alive -= 1
        return None


@lru_cache(maxsize=64)
def _greedy(name: str, pp: int, num_microbatches: int) -> tuple[IntArray, ...]:
    """(kind, place) of each rank, ``(operations, 2)``: all ranks advance together, a pass a round."""
    limit = in_flight_limit(name, pp)
    ranks = [
        _Rank(pp, rank, _main_order(slots, num_microbatches), limit)
        for rank, slots in enumerate(_BLOCKS[name](pp))
    ]
    done: set[tuple[int, int, int]] = set()
    while any(rank.main or rank.waiting for rank in ranks):
        done.update([made for rank in ranks if (made := rank.step(done)) is not None])
    return tuple(np.array(rank.ran) for rank in ranks)


def repeated_blocks(name: str, pp: int, num_microbatches: int) -> list[Order]:
    """Return the order of every rank.

    The greedy run is periodic from ``2 pp`` micro-batches on; more of them repeat six passes in the middle.
    """
    few = min(num_microbatches, 3 * pp)
    middle, orders = PERIOD * few // 2, []
    for ran in _greedy(name, pp, few):
        again = np.tile(ran[middle : middle + PERIOD], (num_microbatches - few, 1))
        kind, place = np.concatenate([ran[:middle], again, ran[middle:]]).T
        orders.append(Order(kind, place, np.zeros(kind.shape, dtype=bool)))
    return orders
