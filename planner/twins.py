"""Meshes that differ in their placement by name only: every group of ranks lies on the topology alike.

A price depends on the placement through the spans of the groups (:mod:`meshwright.costmodels.spans`) alone.
On one node any order is as good as any other, and so are most orders of what lies beyond the node.
"""

from dataclasses import fields

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.spans import layer_groups, state_spans
from meshwright.hardware.span import GroupSpan
from meshwright.hardware.spec import Cluster
from meshwright.planner.meshes import Meshes

_LAID = ("tp", "cp", "pp", "dp", "dp_replicate", "ep", "etp", "hpz", "ulysses", "placement")
"""What the spans of a mesh depend on."""


def distinct(cluster: Cluster, meshes: Meshes, experts: bool) -> BoolArray:
    """Return whether each mesh is the first of those that only the name of their placement tells apart.

    Groups of experts' ranks count where the model has ``experts``.
    """
    numbers = [getattr(meshes, f.name) for f in fields(Meshes) if f.name not in (*_LAID, "schedule")]
    schedule = np.unique(meshes.schedule, return_inverse=True)[1]
    first = _first([_layouts(cluster, meshes, experts), schedule, *numbers])[0]
    kept = np.zeros(len(meshes), dtype=np.bool_)
    kept[first] = True
    return kept


def _layouts(cluster: Cluster, meshes: Meshes, experts: bool) -> IntArray:
    """Return a number for each mesh, the same where degrees and spans are, (B,)."""
    first, back = _first([getattr(meshes, name) for name in _LAID])
    one_each = meshes.take(first)
    s = one_each.strategies()
    states = state_spans(cluster, s)
    named: list[tuple[str, GroupSpan]] = [(f.name, getattr(states, f.name)) for f in fields(states)]
    named += layer_groups(cluster, s).items()
    spans = [span for name, span in named if experts or not name.startswith("expert")]
    degrees = [getattr(one_each, name) for name in _LAID if name != "placement"]
    return _first([*degrees, *(column for span in spans for column in _columns(span))])[1][back]


def _columns(span: GroupSpan) -> list[IntArray]:
    """Return all that a span says as whole numbers, column by column, (B,) each."""
    tables = (span.sizes, span.bandwidth_bytes_per_s, span.latency_s)
    return [c.view(np.int64) for t in tables for c in np.ascontiguousarray(t, dtype=np.float64).T.copy()]


def _first(columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of each set of equal rows, and the set of each row."""
    rows = np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int64)
    packed = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
    _, first, back = np.unique(packed, return_index=True, return_inverse=True)
    return np.asarray(first), np.asarray(back).reshape(-1)
