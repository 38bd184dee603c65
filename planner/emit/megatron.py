"""Megatron-LM: ``megatron_args.sh``, a bash array of its command-line arguments, and how to start it.

Flags: ``megatron/training/arguments.py`` of Megatron-LM and the dataclasses of Megatron-Core 0.16
(``TransformerConfig``, ``ModelParallelConfig``, ``DistributedDataParallelConfig``, ``OptimizerConfig``), from
which most flags are derived. Accumulation is implied: global batch / (micro-batch x data ranks).

Stages are said by ``--pipeline-model-parallel-layout`` alone: ``E`` embedding, ``t*3`` three layers, ``m``
one for multi-token prediction, ``L`` head and loss, ``|`` between chunks in model order.
"""

import shlex
from typing import Final

from meshwright.costmodels.recompute import has_experts
from meshwright.planner.emit.arguments import ADAM, CLIPPING
from meshwright.planner.emit.base import Emitter
from meshwright.planner.emit.megatron_model import missing, model_flags, predicting
from meshwright.planner.emit.megatron_moe import Flags
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem

ARGUMENTS: Final = '"${MEGATRON_ARGS[@]}" '
FP8: Final[dict[str, tuple[str, str, bool]]] = {
    "fp8": ("hybrid", "delayed", False),
    "fp8-current": ("hybrid", "tensorwise", False),
    "fp8-weights": ("hybrid", "tensorwise", True),
    "fp8-block": ("e4m3", "blockwise", True),
    "mxfp8": ("e4m3", "mxfp8", False),
    "mxfp8-weights": ("e4m3", "mxfp8", True),
}
"""Format, recipe, and whether weights are kept and gathered in 8 bits."""
OPTIMIZERS: Final[dict[str, Flags]] = {
    "adamw": {"--optimizer": "adam"},
    "adamw-bf16": {
        "--optimizer": "adam",
        "--use-precision-aware-optimizer": None,
        "--exp-avg-dtype": "bf16",
        "--exp-avg-sq-dtype": "bf16",
    },
    "sgd": {"--optimizer": "sgd", "--sgd-momentum": "0.0"},
    "momentum": {"--optimizer": "sgd", "--sgd-momentum": "0.9"},
}
LOSSES: Final = {"jit": "native", "te": "te"}
"""Fused cross entropies in Megatron-Core's words."""
EXCHANGES: Final = {"ring": "p2p", "all_gather": "all_gather"}


def degree_flags(problem: Problem, plan: Plan) -> Flags:
    """Return tensor, pipeline and expert degrees, and where the dimensions lie."""
    return {
        "--tensor-model-parallel-size": str(plan.tp),
        **({"--sequence-parallel": None} if plan.sequence_parallel else {}),
        "--pipeline-model-parallel-size": str(plan.pp),
        **(
            {"--pipeline-model-parallel-layout": layout(plan, predicting(problem.base))}
            if plan.pp > 1
            else {}
        ),
        **context_flags(plan),
        **_expert_degrees(problem, plan),
        # Data ranks inside the pipeline are the default.
        **({} if plan.placement[-1] == "pp" or plan.pp == 1 else {"--use-tp-pp-dp-mapping": None}),
    }


def layout(plan: Plan, further: int = 0) -> str:
    """Return the chunks in model order, as Megatron-Core's ``PipelineParallelLayerLayout`` reads them.

    ``further`` of the layers before the head are for multi-token prediction.
    """
    head = plan.num_layers - 1
    blocks, predicting = range(1, head - further), range(head - further, head)

    def chunk(start: int, stop: int) -> str:
        """Return the letters of one chunk."""
        layers = range(start, stop)
        inner = _times("t", layers, blocks) + _times("m", layers, predicting)
        return ("E" if start == 0 else "") + inner + ("L" if stop > head else "")

    return "|".join(chunk(c.start, c.stop) for c in plan.chunks)


def _times(letter: str, layers: range, of: range) -> str:
    """Return how many of a chunk's layers are of a kind."""
    count = max(0, min(layers.stop, of.stop) - max(layers.start, of.start))
    return letter * count if count < 2 else f"{letter}*{count}"


def context_flags(plan: Plan) -> Flags:
    """Return the context degree and how its ranks see each other's keys and values."""
    size: Flags = {"--context-parallel-size": str(plan.cp)}
    if plan.cp == 1:
        return size
    if plan.ulysses == 1:
        return {**size, "--cp-comm-type": EXCHANGES[plan.kv_exchange]}
    if plan.ulysses == plan.cp:
        return {**size, "--cp-comm-type": "a2a"}
    groups = f"{plan.ulysses} {plan.cp // plan.ulysses}"
    return {**size, "--cp-comm-type": "a2a+p2p", "--hierarchical-context-parallel-sizes": groups}


def _expert_degrees(problem: Problem, plan: Plan) -> Flags:
    if not any(has_experts(kind) for kind in problem.model.kinds):
        return {}
    return {"--expert-model-parallel-size": str(plan.ep), "--expert-tensor-parallel-size": str(plan.etp)}


def sharding_flags(plan: Plan) -> Flags:
    """Return ZeRO 1 as the distributed optimizer, its copies, and the overlap that the price counts on."""
    if plan.zero_stage == 0:
        return {"--overlap-grad-reduce": None}
    copies: Flags = {"--num-distributed-optimizer-instances": str(plan.dp_replicate)}
    return {
        "--use-distributed-optimizer": None,
        **(copies if plan.dp_replicate > 1 else {}),
        "--overlap-grad-reduce": None,
        "--overlap-param-gather": None,
    }


def recompute_flags(problem: Problem, plan: Plan) -> Flags:
    """Return the one mode of all layers: nothing, modules of each layer, or whole layers one by one."""
    modes = {plan.recompute[i] for i in problem.model.block_layers} - {"none"}
    if "full" in modes:
        whole: Flags = {"--recompute-method": "uniform", "--recompute-num-layers": "1"}
        return {"--recompute-granularity": "full", **whole}
    if not modes:
        return {}
    routed = any(has_experts(kind) for kind in problem.model.kinds)
    own = ("layernorm", "moe_act") if routed else ("layernorm",)
    modules = plan.recompute_modules or own
    if "moe" in modes:
        modules = (*(name for name in modules if name not in ("moe", "moe_act")), "moe")
    return {"--recompute-granularity": "selective", "--recompute-modules": " ".join(modules)}


def precision_flags(plan: Plan) -> Flags:
    """Return the recipe: 16-bit types, 8-bit products, 8-bit weights; nothing for fp32."""
    if plan.precision not in FP8:
        return {} if plan.precision == "fp32" else {f"--{plan.precision}": None}
    form, recipe, weights = FP8[plan.precision]
    gather: Flags = {"--fp8-param-gather": None} if weights else {}
    reuse: Flags = {"--reuse-grad-buf-for-mxfp8-param-ag": None} if weights and recipe == "mxfp8" else {}
    return {"--bf16": None, "--fp8-format": form, "--fp8-recipe": recipe, **gather, **reuse}


def loss_flags(plan: Plan) -> Flags:
    """Return which cross entropy runs: the plain one, or one of the two that Megatron-Core fuses."""
    fused: Flags = {"--cross-entropy-loss-fusion": None}
    return {} if plan.loss == "full" else {**fused, "--cross-entropy-fusion-impl": LOSSES[plan.loss]}


def training_flags(plan: Plan) -> Flags:
    """Return batch, length and optimizer."""
    return {
        "--micro-batch-size": str(plan.micro_batch_size),
        "--global-batch-size": str(plan.global_batch_size),
        "--seq-length": str(plan.sequence_length),
        **loss_flags(plan),
        **OPTIMIZERS[plan.optimizer],
        "--lr": str(ADAM["lr"]),
        "--weight-decay": str(ADAM["weight_decay"]),
        "--adam-beta1": "0.9",
        "--adam-beta2": "0.95",
        "--clip-grad": str(CLIPPING),
    }


def groups(problem: Problem, plan: Plan) -> dict[str, Flags]:
    """Return all flags, in groups with a title each."""
    return {
        "Parallelism": degree_flags(problem, plan),
        "Sharding of the optimizer's states": sharding_flags(plan),
        "Recomputation": recompute_flags(problem, plan),
        "Precision": precision_flags(plan),
        "Training (rates, betas, decay and clipping are common values: set yours)": training_flags(plan),
        "Model": model_flags(problem.base, plan.sequence_length),
    }


def arguments(problem: Problem, plan: Plan) -> str:
    """Return ``megatron_args.sh``: the flags as a bash array."""
    lines = ["# Arguments of Megatron-LM's pretrain_gpt.py; launch.sh reads this file.", "MEGATRON_ARGS=("]
    for title, flags in groups(problem, plan).items():
        if flags:
            lines += [f"  # {title}", *(f"  {_word(flag, value)}" for flag, value in flags.items())]
    return "\n".join([*lines, ")"]) + "\n"


def _word(flag: str, value: str | None) -> str:
    # Several numbers or names are words of their own; a list in Python's notation is one word.
    words = [] if value is None else [value] if value.startswith("(") else value.split()
    return " ".join([flag, *map(shlex.quote, words)])


def limits(problem: Problem, plan: Plan) -> list[str]:
    """Return what the flags cannot say: chunks out of turn, or predicting layers that are parted."""
    loop = all(c.rank == i % plan.pp for i, c in enumerate(plan.chunks))
    found = [] if loop else ["chunks: only dealt to the pipeline ranks in turn"]
    first = plan.num_layers - 1 - predicting(problem.base)
    if any(first < c.start < plan.num_layers - 1 for c in plan.chunks):
        found.append("chunks: layers for multi-token prediction only in one chunk")
    return found


def variables(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return the variables that Megatron-Core's collectives need as they are priced.

    Before Blackwell the order in which kernels were issued is kept on one connection only. Before PyTorch 2.8
    memory waits for collectives unless the second is set (:mod:`meshwright.costmodels.waiting`).
    """
    single = ("CUDA_DEVICE_MAX_CONNECTIONS",) * (plan.tp > 1 or plan.cp > 1)
    freed = ("TORCH_NCCL_AVOID_RECORD_STREAMS",) * (plan.tp > 1 and not problem.profile.records_streams)
    return tuple(f'export {name}="${{{name}:-1}}"' for name in (*single, *freed))


def before(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return what each host's script does first: variables that the framework needs, and its arguments."""
    tokens = f"--mock-data --tokenizer-type NullTokenizer --vocab-size {problem.model.vocab_size - 1}"
    read = (
        "# shellcheck source=/dev/null",
        'source "$HERE/megatron_args.sh"',
        "# Without arguments: a few steps on made-up tokens.",
        f"(( $# )) || set -- {tokens} --train-iters 20",
    )
    return (*variables(problem, plan), *read)


def script(problem: Problem, plan: Plan) -> list[str]:
    """Return what the script must do."""
    return [
        "Start from a checkout of Megatron-LM (or set `TRAIN_SCRIPT` to its `pretrain_gpt.py`), with "
        "arguments for data, tokenizer, length of the run and checkpoints after `launch.sh`; without any it "
        "makes a few steps on made-up tokens.",
        f"The tokenizer brings the vocabulary, priced with {problem.model.vocab_size} entries.",
        *missing(problem.base),
        "Use flash attention through Transformer Engine (Megatron-LM's default).",
    ]


EMITTER: Final = Emitter(
    target="megatron",
    level="parsed",
    checked="Megatron-LM's own parser and checks (of megatron-core 0.19.2) accept such arguments and build "
    "its configuration from them; Megatron-Core 0.16.1 reads the layout",
    files=lambda problem, plan: {"megatron_args.sh": arguments(problem, plan)},
    limits=limits,
    about={"megatron_args.sh": "Megatron-LM's arguments as a bash array"},
    script=script,
    default_script="pretrain_gpt.py",
    arguments=ARGUMENTS,
    before=before,
)
