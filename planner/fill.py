"""The least recomputation that makes given stages fit: a fractional knapsack a rank, rounded up to layers.

With the stages fixed, each rank must bring its kept activations at its fullest moment under its room. Layers
move along the lower convex hull of (seconds, bytes) of their recompute modes; filling the cheapest segments
first is optimal for the fractional problem, so its seconds are a lower bound, and rounding each segment up to
whole layers is a plan.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from meshwright.costmodels.arrays import FloatArray, IntArray
from meshwright.costmodels.schedule import StaticSchedule, in_flight
from meshwright.costmodels.step import fixed_bytes
from meshwright.costmodels.strategy import Setting, Strategies
from meshwright.costmodels.tables import Tables
from meshwright.planner.bounds import Demand

ROUNDING_BYTES = 1e-3
"""Floating-point sums of bytes may leave this much of a need that is met exactly."""

ROUNDING_ROUNDS = 4
"""Times that rounded counts are asked for more where their transients exceed the least ones."""


@dataclass(frozen=True)
class Filled:
    """Recomputation of one mesh with given stages.

    Attributes
    ----------
    seconds
        Least fractional recomputation of one micro-batch on each rank, (R,); infinite if nothing fits.
    counts
        Whole layers per chunk, kind and mode, (C, K, M), rounded so that they fit where that is possible.
    """

    seconds: FloatArray
    counts: IntArray


def hull(seconds: FloatArray, kept: FloatArray, allowed: IntArray) -> list[int]:
    """Return the allowed modes on the lower convex hull, cheapest first, freeing bytes at a rising price."""
    modes = sorted((int(m) for m in allowed), key=lambda m: (seconds[m], kept[m]))
    chain: list[int] = []
    for m in modes:
        if chain and kept[m] >= kept[chain[-1]]:
            continue
        while len(chain) > 1 and _slope(seconds, kept, chain[-2], chain[-1]) >= _slope(
            seconds, kept, chain[-1], m
        ):
            chain.pop()
        chain.append(m)
    return chain


def _slope(seconds: FloatArray, kept: FloatArray, a: int, b: int) -> float:
    """Return seconds paid per byte freed from mode ``a`` to mode ``b``."""
    return float((seconds[b] - seconds[a]) / (kept[a] - kept[b]))


def fill(
    setting: Setting,
    s: Strategies,
    tables: Tables,
    want: Demand,
    usable: float,
    schedule: StaticSchedule,
    kinds: IntArray,
) -> Filled:
    """Return the least recomputation of one mesh whose chunks hold ``kinds`` layers, (C, K)."""
    modes = _modes(setting, tables, want)
    room = usable - sum(float(v[0]) for v in fixed_bytes(setting, s).values())
    seconds = np.zeros(schedule.pp)
    counts = np.zeros((*kinds.shape, modes.saved.shape[1]), dtype=np.int64)
    for k, chain in modes.chains.items():
        counts[:, k, chain[0]] = kinds[:, k]
    for rank, live in enumerate(in_flight(schedule)):
        own = schedule.chunks_of_rank[rank]
        free = room - float(kinds[own].sum(axis=0) @ tables.state_bytes[0])
        counts[own], seconds[rank] = _fill_rank(modes, live, counts[own], free)
        if not np.isfinite(seconds[rank]):
            return Filled(np.full(schedule.pp, np.inf), counts)
    return Filled(seconds, counts)


@dataclass(frozen=True)
class _Modes:
    """What the modes of each kind cost and keep, (K, M), and the hull of each kind.

    Attributes
    ----------
    least, thrifty
        Bytes kept at the hull's ends, (K,).
    lightest
        Least working set of each kind, (K,), of modes off the hull as well: one that works in less room than
        the thrifty ones may be all that fits.
    """

    saved: FloatArray
    working: FloatArray
    cost: FloatArray
    chains: dict[int, list[int]]
    least: FloatArray
    thrifty: FloatArray
    lightest: FloatArray


def _modes(setting: Setting, tables: Tables, want: Demand) -> _Modes:
    growth = 1 + setting.profile.fragmentation
    saved, working, cost = (
        growth * tables.saved_bytes[0],
        growth * tables.working_bytes[0],
        tables.backward_s[0],
    )
    chains = {
        int(k): hull(cost[k], saved[k], np.flatnonzero(want.allowed[k])) for k in np.flatnonzero(want.layers)
    }
    ends = [[saved[k, chains[k][end]] if k in chains else 0.0 for k in range(len(saved))] for end in (0, -1)]
    lightest = np.where(want.allowed, working, np.inf).min(axis=1)
    return _Modes(saved, working, cost, chains, np.array(ends[0]), np.array(ends[1]), lightest)


def _fill_rank(modes: _Modes, live: IntArray, start: IntArray, free: float) -> tuple[IntArray, float]:
    """Return the counts of a rank's chunks, (V, K, M), and its least fractional seconds (infinite: too full).

    Parameters
    ----------
    live
        Micro-batches alive in each chunk at each full moment, (moments, V).
    start
        Layers before any recomputation, (V, K, M).
    free
        Bytes for what is kept and worked with.
    """
    kinds = start.sum(axis=2)
    lightest = float(modes.lightest[kinds.any(axis=0)].max())
    if float((live @ (kinds @ modes.thrifty)).max()) + lightest > free + ROUNDING_BYTES:
        return start, np.inf
    kept = live @ (kinds @ modes.least)
    need = float(kept.max()) + lightest - free
    segments = _segments(live[kept.argmax()], start, modes) if need > 0 else []
    counts, seconds = _spend(need, start, segments)
    for _ in range(ROUNDING_ROUNDS):
        held = float((live @ (counts * modes.saved).sum(axis=(1, 2))).max())
        over = held + float(modes.working[counts.any(axis=0)].max()) - free
        if over <= 0 or not np.isfinite(seconds):
            break
        need += over
        segments = segments or _segments(live[kept.argmax()], start, modes)
        counts, _ = _spend(need, start, segments)
    return counts, seconds


@dataclass(frozen=True, slots=True, order=True)
class _Segment:
    """Layers of a kind that move from one mode of the hull to the next in one chunk of a rank.

    Attributes
    ----------
    price
        Seconds paid per byte freed at the rank's fullest moment.
    freed_bytes, cost_s
        Of each layer.
    layers
        Layers of the kind in the chunk.
    """

    price: float
    chunk: int
    kind: int
    before: int
    after: int
    freed_bytes: float
    cost_s: float
    layers: int


def _segments(live: IntArray, start: IntArray, modes: _Modes) -> list[_Segment]:
    """Return the segments of a rank, cheapest first.

    Parameters
    ----------
    live, start
        Micro-batches alive in each chunk of a rank (V,), and its layers before any recomputation (V, K, M).
    """
    layers, saved, cost = start.sum(axis=2).tolist(), modes.saved, modes.cost
    return sorted(
        _Segment(
            _slope(cost[k], saved[k], a, b) / q,
            c,
            k,
            a,
            b,
            q * float(saved[k, a] - saved[k, b]),
            float(cost[k, b] - cost[k, a]),
            layers[c][k],
        )
        for k, chain in modes.chains.items()
        for a, b in pairwise(chain)
        for c, q in enumerate(live.tolist())
        if q > 0 and layers[c][k]
    )


def _spend(need: float, start: IntArray, segments: list[_Segment]) -> tuple[IntArray, float]:
    """Free ``need`` bytes along the cheapest segments.

    Returns
    -------
    tuple
        Counts with every segment rounded up, (V, K, M), and the fractional seconds, infinite if too few.
    """
    counts, spent = start.copy(), 0.0
    for part in segments:
        if need <= 0:
            return counts, spent
        here = counts[part.chunk, part.kind]
        wanted = min(need / part.freed_bytes, float(part.layers))
        spent += wanted * part.cost_s
        whole = min(ceil(wanted - 1e-12), int(here[part.before]))
        here[part.before] -= whole
        here[part.after] += whole
        need -= wanted * part.freed_bytes
    return counts, spent if need <= ROUNDING_BYTES else np.inf
