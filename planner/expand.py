"""From a solver's counts back to explicit layers: the plan of a candidate."""

from itertools import pairwise

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.schedule import rank_of_chunk
from meshwright.planner.cpsat.mesh_solver import Candidate
from meshwright.planner.field import Field
from meshwright.planner.heuristic import Found
from meshwright.planner.plan import Chunk, Plan
from meshwright.planner.strategy import plan_from


def expand(f: Field, found: Found) -> Plan:
    """Return the explicit plan of a found candidate.

    Layers of a kind within a chunk are interchangeable; the first ones are recomputed, the most thoroughly
    recomputed ones first.
    """
    decisions = f.meshes.decisions(found.row)
    cuts = found.candidate.cuts
    ranks = rank_of_chunk(decisions["schedule"], decisions["pp"], decisions["vpp"])
    chunks = tuple(Chunk(int(r), int(a), int(b)) for r, (a, b) in zip(ranks, pairwise(cuts), strict=True))
    return plan_from(f.problem, decisions, chunks, _modes(f, found.candidate))


def _modes(f: Field, candidate: Candidate) -> tuple[str, ...]:
    """Return the mode of every layer."""
    graph = f.problem.model
    modes: list[str] = []
    for c, (start, stop) in enumerate(pairwise(candidate.cuts)):
        left: list[IntArray] = [candidate.counts[c, k].copy() for k in range(len(graph.kinds))]
        for layer in range(int(start), int(stop)):
            row = left[graph.layer_kinds[layer]]
            mode = max(m for m in range(len(MODES)) if row[m] > 0)
            row[mode] -= 1
            modes.append(MODES[mode])
    return tuple(modes)
