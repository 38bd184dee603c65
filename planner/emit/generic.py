"""Any framework: the plan itself, its degrees in the environment, and a torchrun launcher."""

from typing import Final

from meshwright.planner.emit.arguments import script_notes
from meshwright.planner.emit.base import Emitter
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    return [
        "Read `plan.json` (its path is in `MESHWRIGHT_PLAN`; the degrees are in `MESHWRIGHT_TP`, "
        "`MESHWRIGHT_PP` and `MESHWRIGHT_DP`) and apply it: no framework was chosen, so none is configured.",
        "`launch.sh` starts what `--script` named, else `train.py` of the folder that you stand in; "
        "`TRAIN_SCRIPT=FILE ./launch.sh` starts another.",
        f"Lay the ranks out with {', '.join(_order(plan))} innermost first.",
        *script_notes(problem, plan),
    ]


def _order(plan: Plan) -> list[str]:
    """Return the dimensions, innermost first; a context dimension only where there is one."""
    return [d for d in plan.placement if d != "cp" or plan.cp > 1]


EMITTER: Final = Emitter(
    target="any",
    level="syntax",
    checked="no framework's configuration is written",
    files=lambda problem, plan: {},
    limits=lambda problem, plan: [],
    about={},
    script=script,
)
