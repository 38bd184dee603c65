"""Any framework: the plan itself, its degrees in the environment, and a torchrun launcher."""

from typing import Final

from meshwright.planner.emit import launch
from meshwright.planner.emit.arguments import script_notes
from meshwright.planner.emit.base import Emitter
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem


def emit(problem: Problem, plan: Plan, script: str) -> dict[str, str]:
    """Return the files."""
    return {
        "launch.sh": launch.torchrun(problem, plan, script),
        "job.sbatch": launch.sbatch(problem, plan, "launch.sh"),
    }


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    return [
        "Read `plan.json` (its path is in `MESHWRIGHT_PLAN`; the degrees are in `MESHWRIGHT_TP`, "
        "`MESHWRIGHT_PP` and `MESHWRIGHT_DP`) and apply it: no framework was chosen, so none is configured.",
        f"Lay the ranks out with {', '.join(_order(plan))} innermost first.",
        *script_notes(problem, plan),
    ]


def _order(plan: Plan) -> list[str]:
    """Return the dimensions, innermost first; a context dimension only where there is one."""
    return [d for d in plan.placement if d != "cp" or plan.cp > 1]


EMITTER: Final = Emitter(
    target="any",
    level="syntax",
    checked="torchrun's parser and bash accept such launchers; no framework's configuration is written",
    emit=emit,
    limits=lambda problem, plan: [],
    about={"launch.sh": "starts one host's share with torchrun", "job.sbatch": "a Slurm job"},
    start=launch.start,
    script=script,
)
