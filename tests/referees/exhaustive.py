"""The first referee: every legal mesh, every partition, every recomputation of a small problem, all priced.

Layers of one kind within a chunk are interchangeable (a stage is a sum over kinds and modes), so counts per
chunk, kind and mode stand for all assignments. Nothing here shares code with the search: meshes come from a
plain product under the rules of legality, partitions from combinations of cut points.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np

from meshwright.costmodels.arrays import BoolArray, FloatArray, IntArray
from meshwright.costmodels.recompute import MODES
from meshwright.costmodels.schedule import legal as schedule_legal
from meshwright.costmodels.schedule import names
from meshwright.costmodels.step import price
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.costmodels.tables import build_tables
from meshwright.planner.choice import Choice
from meshwright.planner.graph import ModelGraph
from meshwright.planner.meshes import Meshes
from meshwright.planner.plan import PLACEMENTS
from meshwright.planner.pricing import setting
from meshwright.planner.problem import Problem
from meshwright.planner.rules import legal

BATCH = 8192


@dataclass(frozen=True)
class Everything:
    """All plans of a problem, whatever they need: N plans.

    Attributes
    ----------
    meshes
        All legal meshes, twins included.
    row
        Mesh of each plan, (N,).
    step_s, peak_bytes, host_bytes, nvme_bytes
        Price of each plan, and what its fullest rank holds on the device, on its host and on drives, (N,).
    slack_bytes
        What rounding memory up to whole KiB may cost a plan at most.
    """

    meshes: Meshes
    row: IntArray
    step_s: FloatArray
    peak_bytes: FloatArray
    slack_bytes: float
    host_bytes: FloatArray
    nvme_bytes: FloatArray

    @cached_property
    def peaks(self) -> FloatArray:
        """Distinct peaks in rising order."""
        return np.unique(self.peak_bytes)

    def optimum(self, usable: float, host: float = np.inf, nvme: float = np.inf) -> float:
        """Return the least step among the plans that fit; infinite if none does."""
        fits = (self.peak_bytes <= usable) & (self.host_bytes <= host) & (self.nvme_bytes <= nvme)
        return float(np.min(self.step_s[fits], initial=np.inf))

    def least_step(self, usable: float) -> FloatArray:
        """Return the least step of each mesh among its plans that fit; infinite if none does."""
        least, fits = np.full(len(self.meshes), np.inf), self.peak_bytes <= usable
        np.minimum.at(least, self.row[fits], self.step_s[fits])
        return least

    def least_peak(self) -> FloatArray:
        """Return the least peak of each mesh."""
        least = np.full(len(self.meshes), np.inf)
        np.minimum.at(least, self.row, self.peak_bytes)
        return least

    def capacities(self, rng: np.random.Generator, number: int) -> list[float]:
        """Return memory sizes that bind, each with no plan within the rounding below it."""
        front = self._front()
        found = []
        for at in rng.permutation(len(front))[:number]:
            near = front[at] * (1 + 1e-9) + self.slack_bytes
            while np.any((self.peaks > near - self.slack_bytes) & (self.peaks <= near)):
                inside = self.peaks[(self.peaks > near - self.slack_bytes) & (self.peaks <= near)]
                near = float(inside.max()) * (1 + 1e-9) + self.slack_bytes
            found.append(near)
        return found

    def _front(self) -> FloatArray:
        """Return the peaks at which the optimum changes, and one below which nothing fits."""
        order = np.lexsort((self.step_s, self.peak_bytes))
        best = np.minimum.accumulate(self.step_s[order])
        fresh = np.concatenate([[True], best[1:] < best[:-1]])
        changes = self.peak_bytes[order][fresh]
        return np.concatenate([[changes[0] - 4 * self.slack_bytes], changes])


def every_mesh(problem: Problem) -> Meshes:
    """Return every legal mesh, from a plain product of all values."""
    total, batch = problem.cluster.num_devices, problem.job.global_batch_size
    wanted = problem.job.choices.get("schedule", Choice(allowed=frozenset({"1f1b", "interleaved"})))
    schedules = [name for name in names() if wanted.admits(name)]
    degrees = [t for t in product(range(1, total + 1), repeat=4) if np.prod(t) <= total]
    longest = problem.job.sequence_length // (2 if "cp" in problem.job.choices else 4096)
    hosts = [i for i, what in enumerate(OFFLOADS) if _admits(problem, "offload", what, {"none"})]
    etps = range(1, total + 1) if "etp" in problem.job.choices else ()
    experts = any(op.expert for kind in problem.model.kinds for op in kind.operators)
    rows = [
        (tp, cp, pp, dp, copies, ep, etp, hpz, vpp, z, b, batch // dp // b, sp, way, u, host, place, name)
        for tp, cp, pp, dp in degrees
        if cp <= max(1, longest)
        for b in range(1, batch // dp + 1)
        if batch % (dp * b) == 0
        for name in schedules
        if pp > 1 or name in ("1f1b", "gpipe")
        for vpp in range(1, problem.model.num_layers // pp + 1)
        if schedule_legal(name, pp, vpp, 64 * pp) is None
        for z, sp, place in product(range(4), range(2), range(len(PLACEMENTS) if cp > 1 else 2))
        for copies, hpz in product(_parts(dp), _parts(dp) if z == 3 else (1,))
        for u, way in product(_parts(cp), range(2) if cp > 1 else (0,))
        for ep, etp in (product(_parts(tp * cp * dp), etps or {1, tp}) if experts else ((1, 1),))
        for host in hosts
    ]
    columns = list(zip(*rows, strict=True))
    numbers = [np.array(c, dtype=np.int64) for c in columns[:-1]]
    meshes = Meshes(*numbers, schedule=np.array(columns[-1], dtype=np.str_))
    return meshes.take(legal(problem, meshes)[0] & _follows_topology(problem, meshes))


def _admits(problem: Problem, name: str, value: str, usual: set[str]) -> bool:
    return problem.job.choices.get(name, Choice(allowed=frozenset(usual))).admits(value)


def _parts(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def _follows_topology(problem: Problem, meshes: Meshes) -> BoolArray:
    """Return whether copies and secondary shards fill the blocks of a tier, and heads stay in a node or not.

    Heads are exchanged by all context ranks, by none, or by as many as a node holds. A pin frees each.
    """
    free = problem.job.choices
    stride, shard = meshes.stride("dp"), meshes.dp // meshes.dp_replicate
    blocks = [(size // stride == shard) & (shard > 1) for size in problem.cluster.block_sizes[:-1]]
    copies = np.logical_or.reduce([meshes.dp_replicate == 1, *blocks]) | ("dp_replicate" in free)
    inside = problem.cluster.devices_per_host // stride
    second = (meshes.hpz == 1) | ((meshes.hpz == inside) & (inside < shard)) | ("hpz" in free)
    near = problem.cluster.devices_per_host // meshes.stride("cp")
    heads = [int(p.units) for p in problem.model.parts if p.axis == "ulysses"]
    most = np.ones_like(meshes.cp)
    for u in range(1, int(meshes.cp.max(initial=1)) + 1):
        able = np.logical_and.reduce([n % (meshes.tp * u) == 0 for n in heads])
        most = np.where((meshes.cp % u == 0) & (u <= near) & able, u, most)
    few = (meshes.ulysses == 1) | (meshes.ulysses == meshes.cp) | (meshes.ulysses == most)
    return np.asarray(copies & second & (few | ("ulysses" in free)))


def partitions(graph: ModelGraph, chunks: int, interleaved: bool) -> Iterator[tuple[int, ...]]:
    """Yield all cut points; several chunks a rank hold equal blocks but for one fewer at either end."""
    inner = np.array(graph.block_layers)
    for middle in combinations(range(1, graph.num_layers), chunks - 1):
        cuts = (0, *middle, graph.num_layers)
        if interleaved:
            blocks = np.diff(np.searchsorted(inner, cuts))
            most = int(blocks[1:-1].max())
            if set(blocks[1:-1].tolist()) != {most} or any(b not in (most, most - 1) for b in blocks):
                continue
        yield cuts


def _splits(total: int, modes: IntArray) -> list[IntArray]:
    """Return all ways to deal ``total`` equal layers to some modes, each (M,)."""
    found = []
    for counts in product(range(total + 1), repeat=len(modes)):
        if sum(counts) == total:
            row = np.zeros(len(MODES), dtype=np.int64)
            row[modes] = counts
            found.append(row)
    return found


def _own(graph: ModelGraph, kind: int, modes: IntArray) -> IntArray:
    """Return the modes of a kind: only blocks are recomputed."""
    return modes if graph.kinds[kind].role == "block" else np.array([0])


def assignments(problem: Problem, chunks: int, interleaved: bool, several: bool | None = None) -> IntArray:
    """Return all counts of a pipeline, (N, C, K, M).

    ``several`` chunks a rank (as ``interleaved`` by default) offload activations only if the job names it.
    """
    several = interleaved if several is None else several
    graph, target = problem.model, problem.target
    wanted = problem.job.choices.get("recompute", Choice())
    named = wanted.allowed or frozenset()
    linked = problem.cluster.accelerator.host_link is not None and (not several or "offload" in named)
    able = [m for m in MODES if m in target.recompute and wanted.admits(m) and (linked or m != "offload")]
    free = np.array([MODES.index(m) for m in able if m != "moe" or m in named])
    expert = np.array([MODES.index(m) for m in able])
    routed = [any(op.expert for op in kind.operators) for kind in graph.kinds]
    found: list[IntArray] = []
    for cuts in partitions(graph, chunks, interleaved):
        kinds = np.diff(graph.prefix_counts[list(cuts)], axis=0)
        cells = [(c, k) for c, k in zip(*np.nonzero(kinds), strict=True)]
        for modes in [free[i : i + 1] for i in range(len(free))] if target.recompute_uniform else [free]:
            options = [
                _splits(int(kinds[c, k]), _own(graph, k, expert if routed[k] and modes is free else modes))
                for c, k in cells
            ]
            for chosen in product(*options):
                table = np.zeros((chunks, len(graph.kinds), len(MODES)), dtype=np.int64)
                for (c, k), row in zip(cells, chosen, strict=True):
                    table[c, k] = row
                found.append(table)
    shape = (-1, chunks, len(graph.kinds), len(MODES))
    return np.array(found, dtype=np.int64).reshape(shape)


def everything(problem: Problem, most_plans: int = 10**7, meshes: Meshes | None = None) -> Everything | None:
    """Return the price of all plans (of some meshes), or None where there are more than ``most_plans``."""
    meshes = every_mesh(problem) if meshes is None else meshes
    common = setting(problem)
    equal = ((meshes.vpp > 1) & (not problem.target.uneven_chunks)).tolist()
    keys = list(zip(meshes.pp.tolist(), meshes.vpp.tolist(), equal, strict=True))
    shapes = {key: assignments(problem, key[0] * key[1], key[2], key[1] > 1) for key in sorted(set(keys))}
    sizes = [len(shapes[key]) for key in keys]
    if sum(sizes) > most_plans:
        return None
    rows = [np.empty(0, dtype=np.int64)]
    steps, peaks, hosts, drives = ([np.empty(0)] for _ in range(4))
    tables = build_tables(common, meshes.strategies())
    for row, key in enumerate(keys):
        counts = shapes[key]
        for first in range(0, len(counts), BATCH):
            part = counts[first : first + BATCH]
            same = np.full(len(part), row)
            got = price(common, meshes.take(same).strategies(), part, tables.take(same))
            rows.append(same)
            steps.append(got.step_time_s)
            peaks.append(got.peak_bytes.max(axis=1))
            hosts.append(got.host_bytes.max(axis=1))
            drives.append(got.nvme_bytes.max(axis=1))
    live = int((meshes.num_microbatches * meshes.vpp).max(initial=1))
    slack = 1024.0 * (problem.model.num_layers * (1 + live) + 4)
    columns = [np.concatenate(column) for column in (rows, steps, peaks)]
    return Everything(meshes, *columns, slack, np.concatenate(hosts), np.concatenate(drives))
