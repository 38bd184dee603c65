"""``meshwright estimate``: the price of a plan that a person wrote."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from meshwright.cli.errors import ExitCode
from meshwright.cli.jobfile import Request, StrategySchema, read_request
from meshwright.cli.render import estimate_page, show
from meshwright.cli.tables import screen, write_json
from meshwright.planner.plan import JOB_FIELDS, Plan, read_plan
from meshwright.planner.plan_names import names_of
from meshwright.planner.problem import Problem

if TYPE_CHECKING:
    from meshwright.planner.lighter import Lighter

_OF_PLAN: Final = ("model", "cluster", "headroom", *JOB_FIELDS)
"""Fields of a plan from which a request is filled where flags and job file are silent."""


def run(flags: Mapping[str, Any]) -> ExitCode:
    """Read the request, price its plan and print what it costs."""
    given = read_plan(flags["plan"]) if flags["plan"] else None
    request = read_request(flags, _of_plan(given) if given else None)
    with names_of(given):
        problem = Problem.load(request.model, request.cluster, request.job)
    from meshwright.planner.estimate import estimate_problem
    from meshwright.planner.lighter import lighter_plans

    if given and flags["profile"]:  # a stack known better: what runs stays as the plan has it
        given = replace(given, profile=problem.profile.name)
    price = estimate_problem(problem, given or _plan(problem, request))
    lighter = None if price.fits else lighter_plans(problem, price.plan)
    if flags["as_json"]:
        write_json(price.to_dict() | {"lighter": [_told(one) for one in lighter or ()]})
    else:
        console = screen()
        show(console, estimate_page(price, problem.cluster, console.width, lighter))
    return ExitCode.FOUND if price.fits else ExitCode.INFEASIBLE


def _told(one: "Lighter") -> dict[str, Any]:
    """Return a lighter plan as plain data."""
    price = one.estimate
    return {
        "changes": dict(one.changes),
        "step_time_s": price.step_time_s,
        "peak_bytes": list(price.peak_bytes),
        "plan": price.plan.to_dict(),
    }


def _of_plan(plan: Plan) -> dict[str, Any]:
    """Return what a plan says of its job; what it leaves open stays open."""
    found = {key: getattr(plan, key) for key in _OF_PLAN}
    return {key: value for key, value in found.items() if value is not None}


def _plan(problem: Problem, request: Request) -> Plan:
    """Return the plan that the strategy describes."""
    from meshwright.planner.strategy import make_plan

    strategy = StrategySchema.model_validate(request.strategy or {}).model_dump(exclude_none=True)
    return make_plan(problem, **strategy)
