"""Models of 6 layers for training runs on CPUs: their plans, their data, and how one process trains them."""

import json
from dataclasses import dataclass
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
}
BATCH, LENGTH, STEPS, RATE = 8, 16, 5, 1e-2
OPTIMIZER = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CLIP = 1.0


@dataclass(frozen=True)
class Model:
    """A family of transformers, and whether embedding and head share their weight."""

    family: str = "llama"
    tied: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The content of its ``config.json``."""
        names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
        return {
            "architectures": [f"{names[self.family]}ForCausalLM"],
            "model_type": self.family,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            **SIZES,
            **({"head_dim": 16} if self.family == "qwen3" else {}),
            **({"sliding_window": None} if self.family == "mistral" else {}),
        }

    def save(self, folder: Path) -> Path:
        """Write a model folder without weights."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def build(self, dtype: str = "float32") -> Any:
        """Return the module, with the same weights in every process."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        given = {k: v for k, v in self.config.items() if k != "architectures"}
        config = AutoConfig.for_model(given.pop("model_type"), **given, use_cache=False)
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


LLAMA = Model()


@lru_cache(maxsize=8)
def folder(model: Model) -> Path:
    """Return a folder of a model for as long as the tests run."""
    return model.save(Path(mkdtemp(prefix="tiny-")))


def planned(
    target: str, machines: str, model: Model = LLAMA, job: dict[str, Any] | None = None, **strategy: Any
) -> tuple[Problem, Plan]:
    """Return the problem of training a model in fp32, and the plan of an explicit strategy."""
    work = {"global_batch_size": BATCH, "sequence_length": LENGTH, "target": target, "precision": "fp32"}
    problem = Problem.load(folder(model), machines, {**work, "allow_idle": True, **(job or {})})
    return problem, make_plan(problem, **strategy)


def batch(step: int) -> Any:
    """Return the global batch of a step, (sequences, tokens): runs of numbers, which can be learnt."""
    import torch

    draw = torch.Generator().manual_seed(step)
    start = torch.randint(SIZES["vocab_size"], (BATCH, 1), generator=draw)
    stride = torch.randint(1, 4, (BATCH, 1), generator=draw)
    return (start + stride * torch.arange(LENGTH)) % SIZES["vocab_size"]


@lru_cache(maxsize=8)
def reference(model: Model = LLAMA, rate: float = RATE) -> tuple[float, ...]:
    """Return the losses of one process that trains a model without any of our code."""
    return losses_of(model.build(), rate)


def losses_of(whole: Any, rate: float = RATE) -> tuple[float, ...]:
    """Return the losses of one process that trains a module."""
    import torch

    optimizer = torch.optim.AdamW(whole.parameters(), **(OPTIMIZER | {"lr": rate}))
    losses = []
    for step in range(STEPS):
        ids = batch(step)
        output = whole(ids)
        logits = getattr(output, "logits", output)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return tuple(losses)
