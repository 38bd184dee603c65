"""Small training scripts for models of transformers, which read the plan and the files beside them.

They stand in ``planner/data/scripts`` as they are emitted. One is emitted only where it does all that the
plan says: for plain decoders, all of whose weights are trained, with a loss that transformers (or Liger's
kernels) computes. Otherwise the user's own is started.
"""

from pathlib import Path
from typing import Final

from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.target_job import plain_decoder

FOLDER: Final = Path(__file__).resolve().parent.parent / "data" / "scripts"
LOSSES: Final = frozenset({"torch", "eager", "fused"})
"""Cross entropies that a model of transformers computes, the last with Liger's kernels.

No script runs ``kernel``: transformers casts the logits up before it calls a loss, also where that is a
kernel of Liger's. Nor ``full``, which is Megatron's: it forms the gradient in place."""
ABOUT: Final = {
    "train.py": "a small training script that reads the other files; `--script` names your own instead",
    "planned.py": "what that script reads of the plan, its model and its tokens",
    "pipeline_model.py": "the model as DeepSpeed's pipeline, cut where the plan says",
}

ASKS: Final = (
    "`train.py` needs `--model FOLDER` (`config.json` and weights; random ones with `--scratch`) and takes "
    "`--tokens FILE.npy` (made-up ones without) and `--steps N`"
)
"""What those scripts are told when they are started."""


def own_script(problem: Problem, plan: Plan, name: str, *beside: str) -> dict[str, str]:
    """Return ``train.py`` and what it imports; nothing where they would not do all that the plan says."""
    model = problem.base
    able = plan.tuning == "full" and plan.loss in LOSSES and plain_decoder(model) and not model.mtp_included
    return {"train.py": text(name), **{f"{b}.py": text(b) for b in ("planned", *beside)}} if able else {}


def text(name: str) -> str:
    """Return a script's text."""
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")
