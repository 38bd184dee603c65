"""torchtitan builds what is planned: stages, shards and checkpoints of a rank among all of the plan's."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshwright.planner.emit.write import write_plan
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import cluster

if find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow

MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 768,
    "vocab_size": 2048,
}
"""torchtitan's flavor ``debugmodel``."""
UNEVEN = {"tp": 2, "pp": 2, "vpp": 2, "layers_per_stage": [1, 2, 2, 1], "recompute": "every-2:full"}
CASES = {
    "first stage": (1, {**UNEVEN, "zero_stage": 2}),
    "second stage": (9, {**UNEVEN, "schedule": "zbv", "zero_stage": 2, "recompute": "none"}),
    "copies": (5, {"dp_replicate": 2, "zero_stage": 3, "recompute": "full"}),
    "1f1b": (15, {"pp": 4, "layers_per_stage": [1, 2, 2, 1], "zero_stage": 3}),
}


def assets(folder: Path) -> Path:
    """Write what the wheel does not hold: the model's file, a tokenizer and some text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    (folder / "data").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    words = {"a": 0, "b": 1, "<s>": 2, "</s>": 3, "<unk>": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    (folder / "data" / "data.json").write_text('{"text": "a b a b"}\n' * 50)
    return folder


def built(plan: Plan, rank: int, out: Path, folder: Path) -> dict:
    """Return what torchtitan built on one rank."""
    ranks = {"NGPU": plan.num_devices, "WORLD_SIZE": plan.num_devices, "RANK": rank, "LOCAL_RANK": rank % 8}
    more = {"TITAN_FLAVOR": "debugmodel", "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("titan_build.py")), str(out), str(folder)],
        env={**os.environ, **{k: str(v) for k, v in ranks.items()}, **more},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_rank_holds_what_the_plan_gives_it(name: str, tmp_path: Path) -> None:
    rank, strategy = CASES[name]
    folder = assets(tmp_path / "assets")
    problem = Problem(load_model(folder), cluster("dgx-h100:2"), Job(64, 512, target="torchtitan"))
    plan = make_plan(problem, **strategy)
    write_plan(problem, plan, tmp_path / "out")
    found = built(plan, rank, tmp_path / "out", folder)
    stage = rank // (plan.num_devices // plan.pp)
    chunks = [c for c in plan.chunks if c.rank == stage]
    own = [[i - 1 for i in range(max(c.start, 1), min(c.stop, plan.num_layers - 1))] for c in chunks]
    assert found["layers"] == own
    assert found["checkpointed"] == [i for part in own for i in part if plan.recompute[i + 1] == "full"]
    assert found["sharded"]
    sizes = {"dp_replicate": plan.dp_replicate, "fsdp": plan.dp // plan.dp_replicate, "tp": plan.tp}
    assert found["sizes"] == {dim: size for dim, size in sizes.items() if size > 1}
    assert found["ends"] == [chunks[0].start == 0, chunks[-1].stop == plan.num_layers]
