# Arguments of Megatron-LM's pretrain_gpt.py; launch.sh reads this file.
MEGATRON_ARGS=(
  # Parallelism
  --tensor-model-parallel-size 4
  --sequence-parallel
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*8L'
  --context-parallel-size 1
  # Sharding of the optimizer's states
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  # Recomputation
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  # Precision
  --bf16
  # Training (rates, betas, decay and clipping are common values: set yours)
  --micro-batch-size 1
  --global-batch-size 128
  --seq-length 8192
  --optimizer adam
  --lr 0.0001
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.95
  --clip-grad 1.0
  # Model
  --num-layers 32
  --hidden-size 4096
  --max-position-embeddings 131072
  --make-vocab-size-divisible-by 128
  --ffn-hidden-size 14336
  --num-attention-heads 32
  --kv-channels 128
  --group-query-attention
  --num-query-groups 8
  --untie-embeddings-and-output-weights
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --disable-bias-linear
  --swiglu
  --position-embedding-type rope
  --rotary-base 500000
  --use-rope-scaling
  --rope-scaling-factor 8.0
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --init-method-std 0.02
)
