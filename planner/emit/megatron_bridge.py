"""Megatron-Bridge: ``meshwright_recipe.py``, whose function ``planned`` returns the training configuration.

Read from megatron-bridge 0.6.2 (``training/config.py``, ``recipes/common.py``), whose configuration is made
of Megatron-Core's dataclasses: the fields are those that Megatron-LM's flags are named after. The model's own
shape comes from its ``config.json`` through ``AutoBridge``.
"""

from typing import Any, Final

from meshwright.planner.emit.arguments import ADAM, CLIPPING
from meshwright.planner.emit.base import Emitter
from meshwright.planner.emit.megatron import (
    degree_flags,
    limits,
    loss_flags,
    recompute_flags,
    sharding_flags,
    variables,
)
from meshwright.planner.emit.megatron_moe import Flags
from meshwright.planner.emit.scripts import text
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

ORDER: Final = "--use-tp-pp-dp-mapping"
LISTS: Final = frozenset({"recompute_modules", "hierarchical_context_parallel_sizes"})
TEMPLATE: Final = '''\
"""The plan in plan.json as a configuration of Megatron-Bridge 0.6; written by meshwright."""

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    GPTDatasetConfig,
    LoggerConfig,
    RNGConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.mixed_precision import get_mixed_precision_config

LAYERS, HIDDEN, VOCABULARY = {layers}, {hidden}, {vocabulary}
MODEL = {model}


def model(folder):
    """Return the model of a folder, laid out as planned; it must be the one that was planned for."""
    found = AutoBridge.from_hf_pretrained(folder).to_megatron_provider(load_weights=False)
    if (found.num_layers, found.hidden_size) != (LAYERS, HIDDEN):
        shape = f"{{found.num_layers}} layers of {{found.hidden_size}}"
        raise ValueError(f"{{folder}} has {{shape}}, the plan {{LAYERS}} of {{HIDDEN}}")
    for name, value in MODEL.items():
        if not hasattr(found, name):
            raise AttributeError(f"{{type(found).__name__}} has no {{name}}: is Megatron-Core another one?")
        setattr(found, name, value)
    return found


def planned(folder, steps, data=None) -> ConfigContainer:
    """Return the configuration; rates, betas and decay are common values: set yours."""
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=0, lr_decay_iters=steps, max_lr={lr}, min_lr={lr}, clip_grad={clip}
    )
    optimizer.use_distributed_optimizer = {distributed}
    precision = get_mixed_precision_config("{precision}")
    precision.grad_reduce_in_fp32 = False  # as priced
    return ConfigContainer(
        model=model(folder),
        train=TrainingConfig(train_iters=steps, global_batch_size={batch}, micro_batch_size={micro}),
        validation=ValidationConfig(eval_interval=steps, eval_iters=0),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig({ddp}, grad_reduce_in_fp32=False),
        dataset=GPTDatasetConfig(
            random_seed=1234,
            seq_length={length},
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            blend=(data, None) if data else None,
            split="1,0,0",
            dataloader_type="single",
        ),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=VOCABULARY - 1),
        checkpoint=CheckpointConfig(),
        rng=RNGConfig(seed=1234),
        dist=DistributedInitConfig(use_tp_pp_dp_mapping={order}),
        comm_overlap=CommOverlapConfig(tp_comm_overlap={overlap}),
        mixed_precision=precision,
    )
'''


def model_fields(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the fields of the model's configuration that the plan decides."""
    flags = {**degree_flags(problem, plan), **recompute_flags(problem, plan), **loss_flags(plan)}
    flags.pop(ORDER, None)
    fields = _fields(flags)
    if plan.pp > 1 and plan.vpp > 1:
        fields["virtual_pipeline_model_parallel_size"] = plan.vpp
    experts = {"moe_permute_fusion": True} if "expert_model_parallel_size" in fields else {}
    fields.setdefault("cross_entropy_loss_fusion", False)  # models of Transformers come with it
    return {**fields, **experts, "seq_length": plan.sequence_length}


def _fields(flags: Flags) -> dict[str, Any]:
    """Return flags as the fields that they are named after."""
    return {flag[2:].replace("-", "_"): _value(flag[2:].replace("-", "_"), v) for flag, v in flags.items()}


def _value(name: str, text: str | None) -> Any:
    if text is None:
        return True
    if name in LISTS:
        return [_value("", word) for word in text.split()]
    return int(text) if text.isdigit() else text


def recipe(problem: Problem, plan: Plan) -> str:
    """Return ``meshwright_recipe.py``."""
    ddp = _fields(sharding_flags(plan))
    return TEMPLATE.format(
        layers=len(problem.model.block_layers),
        hidden=problem.model.hidden_size,
        vocabulary=problem.model.vocab_size,
        model=_dictionary(model_fields(problem, plan)),
        lr=ADAM["lr"],
        clip=CLIPPING,
        distributed=plan.zero_stage == 1,
        precision=f"{plan.precision}_mixed",
        batch=plan.global_batch_size,
        micro=plan.micro_batch_size,
        ddp=", ".join(f"{name}={value!r}" for name, value in ddp.items()),
        length=plan.sequence_length,
        order=ORDER in degree_flags(problem, plan),
        overlap=plan.tp > 1 and plan.sequence_parallel,
    )


def _dictionary(values: dict[str, Any]) -> str:
    rows = "".join(f'    "{name}": {value!r},\n' for name, value in values.items())
    return "{\n" + rows + "}"


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    return [
        "`train.py` starts Megatron-Bridge; the function `planned` in `meshwright_recipe.py` is its "
        "configuration, and the model's shape comes from `--model`.",
        "Without `--data` it makes steps on made-up tokens; name your tokenizer in the recipe.",
        "Rate, betas, decay and clipping are common values, no part of the plan: set yours.",
    ]


EMITTER: Final = Emitter(
    target="megatron-bridge",
    level="syntax",
    checked="Python accepts the recipe; its names and fields are in the sources of megatron-bridge 0.6.2 and "
    "megatron-core 0.19.2 (nothing was built or run)",
    files=lambda problem, plan: {
        "meshwright_recipe.py": recipe(problem, plan),
        "train.py": text("megatron_bridge"),
    },
    limits=limits,
    about={
        "meshwright_recipe.py": "Megatron-Bridge's configuration as a Python function",
        "train.py": "starts Megatron-Bridge",
    },
    script=script,
    asks="`train.py` needs `--model FOLDER` (with `config.json`, or a name on the hub) and takes "
    "`--data PREFIX` and `--steps N`",
    before=variables,
)
