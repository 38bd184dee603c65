"""How many blocks the chunks of a pipeline may hold.

With one chunk a rank stages are free, and with several where the target takes any split. Elsewhere several
chunks a rank are equal, as Megatron-LM runs them by default: every chunk holds ``q`` blocks, except that the
first may hold one fewer (the embedding counts as a layer) and so may the last (the head does;
``--account-for-embedding-in-pipeline-split`` and its twin).
"""

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.graph import ModelGraph
from meshwright.planner.strategy import even_split


def equal_chunks(blocks: int, chunks: int) -> tuple[int, tuple[int, ...]]:
    """Return (q, shifts): blocks per chunk, and how short the first chunk may be (empty: impossible)."""
    q = -(-blocks // chunks)
    missing = q * chunks - blocks
    return q, {0: (0,), 1: (0, 1), 2: (1,)}.get(missing, ())


def chunk_cuts(graph: ModelGraph, chunks: int, equal: bool) -> list[IntArray]:
    """Return cut points (C + 1,) to try first: equal ones, or an even split; none if a chunk is empty."""
    inner = graph.block_layers
    if equal:
        q, shifts = equal_chunks(len(inner), chunks)
        splits = [inner[0] + q * np.arange(chunks + 1) - shift for shift in shifts]
    else:
        splits = [inner[0] + np.concatenate([[0], np.cumsum(even_split(len(inner), chunks))])]
    for cuts in splits:
        cuts[0], cuts[-1] = 0, graph.num_layers
    return [cuts for cuts in splits if (np.diff(cuts) > 0).all()]
