"""The target frameworks that there are: what each can express, and what a plan loses by going there."""

from dataclasses import replace
from typing import Final

from meshwright.hardware.errors import UnknownNameError
from meshwright.planner.target import Target

ANY: Final = Target("any", "any framework", profile="generic", vocab_multiple=128)

DEEPSPEED: Final = Target(
    "deepspeed",
    "DeepSpeed JSON",
    profile="deepspeed",
    interleaved=False,
    sequence_parallel=False,
    context=False,
    ulysses=False,
    expert=False,
    expert_tensor=False,
    hybrid=False,
    placements=frozenset({("tp", "cp", "dp", "pp")}),
    schedules=frozenset({"1f1b"}),
    recompute=frozenset({"none", "full"}),
    precisions=frozenset({"bf16", "fp16", "fp32", "tf32", "pure-bf16"}),
    optimizers=frozenset({"adamw", "adam", "momentum", "sgd"}),
    # 16-bit optimizer states are those of its ZeRO optimizers
    sharded_precisions=frozenset({"pure-bf16"}),
    # without ZeRO DeepSpeed's pipeline clips each stage's fp32 gradients by that stage's norm alone
    zero_stages_with_pipeline=frozenset({1}),
    tied_pipeline=False,
    replicated_heads=False,
    pipeline_families=frozenset({"llama", "qwen2", "qwen3"}),
    tensor_families=frozenset({"llama", "qwen2", "qwen3"}),
    tensor_with_pipeline=False,
    whole_embedding=True,
    pipeline_offload=frozenset({"none"}),
    loses=(
        "context and expert degrees, sequence parallelism",
        "tensor degrees with a pipeline",
        "hybrid sharding",
        "schedules but 1F1B",
        "ZeRO 0, 2 and 3, offload and tied embeddings with a pipeline",
        "selective recompute",
    ),
)

FSDP: Final = Target(
    "fsdp",
    "FSDP2 through Accelerate",
    profile="fsdp2-eager",
    tensor=False,
    pipeline=False,
    interleaved=False,
    sequence_parallel=False,
    context_families=frozenset({"llama", "mistral", "qwen2", "qwen3"}),
    context_shards=False,
    ulysses=False,
    expert=False,
    expert_tensor=False,
    secondary=False,
    kv_exchanges=frozenset({"all_gather", "ring"}),
    placements=frozenset({("tp", "cp", "dp", "pp")}),
    offload=frozenset({"none", "parameters"}),
    schedules=frozenset({"1f1b"}),
    zero_stages=frozenset({2, 3}),
    recompute=frozenset({"none", "full"}),
    precisions=frozenset({"bf16", "fp16", "fp32", "tf32", "pure-bf16"}),
    optimizers=frozenset({"adamw", "sgd"}),
    even_hosts=True,
    loses=(
        "every degree but data and context",
        "optimizer offload alone",
        "ZeRO 0 and 1",
        "selective recompute",
    ),
)

FSDP1: Final = replace(
    FSDP,
    name="fsdp1",
    title="FSDP1 through Accelerate",
    framework="fsdp",
    context=False,
    hybrid=False,
    loses=("every degree but data, hybrid sharding", *FSDP.loses[1:]),
)

MEGATRON: Final = Target(
    "megatron",
    "Megatron-LM",
    profile="megatron-core",
    secondary=False,
    placements=frozenset({("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")}),
    offload=frozenset({"none"}),
    schedules=frozenset({"1f1b", "interleaved"}),
    zero_stages=frozenset({0, 1}),
    recompute=frozenset({"none", "selective", "moe", "full"}),
    recompute_uniform=True,
    vocab_multiple=128,
    uneven_chunks=True,
    combined_exchanges=frozenset({"ring"}),
    experts_across_pipeline=False,
    precisions=frozenset(
        {"bf16", "fp16", "fp32", "fp8", "fp8-current", "fp8-weights", "fp8-block", "mxfp8"}
        | {"mxfp8-weights"}
    ),
    optimizers=frozenset({"adamw", "adamw-bf16", "sgd", "momentum"}),
    losses=frozenset({"full", "jit", "te"}),
    tunings=frozenset({"full"}),
    decoders_only=True,
    recompute_modules=frozenset(
        {"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"}
    ),
    selective_operators=frozenset({"pre_attention_norm", "pre_mlp_norm", "expert_activation"}),
    # TransformerConfig: delayed scaling supports no recomputation of norms and expert activations
    whole_recompute_precisions=frozenset({"fp8"}),
    # Megatron's arguments: --fp8-param-gather needs the distributed optimizer
    sharded_precisions=frozenset({"fp8-weights", "fp8-block", "mxfp8-weights"}),
    # OptimizerConfig: the precision-aware optimizer needs the distributed one
    sharded_optimizers=frozenset({"adamw-bf16"}),
    loses=(
        "ZeRO 2 and 3",
        "offload",
        "schedules but 1F1B and interleaved",
        "recompute layer by layer",
        "selective recompute of dense activation functions",
        "adapters",
    ),
)

MEGATRON_BRIDGE: Final = replace(
    MEGATRON,
    name="megatron-bridge",
    title="Megatron-Bridge",
    profile="megatron-bridge",
    framework="megatron",
    precisions=frozenset({"bf16", "fp16"}),
    optimizers=frozenset({"adamw"}),
    whole_recompute_precisions=frozenset(),
    sharded_precisions=frozenset(),
    sharded_optimizers=frozenset(),
    multi_token=False,
    families=frozenset({"llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"}),
    loses=(*MEGATRON.loses[:-1], "adapters, multi-token prediction", "8-bit recipes"),
)

# What torch 2.13's weight passes do not get right, seen on CPU ranks: where ZeRO-3 freed weights after the
# forward pass their gradients are lost in silence, so that losses differ from the second step on; and a
# checkpointed layer runs again for every group of weights whose gradient is asked for, ten times in a Llama.
SPLIT_STAGES: Final = frozenset({0, 2})
SPLIT_MODES: Final = frozenset({"none"})

TORCHTITAN: Final = Target(
    "torchtitan",
    "torchtitan 0.3",
    profile="fsdp2",
    ulysses=False,
    secondary=False,
    kv_exchanges=frozenset({"all_gather"}),
    placements=frozenset({("tp", "cp", "dp", "pp")}),
    offload=frozenset({"none", "parameters"}),
    schedules=frozenset({"gpipe", "1f1b", "interleaved", "interleaved_zb", "zbv", "dualpipev"}),
    usual_schedules=frozenset({"1f1b", "interleaved", "interleaved_zb", "zbv", "dualpipev"}),
    zero_stages=frozenset({2, 3}),
    zero_stages_with_pipeline=frozenset({2, 3}),
    split_zero_stages=SPLIT_STAGES,
    recompute=frozenset({"none", "full"}),
    split_recompute=SPLIT_MODES,
    uneven_chunks=True,
    precisions=frozenset({"bf16", "pure-bf16", "fp32"}),
    optimizers=frozenset({"adamw"}),
    losses=frozenset({"torch"}),
    tunings=frozenset({"full"}),
    multi_token=False,
    decoders_only=True,
    families=frozenset({"llama", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"}),
    tied_pipeline=False,
    replicated_heads=False,
    experts_tensor_or_spread=True,
    loses=(
        "ZeRO 0 and 1",
        "ZeRO 3 and recompute with zero-bubble schedules",
        "optimizer offload alone",
        "exchange of heads and rings",
        "placements with the pipeline inside",
        "selective recompute",
        "low-precision recipes",
        "adapters",
        "multi-token prediction",
    ),
)

NATIVE: Final = Target(
    "native",
    "PyTorch through meshwright.apply",
    profile="native",
    framework="pytorch",
    context_families=frozenset({"llama", "mistral", "qwen2", "qwen3"}),
    kv_exchanges=frozenset({"all_gather"}),
    ulysses=False,
    expert=False,
    expert_tensor=False,
    secondary=False,
    offload=frozenset({"none"}),
    schedules=frozenset({"gpipe", "1f1b", "interleaved", "zb1p", "interleaved_zb", "zbv", "dualpipev"}),
    zero_stages=frozenset({0, 2, 3}),
    zero_stages_with_pipeline=frozenset({0, 2, 3}),
    split_zero_stages=SPLIT_STAGES,
    recompute=frozenset({"none", "full"}),
    split_recompute=SPLIT_MODES,
    uneven_chunks=True,
    precisions=frozenset({"bf16", "pure-bf16", "fp32", "tf32"}),
    optimizers=frozenset({"adamw", "adam", "sgd", "momentum"}),
    losses=frozenset({"torch"}),
    tunings=frozenset({"full"}),
    multi_token=False,
    decoders_only=True,
    families=frozenset({"llama", "mistral", "qwen2", "qwen3"}),
    tied_pipeline=False,
    replicated_heads=False,
    loses=(
        "expert parallelism, exchange of heads and rings",
        "ZeRO 1 and offload",
        "ZeRO 3 and recompute with zero-bubble schedules",
        "selective recompute",
        "low-precision recipes",
        "adapters",
        "multi-token prediction",
    ),
)

TARGETS: Final = {
    t.name: t for t in (ANY, DEEPSPEED, FSDP, FSDP1, MEGATRON, MEGATRON_BRIDGE, TORCHTITAN, NATIVE)
}


def find_target(name: str) -> Target:
    """Return a target by name.

    Raises
    ------
    UnknownNameError
        With near matches.
    """
    if name not in TARGETS:
        raise UnknownNameError("target", name, list(TARGETS))
    return TARGETS[name]
