"""Orders of passes on ranks, from which schedules are built: repeated patterns, and the loop-shaped orders.

A rank's order is a sequence of (kind of pass, place of the chunk on the rank). Micro-batches need no telling:
every kind of pass of a chunk takes them in rising order.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray

FORWARD = 0
BACKWARD = 1
WEIGHT = 2
NUM_KINDS = 3


@dataclass(frozen=True, eq=False)
class Order:
    """The passes of one rank in running order, each field ``(operations,)``.

    Attributes
    ----------
    kind
        ``FORWARD``, ``BACKWARD`` or ``WEIGHT``. Without weight passes a backward is the whole one.
    place
        Which of the rank's chunks, in model order.
    whole
        Whether a backward is one kernel sequence with the weight pass behind it, so that its input gradient
        leaves the rank only after both.
    """

    kind: IntArray
    place: IntArray
    whole: BoolArray

    def until(self, num_microbatches: int) -> "Order":
        """Return the order without the micro-batches from this number on."""
        keep = self.microbatch < num_microbatches
        return Order(self.kind[keep], self.place[keep], self.whole[keep])

    @property
    def microbatch(self) -> IntArray:
        """``(operations,)``, how often the same pass was run before."""
        token = self.kind * (self.place.max() + 1) + self.place
        by_token = np.argsort(token, kind="stable")
        first = np.searchsorted(token[by_token], np.arange(token.max() + 1))
        number: IntArray = np.empty_like(token)
        number[by_token] = np.arange(token.size) - first[token[by_token]]
        return number


_PASSES = {
    f"{word}{place}": [(kind, place, False)]
    for word, kind in (("F", FORWARD), ("B", BACKWARD), ("W", WEIGHT))
    for place in (0, 1)
} | {f"BW{place}": [(BACKWARD, place, True), (WEIGHT, place, False)] for place in (0, 1)}


def repeated(*phases: tuple[str, int]) -> Order:
    """Return patterns repeated so many times each; a negative number is none.

    Words are ``F0`` (forward of place 0), ``B1`` (input gradient of place 1), ``W0`` (weight gradient), and
    ``BW0`` (whole backward).
    """
    patterns = [([p for word in words.split() for p in _PASSES[word]], n) for words, n in phases]
    kind, place, whole = np.concatenate([np.tile(pattern, (n, 1)) for pattern, n in patterns if n > 0]).T
    return Order(kind, place, whole.astype(bool))


def virtual_order(vpp: int, num_microbatches: int, group: int) -> IntArray:
    """Place of the chunk of the k-th forward on its rank, ``(vpp * m,)``.

    Source: Megatron-Core, ``get_schedule_table``; the last group may be smaller than the others.
    """
    k = np.arange(vpp * num_microbatches)
    first = k // (vpp * group) * group
    size = np.minimum(group, num_microbatches - first)
    return np.asarray((k - first * vpp) // size)


def loop_order(forwards: IntArray, warm_up: int, delay: int | None) -> Order:
    """Return the order of a rank whose backwards take its chunks in the opposite order of its forwards.

    Parameters
    ----------
    forwards
        Places of the forwards in running order, from `virtual_order`.
    warm_up
        Forwards before the first pair of a forward and a backward.
    delay
        Backwards before the first weight pass; from there on each backward is followed by the oldest weight
        pass. None for whole backwards.
    """
    total = forwards.size
    warm_up = min(warm_up, total)
    phases: tuple[tuple[str, int], ...]
    if delay is None:
        phases = (("F0", warm_up), ("F0 B0", total - warm_up), ("B0", warm_up))
    else:
        pairs, late = total - warm_up, min(delay, total)
        phases = (
            ("F0", warm_up),
            ("F0 B0", min(pairs, late)),
            ("F0 B0 W0", pairs - late),
            ("B0", late - pairs),
            ("B0 W0", total - max(pairs, late)),
            ("W0", late),
        )
    kind = repeated(*phases).kind
    backwards = forwards.max() - forwards
    place = np.empty_like(kind)
    for which, places in ((FORWARD, forwards), (BACKWARD, backwards), (WEIGHT, backwards)):
        if which < kind.max() + 1:
            place[kind == which] = places
    return Order(kind, place, np.zeros(kind.shape, dtype=bool))
