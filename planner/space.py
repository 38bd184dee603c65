"""The search space: every mesh that a problem allows, as one batch of arrays.

Enumerated are ``tp``, ``pp``, ``dp``, ``vpp``, ZeRO stage, micro-batch size, sequence parallelism and
placement. Interleaved chunks are equal (:mod:`meshwright.planner.chunking`). Twins that differ in name only
are kept once: ZeRO and placement where there is no data (or no pipeline) group. GPipe is searched only if
the job pins it: it holds every micro-batch in flight, and frameworks at scale do not run it. (With the same
stages it can be a percent faster where transfers are slow.)
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from meshwright.planner.choice import Choice
from meshwright.planner.chunking import equal_chunks
from meshwright.planner.meshes import Meshes
from meshwright.planner.plan import PLACEMENTS
from meshwright.planner.problem import Problem
from meshwright.planner.rules import legal

COLUMNS = (
    "tp",
    "pp",
    "dp",
    "vpp",
    "zero_stage",
    "micro_batch_size",
    "num_microbatches",
    "sequence_parallel",
    "placement",
    "schedule",
)


def divisors(n: int) -> list[int]:
    """Return the divisors of ``n`` in rising order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _admitted(problem: Problem, name: str, values: Sequence[int]) -> list[int]:
    """Return the values that the job's choice for a decision admits."""
    wanted = problem.job.choices.get(name, Choice())
    return [v for v in values if wanted.admits(v)]


def degrees(problem: Problem) -> list[tuple[int, int, int]]:
    """Return (tp, pp, dp) that fit the devices; all are used unless idle devices are allowed."""
    total, batch = problem.cluster.num_devices, problem.job.global_batch_size
    widest = max((int(p.units) for p in problem.model.parts if not p.padded), default=1)
    idle = problem.job.allow_idle
    target = problem.target
    tps = [t for t in range(1, min(total, widest if target.tensor else 1) + 1) if idle or total % t == 0]
    found = []
    for tp in _admitted(problem, "tp", [t for t in tps if _tp_legal(problem, t)]):
        room = total // tp
        pps = range(1, min(room, problem.model.num_layers if target.pipeline else 1) + 1)
        for pp in _admitted(problem, "pp", [p for p in pps if idle or room % p == 0]):
            dps = [d for d in divisors(batch) if d <= room // pp] if idle else [room // pp]
            found += [(tp, pp, dp) for dp in _admitted(problem, "dp", dps)]
    return found


def _stages(problem: Problem, pp: int, dp: int) -> list[int]:
    """Return the ZeRO stages that differ in more than name."""
    target = problem.target
    stages = target.zero_stages & (target.zero_stages_with_pipeline if pp > 1 else target.zero_stages)
    wanted = _admitted(problem, "zero_stage", sorted(stages))
    if dp > 1:
        return wanted
    return wanted[:1] if problem.profile.working_copy else [z for z in wanted if z in (wanted[0], 3)]


def _placements(problem: Problem, pp: int, dp: int) -> list[int]:
    """Return the placements that the job admits, one alone where they do not differ."""
    wanted = problem.job.choices.get("placement", Choice())
    places = [i for i, order in enumerate(PLACEMENTS) if wanted.admits(",".join(order))]
    return places if dp > 1 and pp > 1 else places[:1]


def _tp_legal(problem: Problem, tp: int) -> bool:
    parts = [p for p in problem.model.parts if not p.padded]
    return all(p.units % tp == 0 or (p.replicable and tp % p.units == 0) for p in parts)


def _schedules(problem: Problem, pp: int) -> list[tuple[str, int]]:
    """Return (schedule, vpp) for a pipeline degree."""
    wanted = problem.job.choices.get("schedule", Choice(allowed=frozenset({"1f1b", "interleaved"})))
    plain = [(name, 1) for name in ("1f1b", "gpipe") if wanted.admits(name)]
    if pp == 1 or not problem.target.interleaved or not wanted.admits("interleaved"):
        return plain
    blocks, most = len(problem.model.block_layers), problem.model.num_layers // pp
    return plain + [("interleaved", v) for v in range(2, most + 1) if equal_chunks(blocks, pp * v)[1]]


def enumerate_meshes(problem: Problem) -> Meshes:
    """Return every candidate mesh before the rules; see :func:`space`."""
    batch, target = problem.job.global_batch_size, problem.target
    columns: list[tuple[object, ...]] = []
    for tp, pp, dp in degrees(problem):
        if batch % dp:
            continue
        micro = [(b, batch // dp // b) for b in divisors(batch // dp)]
        split = [0, 1] if tp > 1 and target.sequence_parallel else [0]
        for (b, m), (name, vpp), z, sp, place in product(
            micro, _schedules(problem, pp), _stages(problem, pp, dp), split, _placements(problem, pp, dp)
        ):
            columns.append((tp, pp, dp, vpp, z, b, m, sp, place, name))
    table = list(zip(*columns, strict=True)) or [()] * len(COLUMNS)
    numbers = {name: np.array(c, dtype=np.int64) for name, c in zip(COLUMNS[:-1], table[:-1], strict=True)}
    return Meshes(**numbers, schedule=np.array(table[-1], dtype=np.str_))


def space(problem: Problem) -> tuple[Meshes, dict[str, int]]:
    """Return the legal meshes of a problem, and how many each rule discarded."""
    meshes = enumerate_meshes(problem)
    passed, discarded = legal(problem, meshes)
    return meshes.take(passed), discarded
