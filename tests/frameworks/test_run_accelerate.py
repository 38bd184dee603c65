"""FSDP2 through Accelerate, started by the emitted files, trains as one process and shards as planned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.planner.emit.write import write_plan
from meshwright.planner.plan import Plan
from tests.frameworks import tiny
from tests.frameworks.runs import CHECKOUT, check_losses, read, start

pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

SCRIPT = CHECKOUT / "tests" / "frameworks" / "accelerate_rank.py"
CASES: dict[str, dict[str, Any]] = {
    "zero-2": {"dp": 2, "zero_stage": 2, "micro_batch_size": 1},
    "zero-3": {"dp": 2, "zero_stage": 3, "micro_batch_size": 2, "recompute": "full"},
    "copies": {"dp": 4, "dp_replicate": 2, "zero_stage": 3, "micro_batch_size": 1},
    "context": {"dp": 1, "cp": 2, "kv_exchange": "all_gather", "zero_stage": 2, "recompute": "full"},
    "context-ring": {"dp": 2, "cp": 2, "kv_exchange": "ring", "zero_stage": 3, "micro_batch_size": 2},
}
Ran = tuple[Plan, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=CASES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return a plan and what its ranks saw: CPU processes, which stand in for the GPUs of the plan."""
    folder: Path = tmp_path_factory.mktemp("accelerate")
    problem, plan = tiny.planned("fsdp", "dgx-h100:1", **CASES[request.param])
    write_plan(problem, plan, folder / "out")
    arguments = [str(folder / "out" / "training_args.json"), str(folder)]
    port = str(29700 + list(CASES).index(request.param))
    start(["bash", str(folder / "out" / "launch.sh"), *arguments], TRAIN_SCRIPT=str(SCRIPT), MASTER_PORT=port)
    return plan, read(folder, plan.num_devices)


def check_applied(plan: Plan, seen: list[dict[str, Any]]) -> None:
    """Assert that all ranks shard, gather, recompute and deal tokens out as the plan says."""
    blocks, shards = plan.num_layers - 2, plan.dp // plan.dp_replicate * plan.cp
    sizes = {"dp_replicate": plan.dp_replicate, "dp_shard": plan.dp // plan.dp_replicate, "cp": plan.cp}
    for own in seen:
        # An exit code of zero proves nothing: the parameters must be shards, each block its own group.
        assert own["type"].endswith("FSDP") and own["processes"] == plan.num_devices == len(seen)
        copies = "Replicate(), " if plan.dp_replicate > 1 else ""
        assert own["placements"] == [f"({copies}Shard(dim=0){'' if copies else ','})"]
        assert own["held"] * shards == own["whole"]
        assert own["mesh"] in ({}, {name: size for name, size in sizes.items() if size > 1})
        assert own["tokens"] == [plan.sequence_length // plan.cp]
        assert own["blocks"] == blocks
        assert own["reshards"] == [plan.zero_stage == 3]
        assert own["checkpointed"] == [i for i in range(blocks) if plan.recompute[i + 1] == "full"]
        assert own["rows"] == [plan.micro_batch_size] * plan.num_microbatches * tiny.STEPS


def test_the_plan_is_what_ran(ran: Ran) -> None:
    check_applied(*ran)


def test_losses_are_those_of_one_process(ran: Ran) -> None:
    for own in ran[1]:
        check_losses(own["losses"], tiny.reference())


OTHER = {"none": "full", "full": "none"}
WRONG = {
    "zero": lambda p: replace(p, zero_stage=5 - p.zero_stage),
    "recompute": lambda p: replace(p, recompute=("none", *(OTHER[m] for m in p.recompute[1:-1]), "none")),
    "passes": lambda p: replace(p, micro_batch_size=4, num_microbatches=1),
    "degree": lambda p: replace(p, dp=8),
    "context": lambda p: replace(p, cp=2 * p.cp, dp=max(1, p.dp // 2)),
    "copies": lambda p: replace(p, dp_replicate=p.dp if p.dp_replicate < p.dp else 2 * p.dp),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_plan_is_told_from_the_one_that_ran(ran: Ran, wrong: str) -> None:
    plan, seen = ran
    with pytest.raises(AssertionError):
        check_applied(WRONG[wrong](plan), seen)
