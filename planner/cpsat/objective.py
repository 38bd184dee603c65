"""The objective of a mesh: finish of the slowest rank plus update of the slowest rank, as a set of cuts.

A chunk starts when its rank has gathered for it what its first pass does not hide. Every path through the
schedule is linear in the chunks' times and never longer than the simulated time of the event that it leads
to. The model starts from paths that hold for any plan; each plan it proposes is simulated, and its critical
path becomes one more cut. Where a rank waits for the reductions of several chunks, it is done at a mean of
its end and of the start of the last pass of the first of them (:mod:`meshwright.costmodels.completion`): a
cut takes a path to each.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.paths import Path
from meshwright.planner.cpsat.scaling import Scaled
from meshwright.planner.cpsat.variables import Expression, Variables

PARTS = 1 << 14
"""A mean of two paths is weighed in so many parts; it falls short by at most one of their distance."""
LARGEST = 1 << 61
"""What the terms of a row may add up to; CP-SAT counts in 64 bits."""


@dataclass
class Objective:
    """Time expressions of a mesh and the cuts on its length, which is ``most`` units or less."""

    variables: Variables
    scaled: Scaled
    most: int
    forward: list[Expression] = field(default_factory=list)
    backward: list[Expression] = field(default_factory=list)
    weight: list[Expression] = field(default_factory=list)
    ready: list[cp_model.IntVar] = field(default_factory=list)
    reduction: list[Expression] = field(default_factory=list)
    known: set[tuple[Path, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        v, s = self.variables, self.scaled
        schedule = v.schedule
        one_by_one = s.longest(v.want.layers, schedule.num_chunks, schedule.num_microbatches)
        self.most = min(self.most, one_by_one)
        self.finish = v.model.new_int_var(0, self.most, "finish")
        self.update = v.model.new_int_var(0, self.most, "update")
        each = self.most // schedule.num_microbatches
        for c, counts in enumerate(v.counts):
            forward = [int(s.forward[k]) * n for (k, _), n in counts.items()]
            backward = [int(s.backward[k, m]) * n for (k, m), n in counts.items()]
            self.forward.append(self._bound(f"f{c}", each, [s.each_pass, *forward]))
            self.backward.append(self._bound(f"b{c}", each, [s.each_pass, *backward]))
            if schedule.split:
                weight = [int(s.weight[k]) * n for (k, _), n in counts.items()]
                self.weight.append(self._bound(f"w{c}", each, weight))
            reduction = self._once([c], s.reduce)
            self.reduction.append(
                self._bound(f"x{c}", self.most, [reduction]) if schedule.vpp > 1 else reduction
            )
        for rank in range(schedule.pp):
            v.model.add(self.update >= self._per_layer(rank, s.optimizer))
        self.ready = [v.model.new_int_var(0, self.most, f"ready{c}") for c in range(schedule.num_chunks)]
        for own in schedule.chunks_of_rank.tolist():
            self._gather(own)
        v.model.add(self.total <= self.most)

    @property
    def total(self) -> Expression:
        """The step in units of time."""
        return self.finish + self.update + self.scaled.fixed

    def minimise(self) -> None:
        """Make the step's length the objective."""
        self.variables.model.minimize(self.total)

    def _bound(self, name: str, most: int, terms: list[Expression]) -> cp_model.IntVar:
        var = self.variables.model.new_int_var(0, most, name)
        self.variables.model.add(var == cp_model.LinearExpr.sum(terms))
        return var

    def _once(self, chunks: Iterable[int], table: IntArray) -> Expression:
        """Return a once-a-step table summed over the layers of chunks."""
        counts = self.variables.counts
        return cp_model.LinearExpr.sum([int(table[k]) * n for c in chunks for (k, _), n in counts[c].items()])

    def _per_layer(self, rank: int, table: IntArray) -> Expression:
        """Return a once-a-step table summed over the layers of a rank."""
        return self._once(self.variables.schedule.chunks_of_rank[rank].tolist(), table)

    def _gather(self, own: list[int]) -> None:
        """Say when the chunks of a rank may start: gathered for, as far as first passes do not hide it."""
        v, s = self.variables, self.scaled
        v.model.add(self.ready[own[0]] >= self._once(own, s.gather_floor))
        for at, c in enumerate(own):
            terms = [int(s.gather_window[k]) * n for (k, _), n in v.counts[c].items()]
            window = cp_model.LinearExpr.sum([s.pass_gather_window, *terms])
            here = self._once(own[: at + 1], s.gather)
            rest = self._once(own[at + 1 :], s.gather_floor if at else s.gather_apart)
            v.model.add(self.ready[c] >= here + rest - window)

    def _length(self, path: Path) -> Expression:
        """Return the units of time along a path."""
        terms: list[Expression] = [path.transfers * self.scaled.transfer, self.ready[path.origin]]
        terms += [n * self.forward[c] for c, n in enumerate(path.forward_counts) if n]
        terms += [n * self.backward[c] for c, n in enumerate(path.backward_counts) if n]
        terms += [n * self.weight[c] for c, n in enumerate(path.weight_counts) if n]
        return cp_model.LinearExpr.sum(terms)

    def cut(self, paths: Sequence[Path]) -> None:
        """Cut along paths to the ends of ranks, and along those to last passes of chunks beside these."""
        ends = {path.rank: path for path in paths if path.chunk < 0}
        for path in paths:
            pair = (path,) if path.chunk < 0 else (path, ends[path.rank])
            if pair not in self.known:
                self.known.add(pair)
                self._cut_between(*pair) if len(pair) > 1 else self._cut_end(path)

    def _reduced(self, chunk: int) -> tuple[Expression, Expression]:
        """Return what the reductions before a chunk's on its rank cost, and those from there on."""
        s, order = self.scaled, self.variables.schedule.completed
        own = order[self.variables.schedule.rank_of_chunk[chunk]].tolist()
        at = own.index(chunk)
        return self._once(own[:at], s.reduce_floor), cp_model.LinearExpr.sum(
            [self.reduction[c] for c in own[at:]]
        )

    def _cut_end(self, path: Path) -> None:
        """Add a path to the end of a rank, with the reductions that its last pass does not hide."""
        v, s = self.variables, self.scaled
        length = self._length(path)
        last = int(v.schedule.completed[path.rank, -1])
        hidden = [int(s.window[k, m]) * n for (k, m), n in v.counts[last].items()]
        window = cp_model.LinearExpr.sum([s.pass_window, *hidden])
        before, late = self._reduced(last)
        v.model.add(self.finish >= length + self._per_layer(path.rank, s.reduce_floor))
        v.model.add(self.finish >= length + before + late - window)

    def _cut_between(self, start: Path, end: Path) -> None:
        """Add paths to the last pass of a chunk and to its rank's end, with the reductions from there."""
        each = self.most // self.variables.schedule.num_microbatches
        passes = max(sum(start.counts), sum(end.counts))
        parts = min(PARTS, LARGEST // (each * passes + 4 * self.most))
        share = math.ceil(self.scaled.hidden * parts)
        reached = (parts - share) * self._length(end) + share * self._length(start)
        before, late = self._reduced(start.chunk)
        self.variables.model.add(parts * self.finish >= reached + parts * (before + late))
