"""DeepSpeed: ``ds_config.json`` and how to start it.

Keys: https://www.deepspeed.ai/docs/config-json/. DeepSpeed ignores unknown keys at the top level, hence the
test that compares every emitted key with those that its configuration reads.
"""

from typing import Any, Final

from meshwright.costmodels.profiles import find_profile
from meshwright.planner.emit import launch, scripts
from meshwright.planner.emit.arguments import (
    ADAM,
    CLIPPING,
    recompute_note,
    recomputes_all,
    script_notes,
    to_json,
    training_arguments,
)
from meshwright.planner.emit.base import Emitter
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
    "fp32": {},
    "tf32": {},
    "pure-bf16": {
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    },
}
_SGD: Final = {k: ADAM[k] for k in ("lr", "weight_decay")}
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "adamw": {"optimizer": {"type": "AdamW", "params": ADAM}},
    "adam": {"optimizer": {"type": "Adam", "params": {**ADAM, "adam_w_mode": False}}},
    "momentum": {
        "optimizer": {"type": "SGD", "params": {**_SGD, "momentum": 0.9}},
        "zero_allow_untested_optimizer": True,
    },
    "sgd": {"optimizer": {"type": "SGD", "params": _SGD}, "zero_allow_untested_optimizer": True},
}
ARGUMENTS: Final = '"${CONFIG_OPTION:---deepspeed_config}" "$HERE/ds_config.json" '
"""DeepSpeed's own option; a transformers Trainer calls the same thing ``--deepspeed``."""
NVME_PATH: Final = "/local_nvme"
"""A folder on the drives of each host: a placeholder."""
OVERLAP_BUCKETS: Final = 4.5
"""With ``overlap_comm`` DeepSpeed holds 4.5 times the two bucket sizes (its documentation)."""


def config(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the content of ``ds_config.json``."""
    return {
        **_tensor(plan),
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        "gradient_clipping": CLIPPING,
        **PRECISIONS[plan.precision],
        **OPTIMIZERS[plan.optimizer],
        "zero_optimization": zero(problem, plan),
        **activation_checkpointing(problem, plan),
    }


def _tensor(plan: Plan) -> dict[str, Any]:
    """Return the tensor degree, or without one the global batch.

    With AutoTP DeepSpeed counts the ranks of a replica as data ranks when it checks the product.
    """
    if plan.tp == 1:
        return {"train_batch_size": plan.global_batch_size}
    return {"tensor_parallel": {"autotp_size": plan.tp, "vocab_parallel_lm_head": True}}


def zero(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the ZeRO block, its buckets in elements.

    The documentation's sizes for a hidden size h are h^2 for a bucket, 0.9 h^2 for the prefetch and 10 h for
    parameters that stay gathered; the first two are capped so that they hold no more than was priced.
    """
    if plan.zero_stage == 0:
        return {"stage": 0}
    hidden = problem.model.hidden_size
    bucket = min(hidden**2, _priced_elements(plan) or hidden**2)
    block = {
        "stage": plan.zero_stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
    }
    block |= _offload(plan)
    if plan.zero_stage < 3:
        return {**block, "allgather_partitions": True, "allgather_bucket_size": bucket}
    return {
        **block,
        "stage3_prefetch_bucket_size": bucket * 9 // 10,
        "stage3_param_persistence_threshold": 10 * hidden,
        "stage3_gather_16bit_weights_on_model_save": True,
        **({"zero_hpz_partition_size": plan.hpz} if plan.hpz > 1 else {}),
    }


def _offload(plan: Plan) -> dict[str, Any]:
    """Return the blocks that move states, and weights, to host memory or to the drives under a path."""
    what, _, drives = plan.offload.partition("-")
    place = {"device": "nvme", "nvme_path": NVME_PATH} if drives else {"device": "cpu"}
    home = {**place, "pin_memory": True}
    found = {} if what == "none" else {"offload_optimizer": home}
    return found | ({"offload_param": home} if what == "parameters" else {})


def _priced_elements(plan: Plan) -> int:
    """Return the bucket whose true footprint is the two gradient buckets that the profile prices, or 0."""
    profile = find_profile(plan.profile)
    priced_bytes = 2 * float(profile.bucket_bytes)
    footprint = 2 * OVERLAP_BUCKETS * float(profile.gradient_bytes)
    return int(priced_bytes / footprint)


def activation_checkpointing(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the block that says how many layers are checkpointed, where all are and a script may ask it."""
    count = len(problem.model.block_layers)
    if plan.pp > 1 or not recomputes_all(problem, plan):
        return {}
    return {
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "synchronize_checkpoint_boundary": False,
            "number_checkpoints": count,
        }
    }


def files(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return the files."""
    bf16 = {"bf16": True} if plan.precision == "pure-bf16" else {}
    arguments = training_arguments(plan, **bf16, gradient_checkpointing=recomputes_all(problem, plan))
    return {
        "ds_config.json": to_json(config(problem, plan)),
        # A Trainer has no pipeline.
        **({"training_args.json": to_json(arguments)} if plan.pp == 1 else {}),
        **_script(problem, plan),
    }


def _script(problem: Problem, plan: Plan) -> dict[str, str]:
    if plan.pp == 1:
        return scripts.own_script(problem, plan, "deepspeed")
    return scripts.own_script(problem, plan, "deepspeed_pipeline", "pipeline_model")


def hostfile(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return the list of hosts that DeepSpeed's launcher reads; nothing for one host."""
    several = launch.lay_out(problem, plan).count > 1
    return {"hostfile": launch.hostfile(problem, plan)} if several else {}


def accelerate(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return what ``accelerate launch`` reads where it starts DeepSpeed's processes."""
    import yaml

    plugin = {"deepspeed_config_file": "ds_config.json", "zero3_init_flag": plan.zero_stage == 3}
    values = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {**plugin, "deepspeed_multinode_launcher": "standard"},
        "num_machines": launch.lay_out(problem, plan).count,
        "num_processes": plan.num_devices,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "main_training_function": "main",
    }
    return {"accelerate.yaml": yaml.safe_dump(values, sort_keys=False)}


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    notes = _pipeline_notes() if plan.pp > 1 else _engine_notes(problem, plan)
    if plan.tp > 1:
        notes.append(
            f"Give the {plan.tp} ranks of a replica, which lie side by side, the same tokens: AutoTP checks "
            f"it. The global batch of {plan.global_batch_size} stands in no file: DeepSpeed would take each "
            "of them for a replica."
        )
    if plan.offload.endswith("nvme"):
        notes.append(
            f"`nvme_path` in `ds_config.json` is {NVME_PATH}: point it at a folder on each host's drives, "
            "and install DeepSpeed's asynchronous I/O (`DS_BUILD_AIO=1`, libaio)."
        )
    return [*notes, *script_notes(problem, plan)]


def _pipeline_notes() -> list[str]:
    return [
        "Hand `--deepspeed_config` to `deepspeed.initialize(config=...)`, and `build` of `pipeline_model.py` "
        "for the model: it cuts and recomputes where `plan.json` says so."
    ]


def _engine_notes(problem: Problem, plan: Plan) -> list[str]:
    notes = [
        "Hand `--deepspeed_config` to `deepspeed.initialize(config=...)`. With a Trainer that parses its "
        "arguments launch with `CONFIG_OPTION=--deepspeed`; otherwise use `TrainingArguments(output_dir=..., "
        'deepspeed="ds_config.json", **training_args)`. Optimizer values stand in both files and must agree.',
        *recompute_note(problem, plan),
    ]
    if recomputes_all(problem, plan):
        notes.append(
            "Switch recomputation on: `model.gradient_checkpointing_enable()` (a Trainer does it); the "
            "`activation_checkpointing` block serves models that call `deepspeed.checkpointing`."
        )
    return notes


EMITTER: Final = Emitter(
    target="deepspeed",
    level="run",
    checked="small models were trained from such folders with DeepSpeed 0.19.8 on two CPU processes (ZeRO, "
    "AutoTP and pipeline), each with the losses of one process",
    files=files,
    limits=lambda problem, plan: [],
    about={
        "ds_config.json": "DeepSpeed's configuration",
        "training_args.json": "the same decisions as arguments of a transformers Trainer",
        "hostfile": "the hosts, with placeholder names: edit it",
        "accelerate.yaml": "the same configuration as Accelerate's launcher reads it",
        **scripts.ABOUT,
    },
    script=script,
    asks=scripts.ASKS,
    arguments=ARGUMENTS,
    launchers=("deepspeed", "torchrun", "accelerate"),
    default_launchers=("deepspeed", "torchrun", "slurm"),
    beside={"deepspeed": hostfile, "accelerate": accelerate},
    options={"accelerate": '--deepspeed_config_file "$HERE/ds_config.json" '},
)
