#!/usr/bin/env bash
# Starts all processes with DeepSpeed's launcher; run it once, on the first host.
# Arguments are handed on to the training script.
set -euo pipefail

HERE="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
DEFAULT_SCRIPT="$HERE/train.py"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$DEFAULT_SCRIPT}"
MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
MASTER_PORT="${MASTER_PORT:-29500}"

exec deepspeed --num_gpus=8 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
  "$TRAIN_SCRIPT" "${CONFIG_OPTION:---deepspeed_config}" "$HERE/ds_config.json" "$@"
