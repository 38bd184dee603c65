"""Trains plan.json's model as a pipeline of DeepSpeed: ./launch.sh --model FOLDER [--tokens FILE.npy]."""

import json
from pathlib import Path

import deepspeed
import torch
from pipeline_model import build
from planned import PLAN, arguments, batches


def main() -> None:
    """Train for --steps steps and print each step's loss."""
    parser = deepspeed.add_config_arguments(arguments(__doc__))
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    config = json.loads(Path(args.deepspeed_config).read_text())
    deepspeed.init_distributed()
    model = build(args, PLAN)
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    replica = engine.grid.get_data_parallel_id()
    data = ((ids, ids) for ids in batches(args, model.vocabulary, replica))
    for step in range(args.steps):
        loss = engine.train_batch(data_iter=data)
        if torch.distributed.get_rank() == 0:
            print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
