"""What the training script must set itself, as ``training_args.json`` and as lines for the README.

The keys are those of ``transformers.TrainingArguments``, so that ``TrainingArguments(**values)`` takes them;
another script reads what it needs. Learning rate, betas, decay and clipping are no decisions of a plan: they
are common starting values (GPT-3, arXiv 2005.14165, appendix B) that the user replaces.
"""

import json
from typing import Any, Final

from meshwright.costmodels.profiles import find_profile
from meshwright.planner.emit.adapters import tuning_notes
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

CLIPPING: Final = 1.0
ADAM: Final = {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
FLAGS: Final[dict[str, dict[str, bool]]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "tf32": {"tf32": True},
}
"""Arguments that switch a recipe on; recipes without an entry need none."""
DTYPE: Final = {"pure-bf16": "bfloat16"}
LOSS: Final = {
    "full": "Form the gradient of the cross entropy in place, in one fp32 copy of the logits, as Megatron: "
    "what transformers computes by itself holds more (`--loss torch` prices it).",
    "kernel": "Compute the cross entropy of 16-bit logits in one kernel that writes the gradient over them "
    "(flash-attn): transformers casts the logits up before its loss (`--loss torch` prices it).",
    "engine": "Keep the outputs of stages, as pipeline engines of 2023 did; no argument does it for you.",
    "fused": "Use a fused head and loss (Liger kernel; `use_liger_kernel` does it in a Trainer).",
    "chunked": "Compute head and loss chunk by chunk over the tokens; no argument does it for you.",
    "pieces": "Compute head and loss in pieces of 128 tokens in 16 bits, as LitGPT does; no argument does.",
    "sliced": "Take the cross entropy of 128 rows of 16-bit logits at a time, as LitGPT does: no argument.",
    "traced": "Capture the step with its loss in one graph; no argument does it for you.",
    "jit": "Megatron-Core's compiled cross entropy (`--cross-entropy-loss-fusion`); no argument here.",
    "te": "Transformer Engine's `parallel_cross_entropy`; no argument does it for you.",
    "metrics": "flash-attn's cross entropy and Composer's two train metrics; no argument does it for you.",
    "compiled": "Compile the cross entropy by itself (`torch.compile`); no argument does it for you.",
}


def training_arguments(plan: Plan, **extra: Any) -> dict[str, Any]:
    """Return the arguments that hold for any framework, and ``extra``."""
    return {
        "per_device_train_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        **FLAGS.get(plan.precision, {}),
        **({"use_liger_kernel": True} if plan.loss == "fused" else {}),
        "max_grad_norm": CLIPPING,
        "learning_rate": ADAM["lr"],
        "weight_decay": ADAM["weight_decay"],
        "adam_beta1": ADAM["betas"][0],  # type: ignore[index]
        "adam_beta2": ADAM["betas"][1],  # type: ignore[index]
        "adam_epsilon": ADAM["eps"],
        **extra,
    }


def to_json(data: dict[str, Any]) -> str:
    """Return indented JSON text."""
    return json.dumps(data, indent=2) + "\n"


def recomputes_all(problem: Problem, plan: Plan) -> bool:
    """Return whether every decoder layer is recomputed whole."""
    return all(plan.recompute[i] == "full" for i in problem.model.block_layers)


def recompute_note(problem: Problem, plan: Plan) -> list[str]:
    """Return which layers a script must recompute where these are not all or none, as transformers counts."""
    again = [i - 1 for i in problem.model.block_layers if plan.recompute[i] == "full"]
    if not again or recomputes_all(problem, plan):
        return []
    return [
        f"Recompute decoder layers {', '.join(map(str, again))} alone, as the emitted script does: in "
        "transformers `layer.gradient_checkpointing`; a Trainer has no argument for it."
    ]


def script_notes(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do under any framework, one line each."""
    notes = [f"Feed sequences of {plan.sequence_length} tokens, {plan.micro_batch_size} a pass and device."]
    notes += tuning_notes(plan)
    if plan.precision in DTYPE:
        notes.append(f"Load the model in {DTYPE[plan.precision]}: this recipe keeps no fp32 copy.")
    if plan.precision == "tf32":
        notes.append("Switch TF32 on: `torch.backends.cuda.matmul.allow_tf32 = True`.")
    if plan.loss in LOSS:
        notes.append(LOSS[plan.loss])
    if find_profile(plan.profile).flash_attention:
        notes.append("Use flash attention (in transformers `attn_implementation`): the price counts on it.")
    notes.append(
        "Learning rate, betas, decay and clipping are common values, no part of the plan: set yours."
    )
    return notes
