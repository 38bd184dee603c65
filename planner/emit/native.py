"""PyTorch's own parallelism: the plan is the configuration, and :func:`meshwright.apply` carries it out.

The emitted ``train.py`` is the one of the examples; a script of one's own needs the same call.
"""

from typing import Final

from meshwright.planner.emit import scripts
from meshwright.planner.emit.arguments import script_notes
from meshwright.planner.emit.base import Emitter
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem


def limits(problem: Problem, plan: Plan) -> list[str]:
    """Return what is not applied beside the target's own limits: recomputation outside the layers."""
    blocks = set(problem.model.block_layers)
    return [
        f"recompute={mode} on layer {i}: only on decoder layers"
        for i, mode in enumerate(plan.recompute)
        if i not in blocks and mode != "none"
    ][:1]


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what a script of one's own must do."""
    notes = [
        "`applied = meshwright.apply(path_of_plan_json, model, optimizer_fn)` in every process, with the "
        "same weights in each; its path is in `MESHWRIGHT_PLAN`. It lays the model out, and checks "
        "processes, model and plan against each other first.",
        '`applied.step({"input_ids": ids})` for each step, with `applied.local_batch_size` sequences that '
        "differ between the `applied.data_ranks` replicas: `applied.data_rank` says which one this rank is.",
        "Load the model in fp32: the recipe's lower precision is applied to what is gathered.",
    ]
    if plan.precision == "pure-bf16":
        notes.pop()
    return [*notes, *(note for note in script_notes(problem, plan) if "a pass and device" not in note)]


EMITTER: Final = Emitter(
    target="native",
    level="run",
    checked="such plans trained a small model on 2, 4 and 8 CPU processes with PyTorch 2.13, each with the "
    "losses of one process, and what was applied was compared with the plan",
    files=lambda problem, plan: {"train.py": scripts.text("native")},
    limits=limits,
    about={
        "train.py": "a training script that applies the plan; `--script` names your own instead",
    },
    script=script,
    asks=scripts.ASKS,
)
