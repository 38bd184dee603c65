"""The linear relaxation of a mesh's model: a cheap place to find the paths that matter.

CP-SAT proposes whole plans, and each tells only its own critical path. The relaxation proposes mixtures of
plans, where several paths are critical at once; it takes milliseconds, and a few dozen rounds of it leave
CP-SAT with paths enough to see that a mesh cannot win. It proves nothing itself: its cuts hold for any times,
and CP-SAT alone decides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import FloatArray

MOST_STEPS = 20_000
"""Simplex steps of one solution; hundreds are usual."""


class Relaxation:
    """A CP-SAT model with fractional variables, without constraints that are not linear.

    Variables are scaled to their largest value, rows to their largest coefficient: units of time and memory
    are so small that the numbers would not be handled otherwise.
    """

    def __init__(self, model: cp_model.CpModel) -> None:
        self.proto, self.rows = model.proto, 0
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.solver.SetSolverSpecificParametersAsString(f"max_number_of_iterations: {MOST_STEPS}")
        ends = [(float(d[0]), float(d[-1])) for d in (list(v.domain) for v in self.proto.variables)]
        self.scale = [max(abs(low), abs(high), 1.0) for low, high in ends]
        self.columns = [
            self.solver.NumVar(low / by, high / by, "")
            for (low, high), by in zip(ends, self.scale, strict=True)
        ]
        goal, target = self.proto.objective, self.solver.Objective()
        weights = [c * self.scale[v] for v, c in zip(goal.vars, goal.coeffs, strict=True)]
        for v, weight in zip(goal.vars, weights, strict=True):
            target.SetCoefficient(self.columns[v], weight / max(map(abs, weights)))
        target.SetMinimization()

    def solve(self) -> bool:
        """Solve with all constraints that the model has by now; return whether there is an optimum."""
        for i in range(self.rows, len(self.proto.constraints)):
            self._add(self.proto.constraints[i])
        self.rows = len(self.proto.constraints)
        return bool(self.solver.Solve() == pywraplp.Solver.OPTIMAL)

    def values(self, variables: Sequence[cp_model.IntVar]) -> FloatArray:
        """Return the values of variables, none of which may be negative, in the optimum."""
        found = [self.columns[v.index].solution_value() * self.scale[v.index] for v in variables]
        return np.maximum(found, 0.0)

    def _add(self, constraint: Any) -> None:
        if constraint.has_exactly_one():
            terms, ends = dict.fromkeys(constraint.exactly_one.literals, 1.0), [1, 1]
        elif constraint.has_linear():
            linear, terms = constraint.linear, {}
            for v, c in zip(linear.vars, linear.coeffs, strict=True):
                terms[v] = terms.get(v, 0.0) + c * self.scale[v]
            ends = list(linear.domain)
        else:
            return
        largest, infinity = max(map(abs, terms.values()), default=1.0), self.solver.infinity()
        low = -infinity if ends[0] == cp_model.INT_MIN else ends[0] / largest
        high = infinity if ends[-1] == cp_model.INT_MAX else ends[-1] / largest
        row = self.solver.Constraint(low, high)
        for v, c in terms.items():
            row.SetCoefficient(self.columns[v], c / largest)
