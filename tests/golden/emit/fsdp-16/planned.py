"""What the training script reads of the plan, and the model and tokens that it trains with."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

PLAN = json.loads(Path(__file__).with_name("plan.json").read_text())


def arguments(purpose):
    """What the plan does not say: the model's folder, the data and the length of the run."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--model", required=True, help="folder with config.json and weights")
    parser.add_argument("--scratch", action="store_true", help="start from random weights")
    parser.add_argument("--tokens", help="a .npy of token numbers in a row; made-up ones without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser


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


def build(args, recompute=True):
    """Return the model; with ``recompute`` its layers run again in backward passes where the plan says so."""
    kind = AutoModelForCausalLM
    if PLAN["loss"] == "fused":
        from liger_kernel.transformers import AutoLigerKernelForCausalLM
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

        kind, family = AutoLigerKernelForCausalLM, AutoConfig.from_pretrained(args.model).model_type
        if family not in MODEL_TYPE_TO_APPLY_LIGER_FN:
            raise SystemExit(f"Liger has no fused loss for {family}: plan again with --loss torch")
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
    if recompute and "full" in modes:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for layer, mode in zip(layers, modes, strict=True):
            layer.gradient_checkpointing = mode == "full"
    return model
