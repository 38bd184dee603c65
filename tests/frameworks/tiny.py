"""A Llama of 6 layers for training runs on CPUs: its plans, its data, and how one process trains it."""

import json
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
BATCH, LENGTH, STEPS, RATE = 8, 16, 5, 1e-2
OPTIMIZER = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CLIP = 1.0


@lru_cache(maxsize=4)
def folder(family: str = "llama") -> Path:
    """Return a model folder as transformers would save it, without weights."""
    found = Path(mkdtemp(prefix="tiny-"))
    classes = {"llama": "LlamaForCausalLM"}
    config = {"architectures": [classes[family]], "model_type": family, "hidden_act": "silu", **SIZES}
    (found / "config.json").write_text(json.dumps(config))
    return found


def planned(
    target: str, machines: str, job: dict[str, Any] | None = None, **strategy: Any
) -> tuple[Problem, Plan]:
    """Return the problem of training it in fp32, and the plan of an explicit strategy."""
    work = {"global_batch_size": BATCH, "sequence_length": LENGTH, "target": target, "precision": "fp32"}
    problem = Problem.load(folder(), machines, {**work, "allow_idle": True, **(job or {})})
    return problem, make_plan(problem, **strategy)


def model() -> Any:
    """Return the model, with the same weights in every process."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))


def batch(step: int) -> Any:
    """Return the global batch of a step, (sequences, tokens): runs of numbers, which can be learnt."""
    import torch

    draw = torch.Generator().manual_seed(step)
    start = torch.randint(SIZES["vocab_size"], (BATCH, 1), generator=draw)
    stride = torch.randint(1, 4, (BATCH, 1), generator=draw)
    return (start + stride * torch.arange(LENGTH)) % SIZES["vocab_size"]


@lru_cache(maxsize=2)
def reference(clip: float = CLIP) -> tuple[float, ...]:
    """Return the losses of one process that trains without any of our code."""
    import torch

    whole = model()
    optimizer = torch.optim.AdamW(whole.parameters(), **OPTIMIZER)
    losses = []
    for step in range(STEPS):
        ids = batch(step)
        loss = whole(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return tuple(losses)
