"""The emitted torchrun command before torchrun's own parser."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.planner.emit.write import write_plan
from tests.planner.emit.cases import case

pytest.importorskip("torch", reason="torch is not installed")

STUB = f"""#!{sys.executable}
import json, sys
from torch.distributed.run import config_from_args, parse_args
args = parse_args(sys.argv[1:])
config, command, _ = config_from_args(args)
print(json.dumps({{"nodes": [config.min_nodes, config.max_nodes], "per_node": config.nproc_per_node,
    "backend": config.rdzv_backend, "rank": config.rdzv_configs.get("rank"), "at": config.rdzv_endpoint,
    "script": [args.training_script, *args.training_script_args]}}))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_reads_the_plan_s_processes(rank: int, tmp_path: Path) -> None:
    import json

    problem, plan = case("any", job={"allow_idle": True, "global_batch_size": 12}, dp=12)
    write_plan(problem, plan, tmp_path / "out", script="my train.py")
    (tmp_path / "torchrun").write_text(STUB)
    (tmp_path / "torchrun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_RANK": str(rank), "MASTER_ADDR": "10.0.0.1"}
    done = subprocess.run(
        ["bash", tmp_path / "out" / "launch.sh", "--seed", "1"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seen = json.loads(done.stdout)
    # Static: the rank of a host is the one that it was given, in the order that the placement counts on.
    assert (seen["backend"], seen["rank"], seen["at"]) == ("static", rank, "10.0.0.1:29500")
    assert seen["nodes"] == [2, 2] and seen["per_node"] == (8, 4)[rank]
    assert seen["script"] == ["my train.py", "--seed", "1"]
