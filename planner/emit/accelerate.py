"""FSDP, its second version or its first, through Accelerate: ``accelerate.yaml`` and the script's arguments.

Keys: ``accelerate launch --help`` and https://huggingface.co/docs/accelerate/usage_guides/fsdp. Accelerate
ignores unknown keys inside ``fsdp_config``, hence the test that compares every emitted key with its options.

Context ranks are Accelerate's, by torch's ring of keys and values; ``allgather`` and ``alltoall`` are its
words for gathering them at once and for passing them on. Left out are tensor ranks: Accelerate 1.15 prepares
them with what transformers 5.24 no longer has (``ReplicateParallel``).
"""

from typing import Any, Final

from meshwright.planner.emit import launch, scripts
from meshwright.planner.emit.arguments import (
    recompute_note,
    recomputes_all,
    script_notes,
    to_json,
    training_arguments,
)
from meshwright.planner.emit.base import Emitter
from meshwright.planner.emit.launchers import Level
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

MIXED_PRECISION: Final = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no", "pure-bf16": "no"}
"""With ``bf16`` Accelerate keeps fp32 shards; ``no`` leaves the dtype in which the script loads the model."""
EXCHANGES: Final = {"all_gather": "allgather", "ring": "alltoall"}
OPTIMIZERS: Final = {"adamw": "adamw_torch_fused", "sgd": "sgd"}


def config(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the content of ``accelerate.yaml``; rank, address and port come from the launch script."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP",
        "mixed_precision": MIXED_PRECISION[plan.precision],
        "num_machines": launch.lay_out(problem, plan).count,
        "num_processes": plan.num_devices,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "main_training_function": "main",
        "fsdp_config": {
            **_version(plan),
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": problem.model.block_class,
            "fsdp_activation_checkpointing": recomputes_all(problem, plan),
            "fsdp_offload_params": plan.offload == "parameters",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        **parallelism(plan),
    }


def _version(plan: Plan) -> dict[str, Any]:
    """Return how the version of FSDP says whether weights stay gathered between the passes."""
    if plan.target == "fsdp":
        return {"fsdp_version": 2, "fsdp_reshard_after_forward": plan.zero_stage == 3}
    return {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": "FULL_SHARD" if plan.zero_stage == 3 else "SHARD_GRAD_OP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": True,
    }


def parallelism(plan: Plan) -> dict[str, Any]:
    """Return the block of degrees: copies of the shards, and context ranks; nothing for one of each."""
    if plan.dp_replicate == plan.cp == 1:
        return {}
    shard = plan.dp // plan.dp_replicate
    sizes = {"dp_replicate": plan.dp_replicate, "dp_shard": shard, "tp": 1, "cp": plan.cp}
    words: dict[str, int | str] = {f"{name}_size": size for name, size in sizes.items()}
    if plan.cp > 1:
        words |= {"cp_backend": "torch", "cp_comm_strategy": EXCHANGES[plan.kv_exchange]}
    return {"parallelism_config": {f"parallelism_config_{k}": v for k, v in words.items()}}


def limits(problem: Problem, plan: Plan) -> list[str]:
    """Return what Accelerate would do otherwise in silence: gather a model whose layers it is not told."""
    if problem.model.block_class is not None:
        return []
    return [
        f"model={problem.model.name}: the class of its decoder layers is unknown, and FSDP must be told "
        "what to shard together (without it the whole model is gathered at once)"
    ]


def files(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return the files."""
    import yaml

    # Unless it synchronises each pass, Accelerate keeps whole gradients between passes (`no_sync`).
    accumulation = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    arguments = training_arguments(plan, optim=OPTIMIZERS[plan.optimizer], accelerator_config=accumulation)
    return {
        "accelerate.yaml": yaml.safe_dump(config(problem, plan), sort_keys=False),
        "training_args.json": to_json(arguments),
        **scripts.own_script(problem, plan, "accelerate"),
    }


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    return [
        "Take micro-batch and accumulation from `training_args.json`, for Accelerate has no word for them: "
        "`TrainingArguments(output_dir=..., **training_args)`, or `Accelerator(gradient_accumulation_plugin="
        f"GradientAccumulationPlugin(num_steps={plan.num_microbatches}, sync_each_batch=True))`.",
        "Keep `sync_each_batch`: without it whole gradients stay in memory between passes.",
        f"Create the optimizer ({plan.optimizer}); a Trainer does it.",
        *_context_note(plan),
        *recompute_note(problem, plan),
        *script_notes(problem, plan),
    ]


def _context_note(plan: Plan) -> list[str]:
    """Return what a script does where tokens are dealt out."""
    if plan.cp == 1:
        return []
    return [
        f"The {plan.cp} ranks of a context group (neighbours) read the same sequences. Forward and backward "
        "pass run inside `accelerator.maybe_context_parallel`, with token numbers, their positions and "
        "shifted labels as its buffers, as in the emitted script."
    ]


def _emitter(target: str, level: Level, checked: str) -> Emitter:
    """Return the emitter of one version of FSDP."""
    return Emitter(
        target=target,
        level=level,
        checked=checked,
        files=files,
        limits=limits,
        about={
            "accelerate.yaml": "Accelerate's configuration: sharding, wrapping, recomputation, precision",
            "training_args.json": "micro-batch, accumulation and precision as arguments of a Trainer",
            **scripts.ABOUT,
        },
        script=script,
        asks=scripts.ASKS,
        launchers=("accelerate",),
        default_launchers=("accelerate", "slurm"),
    )


EMITTER: Final = _emitter(
    "fsdp",
    "run",
    "a small model was trained from such files with Accelerate 1.15.0 on two and four CPU processes, with "
    "shards, copies of them and context ranks, each with the losses of one process",
)
FSDP1: Final = _emitter(
    "fsdp1", "parsed", "Accelerate 1.15.0 reads the file, and its FSDP plugin gets the plan's sharding"
)
