"""What each schedule of the target would cost a plan: those that the search leaves out, too."""

from dataclasses import dataclass, replace
from typing import Any

from meshwright.costmodels.schedule import names, rank_of_chunk
from meshwright.planner.meshes import mesh_of
from meshwright.planner.plan import Plan
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.rules import legal


@dataclass(frozen=True, slots=True)
class SchedulePrice:
    """The step of a plan under another schedule of as many chunks, all else equal, and whether it fits."""

    schedule: str
    step_time_s: float
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"schedule": self.schedule, "step_time_s": self.step_time_s, "fits": self.fits}


def price_schedules(problem: Problem, plan: Plan) -> tuple[SchedulePrice, ...]:
    """Return the price of a plan under each schedule that can run it, fastest first; none without a pipeline.

    Stages and recomputation stay: a schedule that leaves more room, or less, would have better ones, which a
    pin on it finds. A pin on the schedule does not count: the table says what it costs.
    """
    if plan.pp == 1:
        return ()
    free = {k: v for k, v in problem.job.choices.items() if k != "schedule"}
    open_problem = replace(problem, job=replace(problem.job, choices=free))
    found = []
    for name in names():
        moved = replace(plan, schedule=name)
        able = set(plan.recompute) <= {"none", *problem.target.modes_with(name)}
        if not able or not legal(open_problem, mesh_of(moved))[0][0]:
            continue
        ranks = rank_of_chunk(name, plan.pp, plan.vpp).tolist()
        chunks = tuple(replace(c, rank=r) for c, r in zip(plan.chunks, ranks, strict=True))
        priced = price_plan(problem, replace(moved, chunks=chunks))
        found.append(SchedulePrice(name, priced.step_time_s, priced.fits))
    return tuple(sorted(found, key=lambda one: one.step_time_s))
