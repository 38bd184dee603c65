"""Meshes: the degrees, the ZeRO stage, the micro-batch, the schedule and how dimensions lie on the topology.

A batch of meshes is a set of equal-length arrays, so that rules, bounds and prices are one numpy call each.
What remains open inside a mesh, the stages and the recomputation of each layer, is CP-SAT's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.strategy import Strategies
from meshwright.planner.plan import PLACEMENTS, Plan


@dataclass(frozen=True)
class Meshes:
    """A batch of meshes; every field has shape (B,). ``placement`` indexes :data:`PLACEMENTS`."""

    tp: IntArray
    pp: IntArray
    dp: IntArray
    vpp: IntArray
    zero_stage: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    sequence_parallel: IntArray
    placement: IntArray
    schedule: NDArray[np.str_]

    def __len__(self) -> int:
        """Return the size of the batch."""
        return len(self.tp)

    def take(self, index: IntArray | BoolArray | Sequence[int]) -> "Meshes":
        """Return the meshes at an index or under a mask."""
        rows = np.asarray(index)
        return Meshes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def devices(self) -> IntArray:
        """Devices in use."""
        return self.tp * self.pp * self.dp

    def strategies(self) -> Strategies:
        """Return what the cost models price."""
        data_inner = self.placement == 0
        return Strategies(
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            vpp=self.vpp,
            zero_stage=self.zero_stage,
            micro_batch_size=self.micro_batch_size,
            num_microbatches=self.num_microbatches,
            sequence_parallel=self.sequence_parallel,
            data_stride=self.tp * np.where(data_inner, 1, self.pp),
            pipeline_stride=self.tp * np.where(data_inner, self.dp, 1),
            schedule=tuple(self.schedule.tolist()),
        )

    def decisions(self, row: int) -> dict[str, Any]:
        """Return one mesh as plain values under the names of a plan's fields."""
        values = {f.name: getattr(self, f.name)[row].item() for f in fields(self)}
        values["placement"] = PLACEMENTS[values["placement"]]
        values["sequence_parallel"] = bool(values["sequence_parallel"])
        return values

    def describe(self, row: int) -> str:
        """Return one mesh in a few words."""
        v = self.decisions(row)
        words = [f"tp {v['tp']}", f"pp {v['pp']}", f"dp {v['dp']}"]
        words += [f"vpp {v['vpp']}"] if v["vpp"] > 1 else []
        words += [f"ZeRO-{v['zero_stage']}", f"micro-batch {v['micro_batch_size']} x {v['num_microbatches']}"]
        words += ["sequence parallel"] if v["sequence_parallel"] else []
        return ", ".join(words)


def one_mesh(**values: Any) -> Meshes:
    """Return a batch of one from plain values; ``placement`` is a tuple of names, innermost first."""
    row = dict(values) | {"placement": PLACEMENTS.index(tuple(values["placement"]))}
    schedule = np.array([row.pop("schedule")], dtype=np.str_)
    return Meshes(**{k: np.array([v], dtype=np.int64) for k, v in row.items()}, schedule=schedule)


def mesh_of(plan: Plan) -> Meshes:
    """Return a plan's mesh as a batch of one."""
    return one_mesh(**{f.name: getattr(plan, f.name) for f in fields(Meshes)})
