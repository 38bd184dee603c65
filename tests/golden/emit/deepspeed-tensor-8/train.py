"""Trains the model of plan.json with DeepSpeed: ./launch.sh --model FOLDER [--tokens FILE.npy]."""

import json
from pathlib import Path

import deepspeed
import torch
from planned import PLAN, arguments, batches, build
from transformers.integrations import HfDeepSpeedConfig


def main() -> None:
    """Train for --steps steps and print each step's loss."""
    parser = deepspeed.add_config_arguments(arguments(__doc__))
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    config = json.loads(Path(args.deepspeed_config).read_text())
    deepspeed.init_distributed()
    # Weights are made in shards, except where tensor ranks must first cut whole ones.
    sharded = HfDeepSpeedConfig(config) if PLAN["zero_stage"] == 3 and PLAN["tp"] == 1 else None
    model = build(args)
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    rank, passes = torch.distributed.get_rank(), PLAN["num_microbatches"]
    # Tensor ranks, which lie side by side, must read the same tokens.
    data = batches(args, model.config.vocab_size, rank // PLAN["tp"])
    for step in range(args.steps):
        total = 0.0
        for _ in range(passes):
            ids = next(data).to(engine.device)
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            total += loss.item() / passes
        if rank == 0:
            print(f"step {step + 1} loss {total:.6f}", flush=True)
    del sharded
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
