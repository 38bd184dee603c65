"""The fastest recompute mix of a stage with a given number of blocks, decided before CP-SAT starts.

With one chunk a rank, memory is a limit on each stage alone, and a step never gets shorter when a backward
pass gets longer: recomputing in the first place only serves to fit. So among all mixes of modes of ``n``
blocks that fit, one with the shortest backward pass is never worse, and the stage's size is the only
decision left. (What a longer backward pass hides of the gradient reduction is less than it costs.)
"""

from functools import lru_cache

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.bounds import Demand
from meshwright.planner.cpsat.scaling import Scaled


@lru_cache(maxsize=512)
def compositions(total: int, parts: int) -> IntArray:
    """Return all ordered sums of ``parts`` non-negative integers that give ``total``, (ways, parts)."""
    if parts == 1:
        return np.array([[total]], dtype=np.int64)
    rows = [
        np.column_stack([np.full(len(rest), first), rest])
        for first in range(total, -1, -1)
        for rest in [compositions(total - first, parts - 1)]
    ]
    return np.concatenate(rows)


def fastest_mix(
    scaled: Scaled, want: Demand, block: int, blocks: int, ends: dict[int, int], live: int
) -> IntArray | None:
    """Return blocks per mode, (M,), of the fastest mix that fits, or None if none fits.

    Parameters
    ----------
    block, blocks
        The kind of the blocks and how many the stage holds.
    ends
        Layers of other kinds on the stage (embedding, head), in their only mode.
    live
        Micro-batches in flight at the stage's fullest moment.
    """
    modes = np.flatnonzero(want.allowed[block])
    mixes = compositions(blocks, len(modes))
    fixed = sum(n * int(scaled.states[k] + live * scaled.saved[k, 0]) for k, n in ends.items())
    kept = fixed + blocks * int(scaled.states[block]) + live * (mixes @ scaled.saved[block, modes])
    gathered = max([int(scaled.unit[k]) for k in (*ends, *([block] if blocks else []))], default=0)
    own = max((int(scaled.working[k, 0]) for k in ends), default=0)
    working = np.maximum(np.where(mixes > 0, scaled.working[block, modes], 0).max(axis=1, initial=0), own)
    fits = kept + gathered + working <= scaled.room
    if not fits.any():
        return None
    cost = mixes @ scaled.backward[block, modes]
    best = np.lexsort((kept, np.where(fits, cost, np.iinfo(np.int64).max)))[0]
    found = np.zeros(want.allowed.shape[1], dtype=np.int64)
    found[modes] = mixes[best]
    return found
