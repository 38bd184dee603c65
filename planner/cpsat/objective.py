"""The objective of a mesh: finish of the slowest rank plus update of the slowest rank, as a set of cuts.

A rank starts when it has gathered what its first pass does not hide. Every path through the schedule is
linear in the chunks' times and never longer than the simulated time of the event that it leads to. The model
starts from paths that hold for any plan; each plan it proposes is simulated, and its critical path becomes
one more cut.
"""

from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.paths import Path
from meshwright.planner.cpsat.scaling import Scaled
from meshwright.planner.cpsat.variables import Expression, Variables


@dataclass
class Objective:
    """Time expressions of a mesh and the cuts on its length."""

    variables: Variables
    scaled: Scaled
    most: int
    forward: list[Expression] = field(default_factory=list)
    backward: list[Expression] = field(default_factory=list)
    weight: list[Expression] = field(default_factory=list)
    ready: list[cp_model.IntVar] = field(default_factory=list)
    known: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        v, s = self.variables, self.scaled
        self.finish = v.model.new_int_var(0, self.most, "finish")
        self.update = v.model.new_int_var(0, self.most, "update")
        for c, counts in enumerate(v.counts):
            self.forward.append(
                self._bound(f"f{c}", [s.each_pass] + [int(s.forward[k]) * n for (k, _), n in counts.items()])
            )
            self.backward.append(
                self._bound(
                    f"b{c}", [s.each_pass] + [int(s.backward[k, m]) * n for (k, m), n in counts.items()]
                )
            )
            if v.schedule.split:
                self.weight.append(
                    self._bound(f"w{c}", [int(s.weight[k]) * n for (k, _), n in counts.items()])
                )
        for rank in range(v.schedule.pp):
            v.model.add(self.update >= self._per_layer(rank, s.optimizer))
            self.ready.append(self._start(rank))
        v.model.add(self.total <= self.most)

    @property
    def total(self) -> Expression:
        """The step in units of time."""
        return self.finish + self.update + self.scaled.fixed

    def minimise(self) -> None:
        """Make the step's length the objective."""
        self.variables.model.minimize(self.total)

    def _bound(self, name: str, terms: list[Expression]) -> cp_model.IntVar:
        var = self.variables.model.new_int_var(0, self.most, name)
        self.variables.model.add(var == cp_model.LinearExpr.sum(terms))
        return var

    def _per_layer(self, rank: int, table: IntArray) -> Expression:
        """Return a once-a-step table summed over the layers of a rank."""
        v = self.variables
        own = v.schedule.chunks_of_rank[rank]
        terms = [int(table[k]) * n for c in own for (k, _), n in v.counts[c].items()]
        return cp_model.LinearExpr.sum(terms)

    def _start(self, rank: int) -> cp_model.IntVar:
        """Return when a rank starts: parameters are gathered, of which its first pass hides some."""
        v, s = self.variables, self.scaled
        ready = v.model.new_int_var(0, self.most, f"ready{rank}")
        first = int(v.schedule.chunks_of_rank[rank][0])
        terms = [int(s.gather_window[k]) * n for (k, _), n in v.counts[first].items()]
        window = cp_model.LinearExpr.sum([s.pass_gather_window, *terms])
        v.model.add(ready >= self._per_layer(rank, s.gather_floor))
        v.model.add(ready >= self._per_layer(rank, s.gather) - window)
        return ready

    def cut(self, path: Path) -> None:
        """Add a path to the end of a rank, with the gradient reduction that follows it there, once."""
        if path in self.known:
            return
        self.known.add(path)
        v, s = self.variables, self.scaled
        terms: list[Expression] = [path.transfers * s.transfer, self.ready[path.origin]]
        terms += [n * self.forward[c] for c, n in enumerate(path.forward_counts) if n]
        terms += [n * self.backward[c] for c, n in enumerate(path.backward_counts) if n]
        terms += [n * self.weight[c] for c, n in enumerate(path.weight_counts) if n]
        length = cp_model.LinearExpr.sum(terms)
        last = int(v.schedule.chunk[v.schedule.last_operation()[path.rank]])
        hidden = [int(s.window[k, m]) * n for (k, m), n in v.counts[last].items()]
        window = cp_model.LinearExpr.sum([s.pass_window, *hidden])
        v.model.add(self.finish >= length + self._per_layer(path.rank, s.reduce_floor))
        v.model.add(self.finish >= length + self._per_layer(path.rank, s.reduce) - window)
