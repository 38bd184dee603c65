"""The fastest recompute mix of one stage where what leaves the device is short as well: a small CP-SAT model.

Few stages need it: those whose fastest mix, chosen for the device's memory alone, offloads more than a
device's share of its host holds.
"""

from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.bounds import Demand
from meshwright.planner.cpsat.scaling import Scaled


def rationed(
    scaled: Scaled, want: Demand, layers: Sequence[int], here: int, away: int, live: int
) -> IntArray | None:
    """Return layers by kind and mode, (K, M), of the fastest mix that fits, None if none does.

    Parameters
    ----------
    layers
        Layers of each kind in the stage.
    here, away
        Memory units for activations on the device and off it.
    live
        Micro-batches in flight at the stage's fullest moment.
    """
    model = cp_model.CpModel()
    cells = [(int(k), int(m)) for k, m in zip(*np.nonzero(want.allowed), strict=True) if layers[k]]
    counts = {cell: model.new_int_var(0, layers[cell[0]], "") for cell in cells}
    for k in {k for k, _ in cells}:
        model.add(sum(n for (kind, _), n in counts.items() if kind == k) == layers[k])
    working = model.new_int_var(0, int(scaled.working.max()), "working")
    for cell, n in counts.items():
        present = model.new_bool_var("")
        model.add(n <= layers[cell[0]] * present)
        model.add(working >= int(scaled.working[cell]) * present)

    def total(table: IntArray) -> cp_model.LinearExpr:
        """Return a table summed over the layers."""
        return cp_model.LinearExpr.sum([int(table[cell]) * n for cell, n in counts.items()])

    model.add(live * total(scaled.saved) + working <= here)
    model.add(live * total(scaled.saved_away) <= away)
    model.minimize(total(scaled.backward))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    mix = np.zeros_like(scaled.saved)
    for cell, n in counts.items():
        mix[cell] = solver.value(n)
    return mix
