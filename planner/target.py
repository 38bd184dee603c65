"""What each target framework can express: the search is restricted to it, so every plan can be launched."""

from dataclasses import dataclass

from meshwright.costmodels.schedule import names as schedules
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import UnknownNameError
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS, RECOMPUTE_MODES

ALL_STAGES = frozenset({0, 1, 2, 3})
TARGET_DEGREES = (
    ("cp", "context"),
    ("ulysses", "ulysses"),
    ("ep", "expert"),
    ("etp", "expert_tensor"),
    ("dp_replicate", "hybrid"),
    ("hpz", "secondary"),
)
"""Degrees, and the field of a target that says whether it has them."""


@dataclass(frozen=True)
class Target:
    """A framework's limits on the decisions of a plan.

    Attributes
    ----------
    profile
        The software profile that prices what this framework runs.
    tensor, pipeline, interleaved, sequence_parallel
        Which decisions it can express.
    context, ulysses, expert, expert_tensor, hybrid, secondary
        Likewise: ``cp``, exchange of heads, ``ep``, ``etp``, ``dp_replicate`` and ``hpz`` above 1.
    kv_exchanges, placements, schedules, offload
        Values that it has.
    zero_stages, zero_stages_with_pipeline
        ZeRO stages it has, alone and together with a pipeline.
    recompute
        Modes it has; ``recompute_uniform`` if all layers share one.
    pipeline_families
        Kinds of models (``model_type``) whose pipeline is a generated module, which trains all weights, sees
        all tokens and computes a whole cross entropy; None: pipelines are the framework's own, of any model.
    tensor_families
        Kinds of models that it splits over tensor ranks, training all weights with a whole cross entropy;
        None: any.
    tensor_with_pipeline
        Whether tensor ranks and a pipeline go together.
    whole_embedding
        Whether each tensor rank holds the whole embedding (the head is split).
    pipeline_offload
        What it can offload beside a pipeline.
    vocab_multiple
        Each tensor-parallel rank's share of the vocabulary is padded to a multiple of this.
    partial_groups
        Whether interleaving works with micro-batches that are no multiple of ``pp``.
    uneven_chunks
        Whether the several chunks of a rank may hold different numbers of layers.
    usual_schedules
        Schedules that are searched where the job says nothing.
    combined_exchanges
        Ways of exchanging keys and values that it has beside an exchange of heads within smaller groups.
    experts_across_pipeline
        Whether experts may be spread over other ranks than ``tp x cp`` where the pipeline lies inside the
        data ranks.
    precisions, optimizers, losses, tunings
        Recipes, optimizers, cross entropies and kinds of tuning that it has; None: all.
    multi_token
        Whether it trains multi-token-prediction layers.
    decoders_only
        Whether its models are plain decoders: one stream of text, attention in every layer.
    recompute_modules
        Modules that its selective recomputation can name where a job lists some; None: all.
    selective_operators
        Light operators that its selective recomputation can name; None: all. A model with others has only
        the remaining modes there (:func:`meshwright.planner.target_job.fitted`).
    whole_recompute_precisions
        Recipes under which it runs no part of a layer again.
    sharded_precisions, sharded_optimizers
        Recipes and optimizers that it has with ZeRO 1 to 3 only.
    families
        Kinds of models (``model_type``) that it has; None: any.
    tied_pipeline
        Whether models with tied embeddings can have a pipeline.
    replicated_heads
        Whether tensor ranks may outnumber key/value heads, which then have copies.
    experts_tensor_or_spread
        Whether experts are split over the tensor ranks exactly where they are not spread over ranks.
    framework
        What an accelerator must support for it, where that is called otherwise than the target.
    even_hosts
        Whether it starts equally many processes on every host.
    loses
        Decisions that a plan loses by going there, in words.
    """

    name: str
    title: str
    profile: str
    tensor: bool = True
    pipeline: bool = True
    interleaved: bool = True
    sequence_parallel: bool = True
    context: bool = True
    ulysses: bool = True
    expert: bool = True
    expert_tensor: bool = True
    hybrid: bool = True
    secondary: bool = True
    kv_exchanges: frozenset[str] = frozenset(KV_EXCHANGES)
    placements: frozenset[tuple[str, ...]] = frozenset(PLACEMENTS)
    offload: frozenset[str] = frozenset(OFFLOADS)
    schedules: frozenset[str] = frozenset(schedules())
    zero_stages: frozenset[int] = ALL_STAGES
    zero_stages_with_pipeline: frozenset[int] = frozenset({0, 1})
    recompute: frozenset[str] = frozenset(RECOMPUTE_MODES)
    recompute_uniform: bool = False
    pipeline_families: frozenset[str] | None = None
    tensor_families: frozenset[str] | None = None
    tensor_with_pipeline: bool = True
    whole_embedding: bool = False
    pipeline_offload: frozenset[str] = frozenset(OFFLOADS)
    vocab_multiple: int = 1
    partial_groups: bool = False
    uneven_chunks: bool = False
    usual_schedules: frozenset[str] = frozenset({"1f1b", "interleaved"})
    combined_exchanges: frozenset[str] = frozenset(KV_EXCHANGES)
    experts_across_pipeline: bool = True
    precisions: frozenset[str] | None = None
    optimizers: frozenset[str] | None = None
    losses: frozenset[str] | None = None
    tunings: frozenset[str] | None = None
    multi_token: bool = True
    decoders_only: bool = False
    recompute_modules: frozenset[str] | None = None
    selective_operators: frozenset[str] | None = None
    whole_recompute_precisions: frozenset[str] = frozenset()
    sharded_precisions: frozenset[str] = frozenset()
    sharded_optimizers: frozenset[str] = frozenset()
    families: frozenset[str] | None = None
    tied_pipeline: bool = True
    replicated_heads: bool = True
    experts_tensor_or_spread: bool = False
    framework: str | None = None
    even_hosts: bool = False
    loses: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """What an accelerator must support, as its data file calls it."""
        return self.framework or self.name

    def least_zero_stage(self, precision: str, optimizer: str) -> int:
        """Return the lowest ZeRO stage under which it trains with a recipe and an optimizer."""
        sharded = precision in self.sharded_precisions or optimizer in self.sharded_optimizers
        return max(min(self.zero_stages), int(sharded))


TARGETS = {
    t.name: t
    for t in (
        Target("any", "any framework", profile="generic", vocab_multiple=128),
        Target(
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
        ),
        Target(
            "fsdp",
            "FSDP2 through Accelerate",
            profile="fsdp2-eager",
            tensor=False,
            pipeline=False,
            interleaved=False,
            sequence_parallel=False,
            context=False,
            ulysses=False,
            expert=False,
            expert_tensor=False,
            secondary=False,
            offload=frozenset({"none", "parameters"}),
            schedules=frozenset({"1f1b"}),
            zero_stages=frozenset({2, 3}),
            recompute=frozenset({"none", "full"}),
            precisions=frozenset({"bf16", "fp16", "fp32", "tf32", "pure-bf16"}),
            optimizers=frozenset({"adamw", "sgd"}),
            even_hosts=True,
            loses=(
                "every degree but data",
                "optimizer offload alone",
                "ZeRO 0 and 1",
                "selective recompute",
            ),
        ),
        Target(
            "fsdp1",
            "FSDP1 through Accelerate",
            profile="fsdp2-eager",
            framework="fsdp",
            hybrid=False,
            tensor=False,
            pipeline=False,
            interleaved=False,
            sequence_parallel=False,
            context=False,
            ulysses=False,
            expert=False,
            expert_tensor=False,
            secondary=False,
            offload=frozenset({"none", "parameters"}),
            schedules=frozenset({"1f1b"}),
            zero_stages=frozenset({2, 3}),
            recompute=frozenset({"none", "full"}),
            precisions=frozenset({"bf16", "fp16", "fp32", "tf32", "pure-bf16"}),
            optimizers=frozenset({"adamw", "sgd"}),
            even_hosts=True,
            loses=(
                "every degree but data, hybrid sharding",
                "optimizer offload alone",
                "ZeRO 0 and 1",
                "selective recompute",
            ),
        ),
        Target(
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
            losses=frozenset({"full"}),
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
        ),
        Target(
            "megatron-bridge",
            "Megatron-Bridge",
            profile="megatron-bridge",
            framework="megatron",
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
            precisions=frozenset({"bf16", "fp16"}),
            optimizers=frozenset({"adamw"}),
            losses=frozenset({"full"}),
            tunings=frozenset({"full"}),
            multi_token=False,
            decoders_only=True,
            families=frozenset({"llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"}),
            recompute_modules=frozenset(
                {"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"}
            ),
            selective_operators=frozenset({"pre_attention_norm", "pre_mlp_norm", "expert_activation"}),
            loses=(
                "ZeRO 2 and 3",
                "offload",
                "schedules but 1F1B and interleaved",
                "recompute layer by layer",
                "selective recompute of dense activation functions",
                "adapters, multi-token prediction",
                "8-bit recipes",
            ),
        ),
        Target(
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
            recompute=frozenset({"none", "full"}),
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
                "optimizer offload alone",
                "exchange of heads and rings",
                "placements with the pipeline inside",
                "selective recompute",
                "low-precision recipes",
                "adapters",
                "multi-token prediction",
            ),
        ),
        Target(
            "native",
            "PyTorch through meshwright.apply",
            profile="native",
            framework="pytorch",
            context=False,
            ulysses=False,
            expert=False,
            expert_tensor=False,
            secondary=False,
            offload=frozenset({"none"}),
            schedules=frozenset({"gpipe", "1f1b", "interleaved"}),
            zero_stages=frozenset({0, 2, 3}),
            zero_stages_with_pipeline=frozenset({0, 2, 3}),
            recompute=frozenset({"none", "full"}),
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
                "context and expert parallelism",
                "ZeRO 1 and offload",
                "zero-bubble schedules",
                "selective recompute",
                "low-precision recipes",
                "adapters",
                "multi-token prediction",
            ),
        ),
    )
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
