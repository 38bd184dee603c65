"""Train a model of transformers from a plan, on any number of ranks, GPUs or CPUs.

    meshwright solve --model FOLDER --cluster dgx-h100 --global-batch 64 --seq-len 8192 --target native -o out
    torchrun --nproc-per-node 8 examples/train.py --plan out/plan.json --model FOLDER

or ``out/launch.sh --model FOLDER``. The folder holds ``config.json`` and weights (``save_pretrained``); with
``--scratch`` they are random. Without ``--tokens`` data is made up: it shows speed, not learning.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import meshwright

OPTIMIZERS = {
    "adamw": lambda weights, lr: torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.1),
    "adam": lambda weights, lr: torch.optim.Adam(weights, lr=lr, betas=(0.9, 0.95)),
    "momentum": lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9),
    "sgd": lambda weights, lr: torch.optim.SGD(weights, lr=lr),
}


def arguments() -> argparse.Namespace:
    """Return what the plan does not say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plan", default=os.environ.get("MESHWRIGHT_PLAN", "plan.json"))
    parser.add_argument("--model", required=True, help="folder with config.json and weights")
    parser.add_argument("--scratch", action="store_true", help="start from random weights")
    parser.add_argument("--tokens", help="a .npy of token numbers in a row; made-up ones without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(args: argparse.Namespace, plan: meshwright.Plan) -> torch.nn.Module:
    """Return the model, alike in every process, in the dtype in which the recipe keeps its weights."""
    dtype = torch.bfloat16 if plan.precision == "pure-bf16" else torch.float32
    torch.manual_seed(args.seed)
    if not args.scratch:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)


def batches(args: argparse.Namespace, shape: tuple[int, int], rank: int, size: int) -> Iterator[torch.Tensor]:
    """Yield what one data-parallel rank reads in each step; ranks draw from streams of their own."""
    draw = np.random.default_rng([args.seed, rank])
    tokens = np.load(args.tokens, mmap_mode="r") if args.tokens else draw.integers(size, size=1_000_000)
    while True:
        starts = draw.integers(len(tokens) - shape[1] + 1, size=shape[0])
        rows = [tokens[start : start + shape[1]] for start in starts]
        yield torch.from_numpy(np.stack(rows).astype(np.int64))


def main() -> None:
    """Train for ``--steps`` steps and print each step's loss, the mean over the global batch."""
    args = arguments()
    plan = meshwright.Plan.from_json(Path(args.plan).read_text())
    torch.backends.cuda.matmul.allow_tf32 = plan.precision == "tf32"
    model = load(args, plan)
    optimizer = OPTIMIZERS[plan.optimizer]
    applied = meshwright.apply(plan, model, lambda weights: optimizer(weights, args.lr), max_grad_norm=1.0)
    shape = applied.local_batch_size, plan.sequence_length
    data = batches(args, shape, applied.data_rank, model.config.vocab_size)
    for step in range(args.steps):
        loss = applied.step({"input_ids": next(data)})
        if torch.distributed.get_rank() == 0:
            print(f"step {step + 1} loss {loss:.6f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
