"""The least recomputation that makes given stages fit: a fractional knapsack a rank, rounded up to layers.

With the stages fixed, each rank must bring its kept activations at its fullest moment under its room. Layers
move along the lower convex hull of (seconds, bytes) of their recompute modes; filling the cheapest segments
first is optimal for the fractional problem, so its seconds are a lower bound, and rounding each segment up to
whole layers is a plan.
"""

from dataclasses import dataclass
from itertools import pairwise

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
    growth = 1 + setting.profile.fragmentation
    saved, working, cost = (
        growth * tables.saved_bytes[0],
        growth * tables.working_bytes[0],
        tables.backward_s[0],
    )
    chains = {
        int(k): hull(cost[k], saved[k], np.flatnonzero(want.allowed[k])) for k in np.flatnonzero(want.layers)
    }
    room = usable - sum(float(v[0]) for v in fixed_bytes(setting, s).values())
    seconds = np.zeros(schedule.pp)
    counts = np.zeros((*kinds.shape, saved.shape[1]), dtype=np.int64)
    least = np.array([saved[k, chains[k][0]] if k in chains else 0.0 for k in range(len(saved))])
    for rank, live in enumerate(in_flight(schedule)):
        own = schedule.chunks_of_rank[rank]
        row = live[(live @ (kinds[own] @ least)).argmax()]
        present = [int(k) for k in np.flatnonzero(kinds[own].sum(axis=0))]
        states = float(kinds[own].sum(axis=0) @ tables.state_bytes[0])
        # modes off the hull as well: one that works in less room than the thrifty ones may be all that fits
        lightest = max(float(working[k, want.allowed[k]].min()) for k in present)
        free = room - states
        need = float(row @ (kinds[own] @ least)) + lightest - free
        start = np.zeros((len(own), *saved.shape), dtype=np.int64)
        for k in present:
            start[:, k, chains[k][0]] = kinds[own, k]
        counts[own], seconds[rank] = _spend(need, row, start, chains, saved, cost)
        for _ in range(ROUNDING_ROUNDS):
            kept = float((live @ (counts[own] * saved).sum(axis=(1, 2))).max())
            over = kept + float(working[counts[own].any(axis=0)].max()) - free
            if over <= 0 or not np.isfinite(seconds[rank]):
                break
            need += over
            counts[own], _ = _spend(need, row, start, chains, saved, cost)
    return Filled(seconds, counts)


def _spend(
    need: float,
    live: IntArray,
    start: IntArray,
    chains: dict[int, list[int]],
    saved: FloatArray,
    cost: FloatArray,
) -> tuple[IntArray, float]:
    """Free ``need`` bytes along the cheapest segments.

    Parameters
    ----------
    live, start
        Micro-batches alive in each chunk of a rank (V,), and its layers before any recomputation (V, K, M).

    Returns
    -------
    tuple
        Counts with every segment rounded up, (V, K, M), and the fractional seconds, infinite if too few.
    """
    counts = start.copy()
    segments = [
        (_slope(cost[k], saved[k], a, b) / q, int(c), k, a, b, float(q))
        for c, q in enumerate(live)
        if q > 0
        for k, chain in chains.items()
        if start[c, k].any()
        for a, b in pairwise(chain)
    ]
    spent = 0.0
    for _, c, k, a, b, q in sorted(segments):
        if need <= 0:
            return counts, spent
        each = q * (saved[k, a] - saved[k, b])
        wanted = min(need / each, float(start[c, k].sum()))
        spent += wanted * (cost[k, b] - cost[k, a])
        whole = min(int(np.ceil(wanted - 1e-12)), int(counts[c, k, a]))
        counts[c, k, a] -= whole
        counts[c, k, b] += whole
        need -= wanted * each
    return counts, spent if need <= 1e-6 else np.inf
