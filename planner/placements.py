"""What each order of the mesh's dimensions on the topology would cost a plan."""

from dataclasses import dataclass, replace
from typing import Any

from meshwright.planner.meshes import mesh_of
from meshwright.planner.plan import PLACEMENTS, Plan
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.rules import legal


@dataclass(frozen=True, slots=True)
class PlacementPrice:
    """The step of a plan whose dimensions lie in another order, all else equal.

    ``order`` names the dimensions in use, innermost first.
    """

    placement: tuple[str, ...]
    order: tuple[str, ...]
    step_time_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "placement": list(self.placement),
            "order": list(self.order),
            "step_time_s": self.step_time_s,
        }


def price_placements(problem: Problem, plan: Plan) -> tuple[PlacementPrice, ...]:
    """Return the price of a plan in each legal order of its dimensions, fastest first.

    Orders that differ only in dimensions of degree 1 are one; the plan's own stands for its twins. A pin on
    the placement does not count: the table says what it costs.
    """
    free = {k: v for k, v in problem.job.choices.items() if k != "placement"}
    open_problem = replace(problem, job=replace(problem.job, choices=free))
    found: dict[tuple[str, ...], PlacementPrice] = {}
    for placement in (plan.placement, *PLACEMENTS):
        order = tuple(d for d in placement if getattr(plan, d) > 1)
        moved = replace(plan, placement=placement)
        if order not in found and legal(open_problem, mesh_of(moved))[0][0]:
            found[order] = PlacementPrice(placement, order, price_plan(problem, moved).step_time_s)
    return tuple(sorted(found.values(), key=lambda one: one.step_time_s))
