"""All meshes of a problem with their tables and bounds: what the search works through."""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.offload import host_memory_share_bytes, nvme_share_bytes
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.schedule import StaticSchedule, build, settled
from meshwright.costmodels.strategy import ON_NVME, Setting
from meshwright.costmodels.tables import Tables
from meshwright.planner.bounds import SAFETY, Demand, Looks, demand, demand_several, look, quick_bounds
from meshwright.planner.chunking import chunk_cuts
from meshwright.planner.cpsat.mesh_solver import MeshTask
from meshwright.planner.cpsat.scaling import Limits
from meshwright.planner.fill import Filled, fill
from meshwright.planner.meshes import SCHEDULES, Meshes
from meshwright.planner.pricing import setting, usable_bytes
from meshwright.planner.problem import Problem
from meshwright.planner.rule import has_experts
from meshwright.planner.space import space
from meshwright.planner.table_store import MOST_KEPT, TableStore
from meshwright.planner.twins import distinct

PORTION = 16_384
"""Meshes that are priced in one call: enough to be worth it, few enough to stay in memory."""


@dataclass(frozen=True)
class Split:
    """One way to cut a mesh: cut points (C + 1,), and the least recomputation that makes it fit.

    ``layout`` is the mesh's schedule with as few micro-batches as hold what the full one holds in flight.
    """

    row: int
    layout: StaticSchedule
    num_microbatches: int
    tables: Tables
    cuts: IntArray
    filled: Filled

    @property
    def schedule(self) -> StaticSchedule:
        """The full schedule."""
        return build(self.layout.name, self.layout.pp, self.layout.vpp, self.num_microbatches)

    @property
    def kinds(self) -> IntArray:
        """Layers per chunk and kind, (C, K)."""
        return np.asarray(self.filled.counts.sum(axis=2))

    @property
    def fits(self) -> bool:
        """Whether some recomputation makes every rank fit."""
        return bool(np.isfinite(self.filled.seconds).all())


@dataclass
class Field:
    """The meshes of a problem.

    Attributes
    ----------
    want
        What every plan must place, with the modes of meshes of one chunk a rank.
    want_several
        The same for meshes of several chunks a rank.
    limits
        Bytes that a plan may fill on each device, and for it in host memory and on drives.
    bounds
        Lower bound on each mesh's step, (B,); infinite where no plan fits. The search raises it.
    free_s
        Least bound of all meshes if memory had no limit.
    forward_share
        Largest share of a forward pass in a chunk's time, (B,).
    order
        Rows by rising quick bound, those that may fit only.
    discarded
        How many meshes each rule, and the memory floor, took away.
    refined
        Rows whose bound looks at single stages already.
    pathed
        Interleaved rows whose bound looks at the schedule's paths already.
    splits
        Even splits of rows that were looked at.
    """

    problem: Problem
    meshes: Meshes
    setting: Setting
    tables: TableStore
    want: Demand
    want_several: Demand
    limits: Limits
    bounds: FloatArray
    free_s: float
    forward_share: FloatArray
    floor_bytes: FloatArray
    order: IntArray
    discarded: dict[str, int]
    refined: set[int] = field(default_factory=set)
    pathed: set[int] = field(default_factory=set)
    splits: dict[int, list[Split]] = field(default_factory=dict)

    @property
    def usable(self) -> float:
        """Bytes that a plan may fill on each device."""
        return self.limits.usable

    def even_splits(self, row: int) -> list[Split]:
        """Return the equal (or even) splits of one mesh with their least recomputation; remembered."""
        if row not in self.splits:
            self.splits[row] = self._split(row, self.wanted(row))
        return self.splits[row]

    def splits_at_home(self, row: int) -> list[Split]:
        """Return the same splits with no activations off the device; none where a layer has no other mode."""
        want = self.wanted(row).without("offload")
        return self._split(row, want) if want.possible() else []

    def wanted(self, row: int) -> Demand:
        """Return what a mesh must place: beside some schedules a target has fewer modes."""
        want = self.want_several if self.meshes.vpp[row] > 1 else self.want
        own = self.problem.target.modes_with(SCHEDULES[int(self.meshes.schedule_code[row])])
        return replace(want, allowed=want.allowed & np.array([m in own for m in MODES]))

    def given(self, rows: IntArray) -> BoolArray:
        """Return whether the chunks of rows are equal, so that only recomputation is open."""
        return np.asarray((self.meshes.vpp[rows] > 1) & (not self.problem.target.uneven_chunks))

    def _split(self, row: int, want: Demand) -> list[Split]:
        graph, index = self.problem.model, np.array([row])
        s, tables = self.meshes.take(index).strategies(), self.tables.take(index)
        name, pp, vpp, passes = s.schedule[0], int(s.pp[0]), int(s.vpp[0]), int(s.num_microbatches[0])
        layout = build(name, pp, vpp, settled(name, pp, vpp, passes))
        found = []
        for cuts in chunk_cuts(graph, layout.num_chunks, bool(self.given(index)[0])):
            kinds = np.diff(graph.prefix_counts[cuts], axis=0)
            filled = fill(self.setting, s, tables, want, self.usable, layout, kinds)
            found.append(Split(row, layout, passes, tables, cuts, filled))
        return found

    def task(self, row: int) -> MeshTask:
        """Return the CP-SAT task of one mesh."""
        return MeshTask(
            self.setting,
            self.problem.model,
            self.meshes.take([row]).strategies(),
            self.tables.take(np.array([row])),
            self.wanted(row),
            self.limits,
            self.problem.target.recompute_uniform,
            self.problem.target.uneven_chunks,
        )


def _looks(common: Setting, want: Demand, store: TableStore) -> Looks:
    """Look at all meshes, portion by portion; the tables are kept where there are not too many."""
    groups, parts = len(store.first), []
    for start in range(0, groups, PORTION):
        portion = np.arange(start, min(start + PORTION, groups))
        tables = store.build(portion)
        s = store.meshes.take(store.first[portion]).strategies()
        parts.append(look(common, s, tables, want))
        if groups <= MOST_KEPT:
            store.keep(portion, tables)
    columns = [f.name for f in fields(Looks)]
    none = np.empty(0)
    whole = Looks(**{n: np.concatenate([none, *(getattr(p, n) for p in parts)]) for n in columns})
    return whole.take(store.group)


def survey(problem: Problem) -> Field:
    """Return all legal meshes, twins once, with their quick bounds; infinite where a mesh cannot fit."""
    every, discarded = space(problem)
    meshes = every.take(distinct(problem.cluster, every, has_experts(problem)))
    common, want, usable = setting(problem), demand(problem), usable_bytes(problem)
    store = TableStore(common, meshes)
    looks = _looks(common, want, store)
    quick = quick_bounds(meshes.strategies(), looks)
    limits = Limits(usable, host_memory_share_bytes(problem.cluster), nvme_share_bytes(problem.cluster))
    shares = np.where(ON_NVME[meshes.offload], limits.nvme, limits.host)
    crowded = looks.host_bytes * SAFETY > shares
    bounds = np.where((looks.floor_bytes <= usable) & ~crowded, quick, np.inf)
    order = np.argsort(bounds, kind="stable")
    return Field(
        problem=problem,
        meshes=meshes,
        setting=common,
        tables=store,
        want=want,
        want_several=demand_several(problem, want),
        limits=limits,
        bounds=bounds,
        free_s=float(quick.min(initial=np.inf)),
        forward_share=looks.forward_share,
        floor_bytes=looks.floor_bytes,
        order=order[np.isfinite(bounds[order])],
        discarded=discarded
        | {
            "placement laid alike": len(every) - len(meshes),
            "memory floor": int((looks.floor_bytes > usable).sum()),
            "host memory floor": int((crowded & (looks.floor_bytes <= usable)).sum()),
        },
    )
