"""Trains the model of plan.json with Accelerate: ./launch.sh --model FOLDER [--tokens FILE.npy]."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

PLAN = json.loads(Path(__file__).with_name("plan.json").read_text())


def arguments() -> argparse.ArgumentParser:
    """What the plan does not say: the model's folder, the data and the length of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder with config.json and weights")
    parser.add_argument("--scratch", action="store_true", help="start from random weights")
    parser.add_argument("--tokens", help="a .npy of token numbers in a row; made-up ones without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def build(args):
    """Return the model, whose layers recompute where the plan says so."""
    kind = AutoModelForCausalLM
    if PLAN["loss"] == "fused":
        from liger_kernel.transformers import AutoLigerKernelForCausalLM as kind
    torch.manual_seed(args.seed)
    settings = {"dtype": torch.bfloat16 if PLAN["precision"] == "pure-bf16" else torch.float32}
    if args.scratch:
        model = kind.from_config(AutoConfig.from_pretrained(args.model), **settings)
    else:
        model = kind.from_pretrained(args.model, **settings)
    model.config.use_cache = False
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    modes = PLAN["recompute"][1:-1]
    if len(layers) != len(modes):
        raise SystemExit(f"{args.model} has {len(layers)} layers, the plan {len(modes)}")
    if "full" in modes:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer, mode in zip(layers, modes):
        layer.gradient_checkpointing = mode == "full"
    return model


def batches(args, vocabulary, replica):
    """Yield micro-batches of token numbers: one stream for each replica of the model."""
    draw = np.random.default_rng([args.seed, replica])
    rows, length = PLAN["micro_batch_size"], PLAN["sequence_length"]
    tokens = np.load(args.tokens, mmap_mode="r") if args.tokens else None
    while True:
        if tokens is None:
            ids = draw.integers(vocabulary, size=(rows, length))
        else:
            starts = draw.integers(len(tokens) - length + 1, size=rows)
            ids = np.stack([tokens[i : i + length] for i in starts])
        yield torch.from_numpy(ids.astype(np.int64))


def optimizer_of(model, given):
    """Return the plan's optimizer with the values of training_args.json."""
    rates = {"lr": given["learning_rate"], "weight_decay": given["weight_decay"]}
    if PLAN["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), **rates)
    betas = (given["adam_beta1"], given["adam_beta2"])
    fused = torch.cuda.is_available()
    return torch.optim.AdamW(model.parameters(), betas=betas, eps=given["adam_epsilon"], fused=fused, **rates)


def main() -> None:
    """Train for --steps steps and print each step's loss."""
    args = arguments().parse_args()
    given = json.loads(Path(__file__).with_name("training_args.json").read_text())
    torch.backends.cuda.matmul.allow_tf32 = PLAN["precision"] == "tf32"
    passes = given["gradient_accumulation_steps"]
    each = given["accelerator_config"]["gradient_accumulation_kwargs"]
    gather = GradientAccumulationPlugin(num_steps=passes, **each)
    accelerator = Accelerator(gradient_accumulation_plugin=gather)
    model = build(args)
    vocabulary = model.config.vocab_size
    model, optimizer = accelerator.prepare(model, optimizer_of(model, given))
    data = batches(args, vocabulary, accelerator.process_index)
    for step in range(args.steps):
        total = 0.0
        for _ in range(passes):
            with accelerator.accumulate(model):
                ids = next(data).to(accelerator.device)
                loss = model(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), given["max_grad_norm"])
                optimizer.step()
                optimizer.zero_grad()
                total += loss.item() / passes
        if accelerator.is_main_process:
            print(f"step {step + 1} loss {total:.6f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
