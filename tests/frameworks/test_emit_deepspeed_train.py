"""The emitted DeepSpeed folder trains as one process does: its script, its JSON, its pipeline module."""

import json
import sys
from pathlib import Path

import pytest

from meshwright.planner.emit.write import write_plan
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.frameworks.runs import start
from tests.planner.emit.cases import cluster

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.slow

STEPS = 3
LISTED = ["none", "full", "none", "full"]
CASES = {
    "zero-1": ("llama", {"dp": 2, "zero_stage": 1, "recompute": LISTED}),
    "zero-3": ("llama", {"dp": 2, "zero_stage": 3, "recompute": "full"}),
    "tensor": ("llama", {"tp": 2, "dp": 1, "zero_stage": 3}),
    "tensor-qwen3": ("qwen3", {"tp": 2, "dp": 1}),
    "pipeline": ("llama", {"pp": 2, "dp": 1, "layers_per_stage": [1, 3], "recompute": LISTED}),
    "pipeline-qwen2": ("qwen2", {"pp": 2, "dp": 1}),
}
# Every process first: without it DeepSpeed compiles a kernel for minutes.
QUICK = """
import os
if "LOCAL_RANK" in os.environ:
    import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
"""
ALONE = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
import torch
from planned import PLAN, batches, build
args = types.SimpleNamespace(model=sys.argv[2], scratch=False, seed=0, tokens=None)
given = json.load(open(sys.argv[1] + "/ds_config.json"))["optimizer"]["params"]
model = build(args)
optimizer = torch.optim.AdamW(model.parameters(), **{k: v for k, v in given.items() if k != "torch_adam"})
streams = [batches(args, model.config.vocab_size, r) for r in range(PLAN["dp"])]
count, losses = PLAN["num_microbatches"] * PLAN["dp"], []
for _ in range(int(sys.argv[3])):
    means = []
    for stream in streams:
        found = []
        for _ in range(PLAN["num_microbatches"]):
            ids = next(stream)
            loss = model(input_ids=ids, labels=ids).loss
            (loss / count).backward()
            found.append(loss.item())
        means.append(sum(found) / len(found))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(means[0])  # of the first replica: what the script prints
print(json.dumps(losses))
"""


def saved(family: str, folder: Path) -> None:
    """Save a tiny model with random weights."""
    import torch

    torch.manual_seed(0)
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = getattr(transformers, f"{name}Config")(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=128,
        tie_word_embeddings=False,
    )
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    family, strategy = CASES[name]
    saved(family, tmp_path / "model")
    work = {"precision": "fp32", "loss": "eager", "target": "deepspeed", "allow_idle": True}
    problem = Problem(load_model(tmp_path / "model"), cluster("dgx-h100:1"), Job(8, 16, **work))
    plan = make_plan(problem, micro_batch_size=2, **strategy)
    out = tmp_path / "out"
    write_plan(problem, plan, out, launchers=["torchrun"])
    config = json.loads((out / "ds_config.json").read_text())
    # The fused kernel needs a GPU; a larger rate than the usual one makes errors visible.
    config["optimizer"]["params"] |= {"torch_adam": True, "lr": 1e-2}
    (out / "ds_config.json").write_text(json.dumps(config))
    (out / "sitecustomize.py").write_text(QUICK)
    model = str(tmp_path / "model")
    port = str(29640 + list(CASES).index(name))
    told = start(
        ["bash", str(out / "launch.sh"), "--model", model, "--steps", str(STEPS)],
        PYTHONPATH=str(out),
        MASTER_PORT=port,
        HF_HUB_OFFLINE="1",
    )
    losses = [float(line.split()[-1]) for line in told.splitlines() if line.startswith("step ")]
    alone = json.loads(
        start([sys.executable, "-c", ALONE, str(out), model, str(STEPS)]).strip().splitlines()[-1]
    )
    assert losses == pytest.approx(alone, rel=1e-4)
    assert len(losses) == STEPS
