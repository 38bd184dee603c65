"""torchtitan's own configuration manager reads the emitted files, and its models are the planned ones."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshwright.planner.emit.torchtitan import FLAVORS
from meshwright.planner.emit.write import write_plan
from tests.planner.emit.cases import case
from tests.planner.emit.test_torchtitan import named

if find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)

# A process of its own: torchtitan registers itself with torch on import.
READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
from torchtitan.config import ConfigManager
words = ["--module", "meshwright_config", "--config", "planned", "--training.steps", "7"]
c = ConfigManager().parse_args(words)
p, t = c.parallelism, c.training
print(json.dumps({
    "degrees": [p.tensor_parallel_degree, p.context_parallel_degree, p.pipeline_parallel_degree],
    "data": [p.data_parallel_replicate_degree, p.data_parallel_shard_degree],
    "experts": p.expert_parallel_degree,
    "parts": p.module_fqns_per_model_part,
    "batch": [t.local_batch_size, t.global_batch_size],
    "steps": t.steps,
    "layers": len(c.model_spec.model.layers),
    "checkpointing": type(c.activation_checkpoint).__qualname__,
}))
"""
SHAPES = """
import importlib, json
found = []
for name in ("llama3", "qwen3", "deepseek_v3"):
    module = importlib.import_module(f"torchtitan.models.{name}")
    for flavor in json.loads(input())[name]:
        model = module.model_registry(flavor).model
        found.append([name, len(model.layers), model.dim, flavor])
print(json.dumps(found))
"""
CASES = {
    "full": lambda: case("torchtitan", zero_stage=3, recompute="full"),
    "context": lambda: case("torchtitan", tp=2, cp=2, dp_replicate=2, kv_exchange="all_gather"),
    "listed": lambda: case("torchtitan", tp=2, pp=2, vpp=2, zero_stage=2, recompute="every-2:full"),
    "experts": lambda: named("qwen3-235b-a22b", tp=2, ep=8, etp=1),
}
POLICIES = {"full": "FullAC.Config", "listed": "PlannedAC.Config"}


def answer(source: str, *arguments: str, text: str = "") -> object:
    """Return what a Python process prints last, as data."""
    import json

    command = [sys.executable, "-c", source, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, input=text, timeout=300)
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_manager_reads_the_plan(name: str, tmp_path: Path) -> None:
    problem, plan = CASES[name]()
    write_plan(problem, plan, tmp_path / "out")
    found = answer(READ, str(tmp_path / "out"))
    assert isinstance(found, dict)
    assert found["degrees"] == [plan.tp, plan.cp, plan.pp]
    assert found["data"] == [plan.dp_replicate, plan.dp // plan.dp_replicate]
    assert found["experts"] == plan.ep
    assert found["batch"][1] == plan.global_batch_size
    assert (found["steps"], found["layers"]) == (7, plan.num_layers - 2)
    assert found["checkpointing"] == POLICIES.get(name, "NoneType")
    assert (found["parts"] is None) == (plan.pp == 1)


def test_flavors_have_the_layers_and_widths_that_they_are_known_by() -> None:
    import json

    modules = {name: [f for (m, _, _), f in FLAVORS.items() if m == name] for name, _, _ in FLAVORS}
    found = answer(SHAPES, text=(json.dumps(modules) + "\n") * 3)
    assert isinstance(found, list)
    assert {tuple(shape): flavor for *shape, flavor in found} == FLAVORS
