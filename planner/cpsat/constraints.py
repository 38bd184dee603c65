"""Constraints of a mesh, one method a rule."""

from dataclasses import dataclass

from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import in_flight
from meshwright.planner.cpsat.scaling import Scaled
from meshwright.planner.cpsat.variables import Expression, Variables


@dataclass
class Constraints:
    """Adds the rules of a mesh to its model."""

    variables: Variables
    scaled: Scaled
    recompute_uniform: bool

    def __post_init__(self) -> None:
        self.peak = self.variables.model.new_int_var(0, max(self.scaled.room, 0), "peak")

    def add_all(self) -> None:
        """Add every rule."""
        self.one_mode()
        for rank in range(self.variables.schedule.pp):
            self.memory(rank)
            self.away(rank)

    def one_mode(self) -> None:
        """All blocks share one recompute mode where the target knows no other."""
        if not self.recompute_uniform:
            return
        v = self.variables
        modes = sorted({m for _, _, m in v.split})
        chosen = {m: v.model.new_bool_var(f"mode{m}") for m in modes}
        if chosen:
            v.model.add_exactly_one(list(chosen.values()))
        for (_, k, m), var in v.split.items():
            v.model.add(var <= int(v.want.layers[k]) * chosen[m])

    def memory(self, rank: int) -> None:
        """States, kept activations at every maximal moment, and the largest transients fit the device."""
        v, s = self.variables, self.scaled
        own = [int(c) for c in v.schedule.chunks_of_rank[rank]]
        states = cp_model.LinearExpr.sum(
            [int(s.states[k]) * n for c in own for (k, _), n in v.counts[c].items()]
        )
        working = v.model.new_int_var(0, int(s.working.max()), f"work{rank}")
        for (r, k, m), flag in v.present.items():
            if r == rank:
                v.model.add(working >= int(s.working[k, m]) * flag)
        for live in in_flight(v.schedule)[rank]:
            v.model.add(states + self._kept(own, live, s.saved) + working <= self.peak)

    def away(self, rank: int) -> None:
        """What is offloaded fits the device's share of host memory and drives, at every maximal moment."""
        v = self.variables
        own = [int(c) for c in v.schedule.chunks_of_rank[rank]]
        for place in self.scaled.away:
            states = cp_model.LinearExpr.sum(
                [int(place.states[k]) * n for c in own for (k, _), n in v.counts[c].items()]
            )
            for live in in_flight(v.schedule)[rank]:
                v.model.add(states + self._kept(own, live, place.saved) <= place.room)

    def _kept(self, own: list[int], live: IntArray, saved: IntArray) -> Expression:
        """Return what the chunks of a rank keep with so many micro-batches alive in each."""
        return cp_model.LinearExpr.sum(
            [
                int(q) * int(saved[k, m]) * n
                for c, q in zip(own, live, strict=True)
                for (k, m), n in self.variables.counts[c].items()
            ]
        )
