"""torchtitan 0.3: ``meshwright_config.py``, whose function ``planned`` returns the trainer's configuration.

torchtitan takes no configuration file: ``--module M --config F`` names a Python function. Keys:
``torchtitan/config/configs.py`` of 0.3.0 (``TrainingConfig``, ``ParallelismConfig``). Where its words differ
from a plan's:

- Without a pipeline a pass is one local batch, and accumulation is global over local batch. With one all
  passes are one local batch, cut into pipeline micro-batches.
- ``fsdp_reshard_after_forward`` ``always`` is ZeRO-3, ``never`` ZeRO-2; ``default`` depends on the pipeline.
- Checkpointing is one policy for all layers; the emitted subclass of ``FullAC`` leaves out the layers that
  the plan does.
"""

from typing import Any, Final

from meshwright.planner.emit.arguments import ADAM, CLIPPING, script_notes
from meshwright.planner.emit.base import Emitter
from meshwright.planner.emit.scripts import text
from meshwright.planner.emit.torchtitan_code import FULL, LAYERWISE, NONE, TEMPLATE
from meshwright.planner.plan import Chunk, Plan
from meshwright.planner.problem import Problem

ARGUMENTS: Final = "--module meshwright_config --config planned "
MODULES: Final = {
    "llama": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v2": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
}
"""torchtitan's module by the ``model_type`` of a model's file."""
FLAVORS: Final = {
    ("llama3", 16, 2048): "1B",
    ("llama3", 28, 3072): "3B",
    ("llama3", 32, 4096): "8B",
    ("llama3", 80, 8192): "70B",
    ("llama3", 126, 16384): "405B",
    ("deepseek_v3", 27, 2048): "16B",
    ("deepseek_v3", 60, 5120): "236B",
    ("deepseek_v3", 61, 7168): "671B",
    ("qwen3", 28, 1024): "0.6B",
    ("qwen3", 28, 2048): "1.7B",
    ("qwen3", 36, 2560): "4B",
    ("qwen3", 36, 4096): "8B",
    ("qwen3", 40, 5120): "14B",
    ("qwen3", 64, 5120): "32B",
    ("qwen3", 48, 2048): "30B-A3B",
    ("qwen3", 94, 4096): "235B-A22B",
}
"""Flavors by module, layers and width: a proposal, which the emitted code checks before anything runs."""
SCHEDULES: Final = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "interleaved_zb": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
DTYPES: Final = {
    "bf16": ("float32", "bfloat16"),
    "pure-bf16": ("bfloat16", "bfloat16"),
    "fp32": ("float32", "float32"),
}
"""Of the shards, and of what is gathered."""


def training(plan: Plan) -> dict[str, Any]:
    """Return the fields of ``TrainingConfig``."""
    dtype, gathered = DTYPES[plan.precision]
    passes = plan.num_microbatches if plan.pp > 1 else 1
    return {
        "local_batch_size": plan.micro_batch_size * passes,
        "global_batch_size": plan.global_batch_size,
        "seq_len": plan.sequence_length,
        "max_norm": CLIPPING,
        "dtype": dtype,
        "mixed_precision_param": gathered,
        "enable_cpu_offload": plan.offload == "parameters",
        # Graphs support neither pipelines nor the usual exchange of experts; the price counts on none.
        "disable_cuda_graphs": True,
    }


def parallelism(plan: Plan) -> dict[str, Any]:
    """Return the fields of ``ParallelismConfig``."""
    return {
        "data_parallel_replicate_degree": plan.dp_replicate,
        "data_parallel_shard_degree": plan.dp // plan.dp_replicate,
        "fsdp_reshard_after_forward": "always" if plan.zero_stage == 3 else "never",
        "tensor_parallel_degree": plan.tp,
        "enable_sequence_parallel": plan.sequence_parallel,
        "context_parallel_degree": plan.cp,
        # Attention by FlexAttention, whose masks this balancer cuts.
        **({"context_parallel_load_balancer": "ptrr"} if plan.cp > 1 else {}),
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
        **(_pipeline(plan) if plan.pp > 1 else {}),
        # The default, spmd_types, failed where models were built to check it.
        "spmd_backend": "partial_dtensor",
    }


def _pipeline(plan: Plan) -> dict[str, Any]:
    return {
        "pipeline_parallel_schedule": SCHEDULES[plan.schedule],
        "pipeline_parallel_microbatch_size": plan.micro_batch_size,
        "module_fqns_per_model_part": [modules(plan, chunk) for chunk in plan.chunks],
    }


def modules(plan: Plan, chunk: Chunk) -> list[str]:
    """Return the names of a chunk's modules: embedding, layers, norm and head."""
    last = plan.num_layers - 1
    layers = [f"layers.{i - 1}" for i in range(max(chunk.start, 1), min(chunk.stop, last))]
    first = ["tok_embeddings"] if chunk.start == 0 else []
    return [*first, *layers, *(["norm", "lm_head"] if chunk.stop > last else [])]


def checkpointed(problem: Problem, plan: Plan) -> list[int]:
    """Return the numbers of the layers that are recomputed, as torchtitan counts them."""
    return [i - 1 for i in problem.model.block_layers if plan.recompute[i] == "full"]


def config(problem: Problem, plan: Plan) -> str:
    """Return ``meshwright_config.py``."""
    model, again = problem.model, checkpointed(problem, plan)
    blocks = len(model.block_layers)
    module = MODULES[model.family]
    policy = NONE if not again else FULL if len(again) == blocks else LAYERWISE
    return TEMPLATE.format(
        module=module,
        flavor=FLAVORS.get((module, blocks, model.hidden_size), ""),
        layers=blocks,
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        imports=policy.imports,
        policy=policy.definition.format(layers=again),
        checkpointing=policy.value,
        lr=ADAM["lr"],
        training=_fields(training(plan)),
        parallelism=_fields(parallelism(plan)),
    )


def _fields(values: dict[str, Any]) -> str:
    return "".join(f"            {name}={_value(value)},\n" for name, value in values.items())


def _value(value: Any) -> str:
    """Return a value as Python source; a list of lists with a line for each."""
    if not isinstance(value, list):
        return f'"{value}"' if isinstance(value, str) else repr(value)
    rows = "".join(f"                [{', '.join(_value(v) for v in row)}],\n" for row in value)
    return f"[\n{rows}            ]"


def files(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return the files."""
    return {"meshwright_config.py": config(problem, plan), "train.py": text("torchtitan")}


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    return [
        "`train.py` starts torchtitan; `planned` in `meshwright_config.py` is its configuration.",
        "Name data set and tokenizer behind `launch.sh` (`--hf_assets_path`, `--dataloader.dataset`); they "
        "are no part of the plan.",
        "`TITAN_FLAVOR` names another flavor of the model; layers, width and vocabulary are checked.",
        *[
            note
            for note in script_notes(problem, plan)
            if "dtype" not in note and "Load the model" not in note
        ],
    ]


EMITTER: Final = Emitter(
    target="torchtitan",
    level="built",
    checked="torchtitan 0.3.0 built trainers from such files on single ranks among all of a plan's, with the "
    "planned stages, shards and checkpoints; its training steps need GPUs",
    files=files,
    limits=lambda problem, plan: [],
    about={
        "meshwright_config.py": "torchtitan's configuration as a Python function",
        "train.py": "starts torchtitan",
    },
    script=script,
    arguments=ARGUMENTS,
    before=lambda problem, plan: ('export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"',),
)
