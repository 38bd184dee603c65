"""Flags of Megatron-LM that plans may need.

The parser of megatron-core 0.19.2 has them all (tests/frameworks compares, where it is at hand).
"""

FLAGS = frozenset(
    """
    --tensor-model-parallel-size --sequence-parallel --pipeline-model-parallel-size
    --pipeline-model-parallel-layout --context-parallel-size --cp-comm-type
    --hierarchical-context-parallel-sizes --expert-model-parallel-size --expert-tensor-parallel-size
    --use-tp-pp-dp-mapping --use-distributed-optimizer --num-distributed-optimizer-instances
    --overlap-grad-reduce --overlap-param-gather --recompute-granularity --recompute-method
    --recompute-num-layers --recompute-modules --bf16 --fp16 --fp8-format --fp8-recipe --fp8-param-gather
    --reuse-grad-buf-for-mxfp8-param-ag --micro-batch-size --global-batch-size --seq-length --optimizer
    --use-precision-aware-optimizer --exp-avg-dtype --exp-avg-sq-dtype
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl
    --sgd-momentum --lr --weight-decay --adam-beta1 --adam-beta2 --clip-grad --num-layers --hidden-size
    --ffn-hidden-size --num-attention-heads --kv-channels --group-query-attention --num-query-groups
    --max-position-embeddings --make-vocab-size-divisible-by --untie-embeddings-and-output-weights
    --normalization --norm-epsilon --qk-layernorm --disable-bias-linear --add-qkv-bias --swiglu
    --squared-relu --position-embedding-type --rotary-base --rotary-percent --use-rope-scaling
    --rope-scaling-factor --rope-type --no-rope-fusion --rotary-scaling-factor --mscale --mscale-all-dim
    --multi-latent-attention --q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim
    --window-size --window-attn-skip-freq --no-rope-freq --softmax-type --attention-dropout
    --hidden-dropout --init-method-std --num-experts --moe-router-topk --moe-ffn-hidden-size
    --moe-shared-expert-intermediate-size --moe-shared-expert-gate --moe-latent-size --moe-layer-freq
    --moe-router-score-function --moe-router-pre-softmax --moe-router-num-groups --moe-router-group-topk
    --moe-router-topk-scaling-factor --moe-router-load-balancing-type --moe-router-dtype
    --moe-router-enable-expert-bias --moe-aux-loss-coeff --moe-grouped-gemm --moe-token-dispatcher-type
    --mtp-num-layers
    """.split()  # noqa: SIM905
)
