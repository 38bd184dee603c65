"""Tables of many meshes: all at hand where they are few, built when asked for where they are many."""

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.memory import StateBytes
from meshwright.costmodels.strategy import Setting
from meshwright.costmodels.tables import Tables, build_tables
from meshwright.costmodels.transfers import waits
from meshwright.planner.meshes import Meshes

MOST_KEPT = 40_000
"""Tables of so many meshes stay in memory (a few KiB each)."""
_APART = ("schedule", "vpp")
"""Decisions on which no table depends, but for whether stages wait for their transfers."""


@dataclass
class TableStore:
    """The tables of a field's meshes.

    Meshes that stand beside each other and differ in schedule and chunks only are one *group*: they share
    their tables, unless the stages of one wait for transfers and those of the other do not.

    Attributes
    ----------
    kept
        Tables built so far, one portion of groups after another.
    place
        Where the tables of a group lie in the concatenation of the portions, (G,); -1 where they do not.
    """

    setting: Setting
    meshes: Meshes
    kept: list[Tables] = field(default_factory=list)
    place: IntArray = field(init=False)
    size: int = 0

    def __post_init__(self) -> None:
        self.place = np.full(len(self.first), -1, dtype=np.int64)

    @cached_property
    def _starts(self) -> IntArray:
        """Whether a mesh begins a group, (B,), as 0 or 1."""
        starts = np.zeros(len(self.meshes), dtype=np.int64)
        starts[:1] = 1
        for f in fields(Meshes):
            if f.name not in _APART:
                column = getattr(self.meshes, f.name)
                starts[1:] |= column[1:] != column[:-1]
        stands = waits(self.setting, self.meshes.strategies())
        starts[1:] |= stands[1:] != stands[:-1]
        return starts

    @cached_property
    def first(self) -> IntArray:
        """The first row of each group, (G,)."""
        return np.flatnonzero(self._starts)

    @cached_property
    def group(self) -> IntArray:
        """The group of each row, (B,)."""
        return np.asarray(np.cumsum(self._starts) - 1)

    def keep(self, groups: IntArray, tables: Tables) -> None:
        """Remember the tables of groups."""
        self.place[groups] = self.size + np.arange(len(groups))
        self.size += len(groups)
        self.kept.append(tables)

    def build(self, groups: IntArray) -> Tables:
        """Return the tables of groups without remembering them."""
        return build_tables(self.setting, self.meshes.take(self.first[groups]).strategies())

    def take(self, rows: IntArray) -> Tables:
        """Return the tables of rows, in their order; those not at hand are built together."""
        groups = self.group[np.asarray(rows, dtype=np.int64)]
        missing = np.unique(groups[self.place[groups] < 0])
        if len(missing):
            self.keep(missing, self.build(missing))
        if len(self.kept) > 1:
            self.kept = [joined_tables(self.kept)]
        return self.kept[0].take(self.place[groups])


def joined_tables(parts: list[Tables]) -> Tables:
    """Return the tables of several batches as those of one."""
    names = [f.name for f in fields(Tables) if f.name != "states"]
    arrays = {name: np.concatenate([getattr(t, name) for t in parts]) for name in names}
    items = [f.name for f in fields(StateBytes)]
    states = {name: np.concatenate([getattr(t.states, name) for t in parts]) for name in items}
    return Tables(**arrays, states=StateBytes(**states))
