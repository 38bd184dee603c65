"""Among plans within 0.01 % of the best: least recomputation, lowest peak, most even stages, smallest tp."""

import numpy as np

from meshwright.planner.cpsat.mesh_solver import MeshSolver
from meshwright.planner.field import Field
from meshwright.planner.heuristic import Found
from meshwright.planner.search import MESH_LIMIT, State

WINDOW = 1e-4
"""Plans within this share of the best count as equally fast."""


def break_ties(f: Field, state: State) -> Found | None:
    """Return the plan to recommend.

    Compared are the best plans that the search met in each mesh; each of them within the window is first
    improved within its own mesh by CP-SAT, one goal after another.
    """
    if state.best is None:
        return None
    if state.expired:
        return state.best
    ceiling = state.best.candidate.step_s * (1 + WINDOW)
    known = {**state.starts, **state.finds, state.best.row: state.best}
    close = [found for found in known.values() if found.candidate.step_s <= ceiling]
    return min((_polished(f, found, ceiling) for found in close), key=lambda found: _rank(f, found))


def _polished(f: Field, found: Found, ceiling: float) -> Found:
    solver = MeshSolver(f.task(found.row), ceiling, MESH_LIMIT)
    return Found(found.row, solver.polish(found.candidate, ceiling))


def _rank(f: Field, found: Found) -> tuple[float, ...]:
    """Return the order of preference; rounded, so that noise in the last digits decides nothing."""
    c, tables = found.candidate, f.tables.take(np.array([found.row]))
    extra = tables.backward_s[0] - tables.backward_s[0, :, :1]
    passes = float(f.meshes.num_microbatches[found.row])
    recompute = passes * float((c.counts * extra).sum())
    blocks = c.counts[:, f.want.blocks].sum(axis=(1, 2))
    return (
        round(recompute / c.step_s, 5),
        round(c.peak_bytes / f.usable, 4),
        float(blocks.max() - blocks.min()),
        float(f.meshes.tp[found.row]),
        float(found.row),
    )
