"""Meshes: the degrees, the ZeRO stage, the micro-batch, the schedule and how dimensions lie on the topology.

A batch of meshes is a set of equal-length arrays, so that rules, bounds and prices are one numpy call each.
What remains open inside a mesh, the stages and the recomputation of each layer, is CP-SAT's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.schedule import names
from meshwright.costmodels.strategy import OFFLOADS, Strategies
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS, Plan, full_placement

SCHEDULES: Final = names()
"""In the order of :attr:`Meshes.schedule_code`."""
_LATER: Final[dict[str, Any]] = {
    **dict.fromkeys(("cp", "dp_replicate", "ep", "etp", "hpz", "ulysses"), 1),
    "kv_exchange": "ring",
    "offload": "none",
}
"""What a mesh is without the decisions that few meshes use."""
_INDEXED: Final[dict[str, tuple[Any, ...]]] = {
    "placement": PLACEMENTS,
    "kv_exchange": KV_EXCHANGES,
    "offload": OFFLOADS,
    "sequence_parallel": (False, True),
}
"""Columns that index a table of values."""


@dataclass(frozen=True)
class Meshes:
    """A batch of meshes; every field has shape (B,).

    ``placement``, ``kv_exchange`` and ``offload`` index :data:`PLACEMENTS`, :data:`KV_EXCHANGES` and
    :data:`OFFLOADS`; the others are what a :class:`~meshwright.planner.plan.Plan` says.
    """

    tp: IntArray
    cp: IntArray
    pp: IntArray
    dp: IntArray
    dp_replicate: IntArray
    ep: IntArray
    etp: IntArray
    hpz: IntArray
    vpp: IntArray
    zero_stage: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    sequence_parallel: IntArray
    kv_exchange: IntArray
    ulysses: IntArray
    offload: IntArray
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
        return self.tp * self.cp * self.pp * self.dp

    @property
    def shards(self) -> IntArray:
        """Ranks that a dense state can be sharded over."""
        return self.dp // self.dp_replicate * self.cp

    @cached_property
    def schedule_code(self) -> IntArray:
        """Index of each schedule in :data:`SCHEDULES`."""
        code = np.zeros(len(self), dtype=np.int64)
        for i, name in enumerate(SCHEDULES):
            code[self.schedule == name] = i
        return code

    def stride(self, dim: str) -> IntArray:
        """Return the distance, in devices, between neighbours along ``cp``, ``dp`` or ``pp``."""
        return self._inside(dim, ("tp", "cp", "dp", "pp"))

    @property
    def inner(self) -> IntArray:
        """Ranks of the tensor, context and data dimensions that are laid inside the pipeline dimension."""
        return self._inside("pp", ("tp", "cp", "dp"))

    def _inside(self, dim: str, counted: tuple[str, ...]) -> IntArray:
        """Return the product of the counted degrees that lie inside a dimension."""
        within = np.array([[d in p[: p.index(dim)] for d in counted] for p in PLACEMENTS])
        product = np.ones_like(self.tp)
        for at, name in enumerate(counted):
            product = product * np.where(within[self.placement, at], getattr(self, name), 1)
        return product

    def strategies(self) -> Strategies:
        """Return what the cost models price."""
        return Strategies(
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            cp=self.cp,
            ep=self.ep,
            etp=self.etp,
            dp_replicate=self.dp_replicate,
            hpz=self.hpz,
            vpp=self.vpp,
            zero_stage=self.zero_stage,
            micro_batch_size=self.micro_batch_size,
            num_microbatches=self.num_microbatches,
            sequence_parallel=self.sequence_parallel,
            ulysses=self.ulysses,
            ring=(self.kv_exchange == KV_EXCHANGES.index("ring")).astype(np.int64),
            offload=self.offload,
            context_stride=self.stride("cp"),
            data_stride=self.stride("dp"),
            pipeline_stride=self.stride("pp"),
            inner=self.inner,
            schedule=tuple(self.schedule.tolist()),
        )

    def decisions(self, row: int) -> dict[str, Any]:
        """Return one mesh as plain values under the names of a plan's fields."""
        values = {f.name: getattr(self, f.name)[row].item() for f in fields(self)}
        return values | {name: table[values[name]] for name, table in _INDEXED.items()}

    def describe(self, row: int) -> str:
        """Return one mesh in a few words; decisions that are not in use are left out."""
        v = self.decisions(row)
        words = [f"tp {v['tp']}"]
        words += [f"cp {v['cp']}{_context(v)}"] if v["cp"] > 1 else []
        words += [f"pp {v['pp']}", f"dp {v['dp']}"]
        words += [f"{name} {v[name]}" for name in ("dp_replicate", "ep", "etp", "vpp") if v[name] > 1]
        words += [f"ZeRO-{v['zero_stage']}"] + ([f"hpz {v['hpz']}"] if v["hpz"] > 1 else [])
        words += [f"micro-batch {v['micro_batch_size']} x {v['num_microbatches']}"]
        words += ["sequence parallel"] if v["sequence_parallel"] else []
        words += [f"{v['offload']} offloaded"] if v["offload"] != "none" else []
        words += [v["schedule"]] if v["schedule"] not in ("1f1b", "interleaved") else []
        return ", ".join(words)


def _context(values: dict[str, Any]) -> str:
    """Say how context ranks exchange: ``(ulysses 4, ring)``."""
    ways = [f"ulysses {values['ulysses']}"] if values["ulysses"] > 1 else []
    ways += [values["kv_exchange"].replace("_", "-")] if values["cp"] > values["ulysses"] else []
    return f" ({', '.join(ways)})"


def one_mesh(**values: Any) -> Meshes:
    """Return a batch of one from plain values, as :meth:`Meshes.decisions` gives them.

    Decisions that few meshes use may be left out; a placement without ``cp`` has it next to ``tp``.
    """
    row = _LATER | values
    row["placement"] = full_placement(row["placement"])
    row |= {name: table.index(row[name]) for name, table in _INDEXED.items()}
    schedule = np.array([row.pop("schedule")], dtype=np.str_)
    return Meshes(**{k: np.array([v], dtype=np.int64) for k, v in row.items()}, schedule=schedule)


def mesh_of(plan: Plan) -> Meshes:
    """Return a plan's mesh as a batch of one."""
    return one_mesh(**{f.name: getattr(plan, f.name) for f in fields(Meshes)})
