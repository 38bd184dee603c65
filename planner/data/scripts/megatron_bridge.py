"""Trains the model of plan.json with Megatron-Bridge: ./launch.sh --model FOLDER [--data PREFIX]."""

import argparse

from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from meshwright_recipe import planned

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder with config.json, or a name on the hub")
    parser.add_argument(
        "--data", nargs="*", help="prefixes of Megatron's indexed data; made-up tokens without"
    )
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    pretrain(planned(args.model, args.steps, args.data), forward_step_func=forward_step)
