"""The search space: every mesh that a problem allows, as one batch of arrays.

Enumerated are all degrees, ZeRO stage, micro-batch size, schedule, sequence parallelism, the ways of context
parallelism and the placement. For each group of ``tp``, ``cp``, ``pp`` and ``dp`` the other decisions are
short tables of combinations (:mod:`meshwright.planner.degree_group`), whose product is taken in numpy.
Twins that differ in name only are kept once: ZeRO where nothing can be sharded, placements that agree in the
order of the dimensions in use, the exchange of keys and values where all context ranks exchange heads.

Searched only if the job pins them: schedules that are not usual in the target (GPipe holds every micro-batch
in flight, and frameworks at scale do not run it), and context parts of fewer than
:data:`LEAST_CONTEXT_TOKENS`. Offloading of states is searched if the job pins it, and where nothing fits
without it (:mod:`meshwright.planner.spill`). Some degrees follow the topology unless they are pinned: what
lies inside a block of a tier is one copy (hybrid sharding), the data ranks of a node share a secondary copy,
and heads are exchanged by all context ranks or by those of a node. The expert-tensor degree is 1 or ``tp``.
"""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.degree_group import DegreeGroup, admitted, divisors, most_samples
from meshwright.planner.lengths import main_length
from meshwright.planner.meshes import SCHEDULES, Meshes
from meshwright.planner.model_rules import splits_sequence
from meshwright.planner.problem import Problem
from meshwright.planner.rule import has_experts
from meshwright.planner.rules import legal

LEAST_CONTEXT_TOKENS = 4096
"""Published runs split sequences beyond what one rank can hold; below this tensor ranks split them better."""
COLUMNS = tuple(f.name for f in fields(Meshes))

Degrees = tuple[int, int, int, int]
"""(tp, cp, pp, dp)."""


def degrees(problem: Problem) -> list[Degrees]:
    """Return (tp, cp, pp, dp) that fit the devices; all are used unless idle devices are allowed."""
    total, batch = problem.cluster.num_devices, problem.job.global_batch_size
    tensor = [p for p in problem.model.parts if not p.padded and p.axis == "tensor"]
    widest = max((int(p.units) for p in tensor), default=1)
    idle, target = problem.job.allow_idle, problem.target
    tps = [t for t in range(1, min(total, widest if target.tensor else 1) + 1) if idle or total % t == 0]
    found = []
    for tp in admitted(problem, "tp", [t for t in tps if _tp_legal(problem, t)]):
        for cp in admitted(problem, "cp", _contexts(problem, total // tp)):
            room = total // (tp * cp)
            pps = range(1, min(room, problem.model.num_layers if target.pipeline else 1) + 1)
            for pp in admitted(problem, "pp", [p for p in pps if idle or room % p == 0]):
                dps = [d for d in divisors(batch) if d <= room // pp] if idle else [room // pp]
                found += [(tp, cp, pp, dp) for dp in admitted(problem, "dp", dps)]
    return found


def _contexts(problem: Problem, room: int) -> list[int]:
    """Return the context degrees that the model, the length and the devices allow."""
    length, idle = main_length(problem.model, problem.job), problem.job.allow_idle
    if not (problem.target.context and splits_sequence(problem)):
        return [1]
    most = length // 2 if "cp" in problem.job.choices else max(1, length // LEAST_CONTEXT_TOKENS)
    cut = [c for c in divisors(length) if c <= min(room, most) and length % (2 * c) == 0]
    return sorted({1, *(c for c in cut if idle or room % c == 0)})


def _tp_legal(problem: Problem, tp: int) -> bool:
    parts = [p for p in problem.model.parts if not p.padded and p.axis == "tensor"]
    return all(p.units % tp == 0 or (p.replicable and tp % p.units == 0) for p in parts)


def _groups(problem: Problem) -> Iterator[dict[str, IntArray]]:
    experts, held = has_experts(problem), most_samples(problem)
    for tp, cp, pp, dp in degrees(problem):
        if problem.job.global_batch_size % dp == 0:
            yield DegreeGroup(problem, tp, cp, pp, dp, experts, held).columns()


def enumerate_meshes(problem: Problem) -> Meshes:
    """Return every candidate mesh before the rules; see :func:`space`."""
    groups = list(_groups(problem))
    empty = np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([empty, *(g[name] for g in groups)]) for name in COLUMNS}
    schedule = np.array(SCHEDULES)[columns.pop("schedule")]
    return Meshes(**columns, schedule=schedule)


def space(problem: Problem) -> tuple[Meshes, dict[str, int]]:
    """Return the legal meshes of a problem, and how many each rule discarded."""
    meshes = enumerate_meshes(problem)
    passed, discarded = legal(problem, meshes)
    return meshes.take(passed), discarded
