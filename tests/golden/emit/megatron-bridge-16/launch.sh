#!/usr/bin/env bash
# Starts this host's processes with torchrun; run it on every host with its NODE_RANK.
# Arguments are handed on to the training script.
set -euo pipefail

HERE="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
DEFAULT_SCRIPT="$HERE/train.py"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$DEFAULT_SCRIPT}"
MASTER_ADDR="${MASTER_ADDR:-node0}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

export MESHWRIGHT_PLAN="$HERE/plan.json"
export MESHWRIGHT_TP=4 MESHWRIGHT_PP=2 MESHWRIGHT_DP=2

NNODES=2
NPROC_PER_NODE=8

export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
export TORCH_NCCL_AVOID_RECORD_STREAMS="${TORCH_NCCL_AVOID_RECORD_STREAMS:-1}"

exec torchrun \
  --nnodes="$NNODES" --nproc-per-node="$NPROC_PER_NODE" --node-rank="$NODE_RANK" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  "$TRAIN_SCRIPT" "$@"
