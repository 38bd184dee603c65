#!/usr/bin/env bash
# Starts this host's processes with Accelerate; run it on every host with its NODE_RANK.
# Arguments are handed on to the training script.
set -euo pipefail

HERE="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
DEFAULT_SCRIPT="$HERE/train.py"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$DEFAULT_SCRIPT}"
MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

export MESHWRIGHT_PLAN="$HERE/plan.json"
export MESHWRIGHT_TP=1 MESHWRIGHT_PP=1 MESHWRIGHT_DP=8

exec accelerate launch --config_file "$HERE/accelerate.yaml" \
  --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
  "$TRAIN_SCRIPT" "$@"
