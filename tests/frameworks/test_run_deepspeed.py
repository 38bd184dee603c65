"""DeepSpeed trains from the emitted files as one process does, and is set up as the plan says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.planner.emit.write import write_plan
from meshwright.planner.plan import Chunk, Plan
from tests.frameworks import tiny
from tests.frameworks.runs import check_losses, read, start_ranks

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

GROUPS: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "zero": (
        2,
        {
            "zero-1": {"dp": 2, "zero_stage": 1, "micro_batch_size": 2},
            "zero-2": {"dp": 2, "zero_stage": 2, "micro_batch_size": 1, "recompute": "full"},
            "zero-3": {"dp": 2, "zero_stage": 3, "micro_batch_size": 2},
        },
    ),
    "stages": (
        2,
        {
            "pipeline": {
                "pp": 2,
                "dp": 1,
                "zero_stage": 1,
                "micro_batch_size": 2,
                "layers_per_stage": (4, 2),
                "recompute": "0-1:full,5:full",
            }
        },
    ),
    "both": (
        4,
        {
            "pipelines": {
                "pp": 2,
                "dp": 2,
                "zero_stage": 1,
                "layers_per_stage": (2, 4),
                "recompute": "4:full",
            }
        },
    ),
}
"""Plans that the same processes train in turn: DeepSpeed's pipelines leave global state behind."""
RUNS = [(group, name) for group, (_, cases) in GROUPS.items() for name in cases]
Ran = tuple[Plan, list[dict[str, Any]]]


def run(folder: Path, group: str) -> dict[str, Ran]:
    """Train from every plan's folder in one go; return plan and what was seen by name."""
    world, cases = GROUPS[group]
    tiny.LLAMA.build().save_pretrained(folder / "weights")
    plans = {}
    for name, strategy in cases.items():
        problem, plans[name] = tiny.planned("deepspeed", f"cpu:{world}", **strategy)
        write_plan(problem, plans[name], folder / name)
    start_ranks("deepspeed_ranks", folder, world)
    return {name: (plan, read(folder / name, world)) for name, plan in plans.items()}


@pytest.fixture(scope="module")
def zero(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run(tmp_path_factory.mktemp("deepspeed"), "zero")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run(tmp_path_factory.mktemp("deepspeed"), "stages")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run(tmp_path_factory.mktemp("deepspeed"), "both")


def check_applied(plan: Plan, seen: list[dict[str, Any]]) -> None:
    """Assert rank by rank that engine, shards, stages and passes are the plan's."""
    assert len(seen) == plan.pp * plan.dp
    for own in seen:
        assert (own["stage"], own["replicas"]) == (plan.zero_stage, plan.dp)
        assert (own["batch"], own["passes"]) == (plan.global_batch_size, plan.num_microbatches)
        assert own["steps"] == tiny.STEPS
        assert own["rows"] == [plan.micro_batch_size] * plan.num_microbatches * tiny.STEPS
        blocks = [i - 1 for i in layers_of(plan, own) if 0 < i < plan.num_layers - 1]
        again = {str(i): 1 + (plan.recompute[i + 1] == "full") for i in blocks}
        passes = plan.num_microbatches * tiny.STEPS
        assert own["runs"] == {i: times * passes for i, times in again.items()}


def layers_of(plan: Plan, own: dict[str, Any]) -> range:
    """Return the layers of a rank, which must be those of a stage of the plan."""
    if plan.pp == 1:
        shares = plan.dp if plan.zero_stage == 3 else 1
        assert own["weights"] * shares == own["whole"]
        assert own["moments"] * plan.dp == own["whole"]
        assert own["partitions_gradients"] is (plan.zero_stage == 2)
        return range(plan.num_layers)
    assert own["stages"] == plan.pp
    chunk = plan.chunks[own["stage_of"]]
    assert own["layers"] == [chunk.start, chunk.stop]
    return range(chunk.start, chunk.stop)


@pytest.mark.parametrize(("group", "name"), RUNS)
def test_the_plan_is_what_ran(request: pytest.FixtureRequest, group: str, name: str) -> None:
    check_applied(*request.getfixturevalue(group)[name])


@pytest.mark.parametrize(("group", "name"), RUNS)
def test_losses_are_those_of_one_process(request: pytest.FixtureRequest, group: str, name: str) -> None:
    _, seen = request.getfixturevalue(group)[name]
    for own in seen:
        check_losses(own["losses"], tiny.reference())


@pytest.mark.parametrize(("group", "name"), [(g, n) for g, n in RUNS if n.startswith("pipeline")])
def test_the_engine_keeps_no_logits_of_a_pipeline(
    request: pytest.FixtureRequest, group: str, name: str
) -> None:
    """As its loss is priced: the buffers that they came in are empty."""
    plan, seen = request.getfixturevalue(group)[name]
    assert [own["logits"] for own in seen] == [0] * plan.num_devices


WRONG = {
    "zero-1": lambda p: replace(p, zero_stage=2),
    "zero-2": lambda p: replace(p, recompute=("none",) * 8),
    "zero-3": lambda p: replace(p, micro_batch_size=1, num_microbatches=4),
    "pipeline": lambda p: replace(p, chunks=(Chunk(0, 0, 4), Chunk(1, 4, 8))),
    "pipelines": lambda p: replace(p, recompute=(*p.recompute[:4], "full", *p.recompute[5:])),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_told_from_the_one_that_ran(request: pytest.FixtureRequest, name: str) -> None:
    group = next(group for group, (_, cases) in GROUPS.items() if name in cases)
    plan, seen = request.getfixturevalue(group)[name]
    with pytest.raises(AssertionError):
        check_applied(WRONG[name](plan), seen)
