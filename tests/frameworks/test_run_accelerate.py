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
    "zero-2": {"zero_stage": 2, "micro_batch_size": 1},
    "zero-3": {"zero_stage": 3, "micro_batch_size": 2, "recompute": "full"},
}
Ran = tuple[Plan, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=CASES)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return a plan and what its two ranks saw: CPU processes, which stand in for the GPUs of the plan."""
    folder: Path = tmp_path_factory.mktemp("accelerate")
    problem, plan = tiny.planned("fsdp", "dgx-h100:1", dp=2, **CASES[request.param])
    write_plan(problem, plan, folder / "out")
    arguments = [str(folder / "out" / "training_args.json"), str(folder)]
    port = str(29700 + list(CASES).index(request.param))
    start(["bash", str(folder / "out" / "launch.sh"), *arguments], TRAIN_SCRIPT=str(SCRIPT), MASTER_PORT=port)
    return plan, read(folder, 2)


def check_applied(plan: Plan, seen: list[dict[str, Any]]) -> None:
    """Assert that both ranks shard, gather and recompute as the plan says."""
    blocks = plan.num_layers - 2
    for own in seen:
        # An exit code of zero proves nothing: the parameters must be shards, each block its own group.
        assert own["type"].endswith("FSDP") and own["processes"] == plan.dp == len(seen)
        assert own["placements"] == ["(Shard(dim=0),)"]
        assert own["held"] * plan.dp == own["whole"]
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
    "degree": lambda p: replace(p, dp=4),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_plan_is_told_from_the_one_that_ran(ran: Ran, wrong: str) -> None:
    plan, seen = ran
    with pytest.raises(AssertionError):
        check_applied(WRONG[wrong](plan), seen)
