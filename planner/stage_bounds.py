"""Stronger lower bounds on the step time: what the ranks of a pipeline can hold within a time and a memory.

How much of the model can rank ``i`` hold within its memory (with its in-flight micro-batches) and within the
time that a step of length ``M`` leaves it? Give each layer kind a value; a rank's fractional mix of kinds and
recompute modes of the greatest value under two limits is a linear program with a closed form. If the ranks
together hold less than the model's value, whatever the values are, no plan of length ``M`` exists. Bisection
on ``M`` gives the bound.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.schedule import build, in_flight, rank_of_chunk, settled
from meshwright.costmodels.step import fixed_bytes
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables
from meshwright.planner.bounds import Demand, look

ROUNDING = 1e-6
"""Share of a layer that a sum in floating point may miss of a whole one."""


def in_flight_floor(s: Strategies) -> FloatArray:
    """Return micro-batches that each rank holds at least in every one of its chunks at its peak, (B, R)."""
    floor = np.zeros((len(s), int(s.pp.max())))
    keys: dict[tuple[str, int, int, int], list[int]] = {}
    for row, name in enumerate(s.schedule):
        key = (name, int(s.pp[row]), int(s.vpp[row]), int(s.num_microbatches[row]))
        keys.setdefault(key, []).append(row)
    for (name, pp, vpp, m), rows in keys.items():
        if name == "1f1b":
            floor[rows, :pp] = np.minimum(m, pp - np.arange(pp))
        else:
            live = in_flight(build(name, pp, vpp, settled(name, pp, vpp, m)))
            floor[rows, :pp] = [table.min(axis=1).max() for table in live]
    return floor


def _lives(s: Strategies) -> list[IntArray]:
    """Return the rank of each chunk, a row a mesh."""
    of = lru_cache(maxsize=None)(rank_of_chunk)
    return [of(name, int(pp), int(vpp)) for name, pp, vpp in zip(s.schedule, s.pp, s.vpp, strict=True)]


@dataclass(frozen=True)
class _Ranks:
    """What the ranks of each mesh offer, (B, R), and what an item (a kind in a mode) asks for.

    Attributes
    ----------
    item_s, item_bytes, item_working
        (B, 1, I), (B, R, I) and (B, 1, I); the last is held once, whatever the number of layers.
    values
        Values of the items, (V, B, 1, I): several ways to weigh kinds against each other.
    needed
        The model's value, (V, B).
    whole
        Whether all items are of one kind, so that a value counts its layers.
    """

    room_bytes: FloatArray
    taken_s: FloatArray
    exists: BoolArray
    item_s: FloatArray
    item_bytes: FloatArray
    item_working: FloatArray
    values: FloatArray
    needed: FloatArray
    whole: bool


def _ranks(setting: Setting, s: Strategies, tables: Tables, want: Demand, usable: float) -> _Ranks:
    """Return room on each rank after the ends of the model took theirs, and the items to fill it with."""
    index = np.arange(int(s.pp.max()))
    exists = index < s.pp[:, None]
    live = np.maximum(in_flight_floor(s), 1.0)
    growth = 1 + setting.profile.fragmentation
    fixed = np.sum(list(fixed_bytes(setting, s).values()), axis=0)
    room = np.broadcast_to(usable - fixed[:, None], exists.shape).copy()
    taken = np.zeros(exists.shape)
    first, last = (np.array([lives[end] for lives in _lives(s)])[:, None] for end in (0, -1))
    for k, here in ((want.first, index == first), (want.last, index == last)):
        if k >= 0:
            saved = growth * tables.saved_bytes[:, k, 0, None] * live
            room -= np.where(here, tables.state_bytes[:, k, None] + saved, 0.0)
            taken += np.where(here, (tables.forward_s[:, k] + tables.backward_s[:, k, 0])[:, None], 0.0)
    free = want.movable
    kind, mode = np.nonzero(want.allowed & (free > 0)[:, None])
    seconds = np.maximum(tables.forward_s[:, kind] + tables.backward_s[:, kind, mode], 1e-30)
    kept = (
        tables.state_bytes[:, kind][:, None]
        + growth * tables.saved_bytes[:, kind, mode][:, None] * live[..., None]
    )
    working = growth * tables.working_bytes[:, kind, mode][:, None]
    values = _values(seconds, kept.min(axis=1), kind, free)
    needed = np.stack([(v * free).sum(axis=-1) for v in values])
    chosen = np.stack([v[:, None, kind] for v in values])
    whole = len(np.unique(kind)) == 1
    held = np.maximum(kept, 1e-30)
    return _Ranks(room, taken, exists, seconds[:, None], held, working, chosen, needed, whole)


def _values(
    seconds: FloatArray, least_bytes: FloatArray, kind: IntArray, free: IntArray
) -> tuple[FloatArray, ...]:
    """Return values of the kinds, (B, K) each: least seconds, and with several kinds also least bytes."""
    wanted = []
    for per_item in (seconds, least_bytes):
        value = np.zeros((len(seconds), len(free)))
        for k in np.unique(kind):
            value[:, k] = per_item[:, kind == k].min(axis=1)
        wanted.append(value)
    return tuple(wanted if len(np.unique(kind)) > 1 else wanted[:1])


def _capacity(ranks: _Ranks, limit_s: FloatArray) -> FloatArray:
    """Return the value that all ranks hold at most within their room and a time per micro-batch, (V, B).

    The best fractional mix of items under two limits lies at a corner: one item, or two with both limits met.
    A mix works in the room of its neediest item; whichever that is, the best mix of those that need no more
    lies at such a corner, and its own need is no larger.
    Where all items are of one kind the mix is a number of layers, of which a rank holds whole ones.
    """
    time = np.maximum(limit_s - ranks.taken_s, 0.0)[..., None]
    t, w = ranks.item_s, ranks.item_bytes
    alone = np.minimum(time / t, _beside(ranks, ranks.item_working) / w)
    best = (ranks.values * alone).max(axis=-1)
    i, j = np.triu_indices(t.shape[-1], 1)
    if len(i):
        room = _beside(ranks, np.maximum(ranks.item_working[..., i], ranks.item_working[..., j]))
        det = t[..., i] * w[..., j] - t[..., j] * w[..., i]
        with np.errstate(divide="ignore", invalid="ignore"):
            x = (time * w[..., j] - t[..., j] * room) / det
            y = (t[..., i] * room - time * w[..., i]) / det
        corner = (x >= 0) & (y >= 0) & (det != 0)
        x, y = np.where(corner, x, 0.0), np.where(corner, y, 0.0)
        pairs = (ranks.values[..., i] * x + ranks.values[..., j] * y).max(axis=-1)
        best = np.maximum(best, pairs)
    if ranks.whole:
        worth = ranks.values[..., 0]
        best = np.floor(best / worth + ROUNDING) * worth
    return np.asarray(np.where(ranks.exists, best, 0.0).sum(axis=-1))


def _beside(ranks: _Ranks, working: FloatArray) -> FloatArray:
    """Return the room that is left beside a working set, (B, R, ...)."""
    return np.maximum(ranks.room_bytes[..., None] - working, 0.0)


def stage_bounds(
    setting: Setting,
    s: Strategies,
    tables: Tables,
    want: Demand,
    usable: float,
    floor: FloatArray,
    ceiling: float,
    rounds: int = 20,
) -> FloatArray:
    """Return a stronger lower bound, (B,), at least ``floor``; infinite where no plan up to ``ceiling`` fits.

    Parameters
    ----------
    usable
        Bytes that a plan may fill on each device.
    floor
        (B,), from :func:`quick_bounds`.
    ceiling
        Seconds of interest: the best known step, or infinity for a test of memory alone.
    """
    ranks = _ranks(setting, s, tables, want, usable)
    seen = look(setting, s, tables, want)
    work, share, tail = seen.work_s(s), seen.forward_share, seen.tail_s
    m = s.num_microbatches[:, None].astype(np.float64)
    ahead = np.minimum(m, s.pp[:, None] - np.arange(ranks.exists.shape[1]))
    through = np.maximum((m - 1) - np.maximum(ahead - 1, 0) * share[:, None], 0.0)
    plain = np.array([name == "1f1b" for name in s.schedule])[:, None]

    def holds(step: FloatArray) -> BoolArray:
        """Return whether the stages can hold all layers within a step."""
        length = np.maximum(step - tail, 0.0)[:, None]
        spare = np.maximum(length - work[:, None], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_path = np.where(plain & (through > 0), spare / through, np.inf)
        held = _capacity(ranks, np.minimum(length / m, by_path))
        return np.asarray((held * (1 + 1e-9) >= ranks.needed).all(axis=0))

    low, high = floor.copy(), np.full(len(s), min(ceiling, 1e9))
    possible = holds(high) & (low <= high)
    for _ in range(rounds):
        middle = (low + high) / 2
        enough = holds(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(possible, np.where(holds(floor), floor, low), np.inf)
