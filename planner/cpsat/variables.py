"""Variables of a mesh: where the pipeline is cut, and how many layers of each kind run in each mode."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import StaticSchedule
from meshwright.planner.bounds import Demand
from meshwright.planner.chunking import chunk_cuts
from meshwright.planner.cpsat.mixes import StageMixes
from meshwright.planner.cpsat.stages import possible_runs
from meshwright.planner.graph import ModelGraph

Expression: TypeAlias = Any
"""A linear expression of OR-tools, a variable or an integer (its own union has no common arithmetic)."""


@dataclass
class Variables:
    """The decisions of one mesh.

    Attributes
    ----------
    counts
        ``counts[c][k][m]`` layers of kind k in mode m in chunk c; absent combinations are missing.
    present
        ``present[r, k, m]`` whether rank r holds such a layer.
    split
        ``split[c, k, m]`` the variables among the counts, where modes are free.
    most
        ``most[c, k]`` layers of a kind that a chunk holds at most, where modes are free.
    sizes
        ``sizes[c]`` maps blocks in a chunk to the boolean that chooses this size, where the mix of modes
        follows from the layers (:mod:`meshwright.planner.cpsat.mixes`) and blocks are equal.
    runs
        ``runs[c]`` maps (first layer, stop) of a chunk to the boolean that chooses it, where the mix follows
        from the layers and kinds differ.
    cuts
        Cut points, where layers of several kinds alternate.
    free
        Whether chunks may differ in size.
    """

    model: cp_model.CpModel
    schedule: StaticSchedule
    graph: ModelGraph
    want: Demand
    free: bool = True
    counts: list[dict[tuple[int, int], Expression]] = field(default_factory=list)
    present: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    split: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    most: dict[tuple[int, int], int] = field(default_factory=dict)
    sizes: list[dict[int, cp_model.IntVar]] = field(default_factory=list)
    runs: list[dict[tuple[int, int], cp_model.IntVar]] = field(default_factory=list)
    cuts: list[cp_model.IntVar] = field(default_factory=list)

    @property
    def by_rank(self) -> bool:
        """Whether chunks may differ in size and a rank has several."""
        return self.free and self.schedule.vpp > 1

    def rank_count(self, rank: int, kind: int, mode: int) -> Expression:
        """Return the layers of a kind and mode on a rank."""
        own = self.schedule.chunks_of_rank[rank]
        terms = [self.counts[c][kind, mode] for c in own if (kind, mode) in self.counts[c]]
        return cp_model.LinearExpr.sum(terms) if terms else 0

    def hint(self, counts: IntArray) -> None:
        """Suggest the layers of a known plan, (C, K, M), in place of earlier suggestions."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for (c, k, m), var in self.split.items():
            self.model.add_hint(var, int(counts[c, k, m]))
        blocks = counts[:, self.want.blocks].sum(axis=(1, 2))
        for c, choices in enumerate(self.sizes):
            for n, chosen in choices.items():
                self.model.add_hint(chosen, int(n == blocks[c]))
        stops = counts.sum(axis=(1, 2)).cumsum()
        for c, choices_of_run in enumerate(self.runs):
            own = (int(stops[c - 1]) if c else 0, int(stops[c]))
            for run, chosen in choices_of_run.items():
                self.model.add_hint(chosen, int(run == own))


def is_uniform(graph: ModelGraph) -> bool:
    """Return whether the model is a stack of equal blocks between single end layers."""
    kinds = {graph.layer_kinds[i] for i in graph.block_layers}
    inner = graph.block_layers
    return len(kinds) == 1 and inner == tuple(range(inner[0], inner[-1] + 1))


def make_variables(
    model: cp_model.CpModel,
    schedule: StaticSchedule,
    graph: ModelGraph,
    want: Demand,
    mixes: StageMixes | None,
    free: bool,
) -> Variables:
    """Return the decisions of a mesh.

    With one chunk a rank ``mixes`` gives the modes of a stage by its layers, so that only the cuts decide:
    by their sizes for a stack of equal blocks, by runs of layers elsewhere. Otherwise layers of a kind are
    split over modes in every chunk, with cut points and look-ups where kinds alternate. ``free`` chunks may
    differ in size.
    """
    made = Variables(model, schedule, graph, want, free)
    if mixes is not None and schedule.vpp == 1:
        (_size_counts if is_uniform(graph) else _run_counts)(made, mixes)
    else:
        for c, kinds in enumerate(_totals(made)):
            made.counts.append({})
            for k, total in kinds.items():
                _split_modes(made, c, k, total)
    for rank in range(schedule.pp):
        _mark_present(made, rank)
    if made.by_rank:
        _rank_sizes(made)
    return made


def _totals(made: Variables) -> list[dict[int, Expression]]:
    """Return the layers of each kind in each chunk."""
    if not made.free:
        return _given_counts(made)
    return _stack_counts(made) if is_uniform(made.graph) else _cut_counts(made)


class _Terms:
    """Layers by kind and mode as sums over the booleans that choose them."""

    def __init__(self) -> None:
        self.terms: dict[tuple[int, int], list[Expression]] = {}

    def add(self, modes: IntArray, chosen: cp_model.IntVar) -> None:
        """Add the layers of a choice."""
        for k, m in zip(*np.nonzero(modes), strict=True):
            self.terms.setdefault((int(k), int(m)), []).append(int(modes[k, m]) * chosen)

    def sums(self) -> dict[tuple[int, int], Expression]:
        """Return the sums."""
        return {key: cp_model.LinearExpr.sum(t) for key, t in self.terms.items()}


def _size_counts(made: Variables, mixes: StageMixes) -> None:
    """One boolean for each size that a stage may have; its modes follow."""
    graph, chunks = made.graph, made.schedule.num_chunks
    block, blocks = graph.layer_kinds[graph.block_layers[0]], len(graph.block_layers)
    total: list[Expression] = []
    for c in range(chunks):
        ends = _ends(graph, c, chunks)
        chosen: dict[int, cp_model.IntVar] = {}
        terms = _Terms()
        for n in range(0 if ends else 1, min(blocks - chunks + 3, blocks) + 1):
            layers = {**ends, block: ends.get(block, 0) + n}
            modes = mixes.fastest(c, tuple(layers.get(k, 0) for k in range(len(graph.kinds))))
            if modes is None:
                continue
            chosen[n] = made.model.new_bool_var(f"n{c}={n}")
            terms.add(modes, chosen[n])
        made.model.add_exactly_one(list(chosen.values()))
        total += [n * var for n, var in chosen.items()]
        made.sizes.append(chosen)
        made.counts.append(terms.sums())
    made.model.add(cp_model.LinearExpr.sum(total) == blocks)


def _run_counts(made: Variables, mixes: StageMixes) -> None:
    """One boolean for each run of layers that a stage may hold; runs join end to end.

    Only those count that some chain of stages from the first layer to the last can use.
    """
    graph, model, chunks = made.graph, made.model, made.schedule.num_chunks
    for c, runs in enumerate(possible_runs(graph, chunks, mixes)):
        terms = _Terms()
        chosen = {run: model.new_bool_var(f"x{c}={run[0]}:{run[1]}") for run in runs}
        for run, var in chosen.items():
            terms.add(runs[run], var)
        model.add_exactly_one(list(chosen.values()))
        made.runs.append(chosen)
        made.counts.append(terms.sums())
    for before, after in zip(made.runs, made.runs[1:], strict=False):
        places = sorted({stop for _, stop in before} | {start for start, _ in after})
        for at in places:
            ending = [var for (_, stop), var in before.items() if stop == at]
            starting = [var for (start, _), var in after.items() if start == at]
            model.add(cp_model.LinearExpr.sum(ending) == cp_model.LinearExpr.sum(starting))


def _ends(graph: ModelGraph, chunk: int, chunks: int) -> dict[int, int]:
    """Return the layers before and after the blocks that a chunk holds, by kind."""
    first, last = graph.block_layers[0], graph.block_layers[-1]
    row = np.zeros(len(graph.kinds), dtype=np.int64)
    row += (graph.prefix_counts[first] - graph.prefix_counts[0]) * (chunk == 0)
    row += (graph.prefix_counts[graph.num_layers] - graph.prefix_counts[last + 1]) * (chunk == chunks - 1)
    return {int(k): int(row[k]) for k in np.flatnonzero(row)}


def _given_counts(made: Variables) -> list[dict[int, Expression]]:
    """Chunks are equal but for the ends of the model: a choice among few splits, mostly of one."""
    graph, model = made.graph, made.model
    splits = [
        np.diff(graph.prefix_counts[cuts], axis=0)
        for cuts in chunk_cuts(graph, made.schedule.num_chunks, equal=True)
    ]
    if len(splits) == 1:
        return [{int(k): int(row[k]) for k in np.flatnonzero(row)} for row in splits[0]]
    chosen = [model.new_bool_var(f"split{i}") for i in range(len(splits))]
    model.add_exactly_one(chosen)
    table = np.array(splits)
    return [
        {
            int(k): cp_model.LinearExpr.weighted_sum(chosen, table[:, c, k].tolist())
            for k in np.flatnonzero(table[:, c].any(axis=0))
        }
        for c in range(made.schedule.num_chunks)
    ]


def _stack_counts(made: Variables) -> list[dict[int, Expression]]:
    """Blocks per chunk as free counts; what lies before them is in the first chunk, the rest in the last."""
    graph, chunks = made.graph, made.schedule.num_chunks
    block, blocks = graph.layer_kinds[graph.block_layers[0]], len(graph.block_layers)
    found: list[dict[int, Expression]] = []
    for c in range(chunks):
        ends = _ends(graph, c, chunks)
        found.append({**ends, block: made.model.new_int_var(0 if ends else 1, blocks, f"n{c}")})
    made.model.add(cp_model.LinearExpr.sum([row[block] for row in found]) == blocks)
    return found


def _cut_counts(made: Variables) -> list[dict[int, Expression]]:
    """Ordered cut points, and element look-ups into the prefix sums of each kind."""
    graph, model, chunks = made.graph, made.model, made.schedule.num_chunks
    total = graph.num_layers
    made.cuts = [model.new_int_var(c, total - chunks + c, f"cut{c}") for c in range(chunks + 1)]
    model.add(made.cuts[0] == 0)
    model.add(made.cuts[-1] == total)
    for a, b in zip(made.cuts, made.cuts[1:], strict=False):
        model.add(b >= a + 1)
    prefixes: list[list[cp_model.IntVar]] = []
    for k in range(len(graph.kinds)):
        column: IntArray = graph.prefix_counts[:, k]
        row = []
        for c, cut in enumerate(made.cuts):
            value = model.new_int_var(0, int(column[-1]), f"p{c}.{k}")
            model.add_element(cut, column.tolist(), value)
            row.append(value)
        prefixes.append(row)
    found: list[dict[int, Expression]] = []
    for c in range(chunks):
        row_of: dict[int, Expression] = {}
        for k, prefix in enumerate(prefixes):
            count = model.new_int_var(0, int(graph.kind_counts[k]), f"n{c}.{k}")
            model.add(count == prefix[c + 1] - prefix[c])
            row_of[k] = count
        found.append(row_of)
    return found


def _split_modes(made: Variables, chunk: int, kind: int, total: Expression) -> None:
    """Split the layers of a kind in a chunk over its modes."""
    modes = [int(m) for m in np.flatnonzero(made.want.allowed[kind])]
    most = total if isinstance(total, int) else int(made.want.layers[kind])
    made.most[chunk, kind] = most
    if len(modes) == 1:
        made.counts[chunk][kind, modes[0]] = total
        return
    for m in modes:
        var = made.model.new_int_var(0, most, f"r{chunk}.{kind}.{m}")
        made.counts[chunk][kind, m] = var
        made.split[chunk, kind, m] = var
    split = [made.counts[chunk][kind, m] for m in modes]
    made.model.add(cp_model.LinearExpr.sum(split) == total)


def _rank_sizes(made: Variables) -> None:
    """One boolean for each number of blocks that a rank of several free chunks may hold.

    They add nothing to what a plan may be. But a rank's work depends on its blocks far more than on how its
    chunks share them, so that deciding these few first leaves little: a step that whole blocks cannot reach
    is refuted by them, where the chunks would have to be tried one by one.
    """
    blocks, schedule = made.want.blocks, made.schedule
    most = int(made.want.layers[blocks].sum())
    for rank in range(schedule.pp):
        own = [made.counts[c] for c in schedule.chunks_of_rank[rank]]
        held = cp_model.LinearExpr.sum([n for row in own for (k, _), n in row.items() if blocks[k]])
        chosen = [made.model.new_bool_var(f"b{rank}={n}") for n in range(most + 1)]
        made.model.add_exactly_one(chosen)
        made.model.add(held == cp_model.LinearExpr.weighted_sum(chosen, range(most + 1)))


def _mark_present(made: Variables, rank: int) -> None:
    """Tie booleans to the kinds and modes that a rank holds."""
    for k, m in zip(*np.nonzero(made.want.allowed), strict=True):
        count = made.rank_count(rank, int(k), int(m))
        if isinstance(count, int) and not count:
            continue
        flag, all_layers = made.model.new_bool_var(f"u{rank}.{k}.{m}"), int(made.want.layers[k])
        held = [made.most.get((int(c), int(k)), 0) for c in made.schedule.chunks_of_rank[rank]]
        made.model.add(count <= (min(sum(held), all_layers) if made.most else all_layers) * flag)
        made.present[rank, int(k), int(m)] = flag
