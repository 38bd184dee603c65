"""Rules of legality that the schedules of a pipeline bring."""

import numpy as np

from meshwright.costmodels.arrays import BoolArray, IntArray
from meshwright.costmodels.schedule import legal as schedule_legal
from meshwright.planner.meshes import SCHEDULES, Meshes
from meshwright.planner.problem import Problem
from meshwright.planner.rule import Rule


def schedule_rules(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules that chunks, micro-batches and their order keep."""
    partial, loop = problem.target.partial_groups, SCHEDULES.index("interleaved")
    single = [SCHEDULES.index(name) for name in ("1f1b", "gpipe")]

    def runs(m: Meshes) -> BoolArray:
        """Return where the schedule runs, asked once for each distinct case."""
        # Numbered first: the values themselves may be so large that their product has no room.
        values, codes = zip(*(np.unique(c, return_inverse=True) for c in _pipeline(m)), strict=True)
        sizes = tuple(map(len, values))
        few, back = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
        keys = zip(*(v[i] for v, i in zip(values, np.unravel_index(few, sizes), strict=True)), strict=True)
        return np.array([_objection(*key) is None for key in keys], dtype=np.bool_)[back.reshape(-1)]

    return (
        Rule(
            "interleaving",
            "the interleaved schedule has vpp above 1 and pp above 1, one of single chunks has vpp 1",
            lambda m: np.where(
                m.schedule_code == loop,
                (m.vpp > 1) & (m.pp > 1),
                (m.vpp == 1) | ~np.isin(m.schedule_code, single),
            ),
        ),
        Rule(
            "micro-batches fill the groups",
            "interleaving needs micro-batches that are a multiple of pp",
            lambda m: (m.schedule_code != loop) | (m.num_microbatches % m.pp == 0) | partial,
        ),
        Rule(
            "schedule runs",
            "the schedule can run with these pp, vpp and micro-batches",
            runs,
            lambda m: _objection(*(c[0] for c in _pipeline(m))),
        ),
    )


def _pipeline(m: Meshes) -> tuple[IntArray, ...]:
    """Return the columns on which it depends whether a schedule runs."""
    return m.schedule_code, m.pp, m.vpp, m.num_microbatches


def _objection(code: int, pp: int, vpp: int, passes: int) -> str | None:
    """Return why a schedule cannot run, or None."""
    name = SCHEDULES[code]
    reason = schedule_legal(name, int(pp), int(vpp), int(passes))
    return None if reason is None else f"{name}: {reason}"
