"""Tables of many meshes: all at hand where they are few, built when asked for where they are many."""

from dataclasses import dataclass, field, fields

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.costmodels.memory import StateBytes
from meshwright.costmodels.strategy import Setting
from meshwright.costmodels.tables import Tables, build_tables
from meshwright.planner.meshes import Meshes

MOST_KEPT = 40_000
"""Tables of so many meshes stay in memory (a few KiB each)."""


@dataclass
class TableStore:
    """The tables of a field's meshes, by row.

    Attributes
    ----------
    kept
        Tables built so far, one portion after another.
    place
        Where the tables of a row lie in the concatenation of the portions, (B,); -1 where they do not.
    """

    setting: Setting
    meshes: Meshes
    kept: list[Tables] = field(default_factory=list)
    place: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    size: int = 0

    def __post_init__(self) -> None:
        self.place = np.full(len(self.meshes), -1, dtype=np.int64)

    def keep(self, rows: IntArray, tables: Tables) -> None:
        """Remember the tables of rows."""
        self.place[rows] = self.size + np.arange(len(rows))
        self.size += len(rows)
        self.kept.append(tables)

    def take(self, rows: IntArray) -> Tables:
        """Return the tables of rows, in their order; those not at hand are built together."""
        index = np.asarray(rows, dtype=np.int64)
        missing = np.unique(index[self.place[index] < 0])
        if len(missing):
            self.keep(missing, build_tables(self.setting, self.meshes.take(missing).strategies()))
        return self._whole().take(self.place[index])

    def _whole(self) -> Tables:
        """Return all portions as one."""
        if len(self.kept) > 1:
            self.kept = [joined_tables(self.kept)]
        return self.kept[0]


def joined_tables(parts: list[Tables]) -> Tables:
    """Return the tables of several batches as those of one."""
    arrays = {
        f.name: np.concatenate([getattr(t, f.name) for t in parts])
        for f in fields(Tables)
        if f.name != "states"
    }
    states = {f.name: np.concatenate([getattr(t.states, f.name) for t in parts]) for f in fields(StateBytes)}
    return Tables(**arrays, states=StateBytes(**states))
