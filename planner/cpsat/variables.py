"""Variables of a mesh: where the pipeline is cut, and how many layers of each kind run in each mode."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from ortools.sat.python import cp_model

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.schedule import StaticSchedule
from meshwright.planner.bounds import Demand
from meshwright.planner.chunking import equal_chunks
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
    uniform
        For targets that need one mode for all blocks: which mode it is.
    """

    model: cp_model.CpModel
    schedule: StaticSchedule
    graph: ModelGraph
    want: Demand
    counts: list[dict[tuple[int, int], Expression]] = field(default_factory=list)
    present: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    hinted: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    cuts: list[cp_model.IntVar] = field(default_factory=list)

    def kind_count(self, chunk: int, kind: int) -> Expression:
        """Return the layers of a kind in a chunk."""
        terms = [v for (k, _), v in self.counts[chunk].items() if k == kind]
        return cp_model.LinearExpr.sum(terms) if terms else 0

    def rank_count(self, rank: int, kind: int, mode: int) -> Expression:
        """Return the layers of a kind and mode on a rank."""
        own = self.schedule.chunks_of_rank[rank]
        terms = [self.counts[c][kind, mode] for c in own if (kind, mode) in self.counts[c]]
        return cp_model.LinearExpr.sum(terms) if terms else 0


def is_uniform(graph: ModelGraph) -> bool:
    """Return whether the model is a stack of equal blocks between single end layers."""
    kinds = {graph.layer_kinds[i] for i in graph.block_layers}
    inner = graph.block_layers
    return len(kinds) == 1 and inner == tuple(range(inner[0], inner[-1] + 1))


def make_variables(
    model: cp_model.CpModel, schedule: StaticSchedule, graph: ModelGraph, want: Demand
) -> Variables:
    """Return the decisions: counts alone for a stack of equal blocks, cut points and look-ups otherwise."""
    made = Variables(model, schedule, graph, want)
    chunk_kinds = _stack_counts(made) if is_uniform(graph) else _cut_counts(made)
    for c, kinds in enumerate(chunk_kinds):
        made.counts.append({})
        for k, total in kinds.items():
            _split_modes(made, c, k, total)
    for rank in range(schedule.pp):
        _mark_present(made, rank)
    return made


def _stack_counts(made: Variables) -> list[dict[int, Expression]]:
    """Blocks per chunk as free counts; what lies before them is in the first chunk, the rest in the last."""
    graph, chunks = made.graph, made.schedule.num_chunks
    first, last = graph.block_layers[0], graph.block_layers[-1]
    block, blocks = graph.layer_kinds[first], len(graph.block_layers)
    before = _tally(graph, 0, first)
    after = _tally(graph, last + 1, graph.num_layers)
    found: list[dict[int, Expression]] = []
    q, _ = equal_chunks(blocks, chunks)
    for c in range(chunks):
        ends = (c == 0 and bool(before), c == chunks - 1 and bool(after))
        least, most = (q - any(ends), q) if made.schedule.vpp > 1 else (0 if any(ends) else 1, blocks)
        row: dict[int, Expression] = {block: made.model.new_int_var(least, most, f"n{c}")}
        row |= before if c == 0 else {}
        row |= after if c == chunks - 1 else {}
        found.append(row)
    made.model.add(cp_model.LinearExpr.sum([row[block] for row in found]) == blocks)
    return found


def _tally(graph: ModelGraph, start: int, stop: int) -> dict[int, Expression]:
    """Return layers of each kind among ``start`` to ``stop``, kinds that occur only."""
    row = graph.prefix_counts[stop] - graph.prefix_counts[start]
    return {int(k): int(row[k]) for k in np.flatnonzero(row)}


def _cut_counts(made: Variables) -> list[dict[int, Expression]]:
    """Ordered cut points, and element look-ups into the prefix sums of each kind."""
    graph, model, chunks = made.graph, made.model, made.schedule.num_chunks
    total = graph.num_layers
    made.cuts = [model.new_int_var(c, total - chunks + c, f"cut{c}") for c in range(chunks + 1)]
    model.add(made.cuts[0] == 0)
    model.add(made.cuts[-1] == total)
    for a, b in zip(made.cuts, made.cuts[1:], strict=False):
        model.add(b >= a + 1)
    if made.schedule.vpp > 1:
        _equal_cuts(made)
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


def _equal_cuts(made: Variables) -> None:
    """Interleaved chunks are equal; the first may be one block short."""
    inner = made.graph.block_layers
    q, shifts = equal_chunks(len(inner), made.schedule.num_chunks)
    short = made.model.new_int_var_from_domain(cp_model.Domain.from_values(list(shifts)), "short")
    for c, cut in enumerate(made.cuts[1:-1], start=1):
        made.model.add(cut == inner[0] + c * q - short)


def _split_modes(made: Variables, chunk: int, kind: int, total: Expression) -> None:
    """Split the layers of a kind in a chunk over its modes."""
    modes = [int(m) for m in np.flatnonzero(made.want.allowed[kind])]
    most = int(made.want.layers[kind])
    if len(modes) == 1:
        made.counts[chunk][kind, modes[0]] = total
        return
    for m in modes:
        var = made.model.new_int_var(0, most, f"r{chunk}.{kind}.{m}")
        made.counts[chunk][kind, m] = var
        made.hinted[chunk, kind, m] = var
    split = [made.counts[chunk][kind, m] for m in modes]
    made.model.add(cp_model.LinearExpr.sum(split) == total)


def _mark_present(made: Variables, rank: int) -> None:
    """Tie booleans to the kinds and modes that a rank holds."""
    for k, m in zip(*np.nonzero(made.want.allowed), strict=True):
        count = made.rank_count(rank, int(k), int(m))
        if isinstance(count, int) and not count:
            continue
        flag = made.model.new_bool_var(f"u{rank}.{k}.{m}")
        made.model.add(count <= int(made.want.layers[k]) * flag)
        made.present[rank, int(k), int(m)] = flag
