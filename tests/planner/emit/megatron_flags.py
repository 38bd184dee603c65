"""Flags of Megatron-LM that plans may need, with where each was found.

No package ships Megatron-LM's argument parser, so it cannot judge the files in a test. ``PARSED`` are flags
that the parser of Megatron-LM at d98e8a64 (0.20.0dev) accepted; ``FIELDS`` are those that say a field of a
dataclass of Megatron-Core 0.16.1 (flag: field; compared with the package where it is installed); ``RECALLED``
are flags of ``megatron/training/arguments.py`` that neither of the two bears out.
"""

PARSED = frozenset(
    """
    --tensor-model-parallel-size --sequence-parallel --pipeline-model-parallel-size
    --context-parallel-size --cp-comm-type --expert-model-parallel-size
    --expert-tensor-parallel-size --pipeline-model-parallel-layout --micro-batch-size
    --global-batch-size --use-distributed-optimizer --num-distributed-optimizer-instances
    --overlap-grad-reduce --overlap-param-gather --recompute-granularity --recompute-method
    --recompute-num-layers --recompute-modules
    """.split()  # noqa: SIM905
)
FIELDS = {
    "--hierarchical-context-parallel-sizes": "hierarchical_context_parallel_sizes",
    "--fp8-format": "fp8",
    "--fp8-recipe": "fp8_recipe",
    "--fp8-param-gather": "fp8_param",
    "--reuse-grad-buf-for-mxfp8-param-ag": "reuse_grad_buf_for_mxfp8_param_ag",
    "--bf16": "bf16",
    "--fp16": "fp16",
    "--optimizer": "optimizer",
    "--sgd-momentum": "sgd_momentum",
    "--lr": "lr",
    "--weight-decay": "weight_decay",
    "--adam-beta1": "adam_beta1",
    "--adam-beta2": "adam_beta2",
    "--clip-grad": "clip_grad",
    "--num-layers": "num_layers",
    "--hidden-size": "hidden_size",
    "--ffn-hidden-size": "ffn_hidden_size",
    "--num-attention-heads": "num_attention_heads",
    "--num-query-groups": "num_query_groups",
    "--kv-channels": "kv_channels",
    "--num-experts": "num_moe_experts",
    "--moe-router-topk": "moe_router_topk",
    "--moe-ffn-hidden-size": "moe_ffn_hidden_size",
    "--moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size",
    "--moe-layer-freq": "moe_layer_freq",
    "--moe-grouped-gemm": "moe_grouped_gemm",
    "--moe-token-dispatcher-type": "moe_token_dispatcher_type",
}
RECALLED = frozenset(
    """
    --use-tp-pp-dp-mapping --seq-length --max-position-embeddings --make-vocab-size-divisible-by
    --group-query-attention --position-embedding-type --swiglu --untie-embeddings-and-output-weights
    """.split()  # noqa: SIM905
)
FLAGS = PARSED | FIELDS.keys() | RECALLED
