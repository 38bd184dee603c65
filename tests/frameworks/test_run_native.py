"""Plans carried out by ``meshwright.apply`` on CPU processes train as one process does, and are what ran."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.planner.plan import Chunk, Plan
from tests.frameworks import tiny
from tests.frameworks.native_checks import check_applied
from tests.frameworks.runs import check_losses, read, start_ranks, write_case

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

CONTEXT = {"kv_exchange": "all_gather"}
TWO = {
    "zero-3": {"dp": 2, "zero_stage": 3, "micro_batch_size": 2, "recompute": "every-2:full"},
    "zero-2": {"dp": 2, "zero_stage": 2, "micro_batch_size": 1},
    "copies": {"dp": 2, "zero_stage": 0, "micro_batch_size": 2},
    "tensor": {"tp": 2, "dp": 1, "micro_batch_size": 4, "sequence_parallel": False},
    "sequence": {"tp": 2, "dp": 1, "micro_batch_size": 2, "recompute": "full"},
    "pipeline": {"pp": 2, "dp": 1, "layers_per_stage": (4, 2), "recompute": "0-1:full,5:full"},
    "gpipe": {"pp": 2, "dp": 1, "layers_per_stage": (0, 6), "schedule": "gpipe", "micro_batch_size": 2},
    "interleaved": {"pp": 2, "vpp": 2, "dp": 1, "layers_per_stage": (1, 2, 2, 1), "recompute": "0:full"},
    "weights-apart": {"pp": 2, "dp": 1, "layers_per_stage": (4, 2), "schedule": "zb1p"},
    "weights-apart-loop": {"pp": 2, "vpp": 2, "dp": 1, "schedule": "interleaved_zb", "micro_batch_size": 2},
    "context": {
        **CONTEXT,
        "cp": 2,
        "dp": 1,
        "zero_stage": 3,
        "micro_batch_size": 2,
        "recompute": "every-2:full",
    },
    "context-copies": {**CONTEXT, "cp": 2, "dp": 1, "zero_stage": 0, "micro_batch_size": 4},
    "v": {"pp": 2, "vpp": 2, "dp": 1, "layers_per_stage": (1, 2, 2, 1), "schedule": "zbv"},
    "two-ways": {"pp": 2, "vpp": 2, "dp": 1, "layers_per_stage": (2, 1, 1, 2), "schedule": "dualpipev"},
}
FOUR = {
    "shards-tensor": {"tp": 2, "dp": 2, "zero_stage": 2, "micro_batch_size": 2, "recompute": "0-2:full"},
    "shards-pipeline": {"pp": 2, "dp": 2, "zero_stage": 3, "micro_batch_size": 1, "recompute": "2-3:full"},
    "pipeline-inside": {"pp": 2, "dp": 2, "zero_stage": 2, "placement": "tp,pp,dp"},
    "copies-pipeline": {"pp": 2, "dp": 2, "zero_stage": 0, "micro_batch_size": 2},
    "tensor-pipeline": {
        "tp": 2,
        "pp": 2,
        "dp": 1,
        "micro_batch_size": 2,
        "layers_per_stage": (2, 4),
        "recompute": "1:full,4-5:full",
    },
    "hybrid": {"dp": 4, "dp_replicate": 2, "zero_stage": 3, "micro_batch_size": 1},
    "context-shards": {**CONTEXT, "cp": 2, "dp": 2, "zero_stage": 2, "micro_batch_size": 1},
    "context-hybrid": {**CONTEXT, "cp": 2, "dp": 2, "dp_replicate": 2, "zero_stage": 3},
    "context-tensor": {**CONTEXT, "tp": 2, "cp": 2, "dp": 1, "zero_stage": 2, "micro_batch_size": 2},
    "context-pipeline": {**CONTEXT, "cp": 2, "pp": 2, "dp": 1, "zero_stage": 0, "layers_per_stage": (2, 4)},
    "context-outside": {**CONTEXT, "cp": 2, "dp": 2, "zero_stage": 3, "placement": "tp,dp,cp,pp"},
    "context-four": {
        **CONTEXT,
        "cp": 4,
        "dp": 1,
        "zero_stage": 3,
        "micro_batch_size": 2,
        "recompute": "full",
    },
    "shards-v": {"pp": 2, "vpp": 2, "dp": 2, "zero_stage": 2, "micro_batch_size": 1, "schedule": "zbv"},
    "copies-two-ways": {"pp": 2, "vpp": 2, "dp": 2, "zero_stage": 0, "schedule": "dualpipev"},
    "tensor-v": {"tp": 2, "pp": 2, "vpp": 2, "dp": 1, "micro_batch_size": 2, "schedule": "zbv"},
}
EIGHT = {
    "all": {
        "tp": 2,
        "pp": 2,
        "dp": 2,
        "zero_stage": 3,
        "layers_per_stage": (4, 2),
        "recompute": "0:full,4:full",
    }
}
CASES: dict[int, dict[str, tuple[tiny.Model, dict[str, Any]]]] = {
    2: {name: (tiny.LLAMA, strategy) for name, strategy in TWO.items()},
    4: {name: (tiny.LLAMA, strategy) for name, strategy in FOUR.items()},
    8: {name: (tiny.LLAMA, strategy) for name, strategy in EIGHT.items()},
}
Ran = tuple[Plan, list[dict[str, Any]]]
"""A plan, and what each of its ranks saw."""
RUNS = [(world, name) for world, cases in CASES.items() for name in cases]


def run(folder: Path, world: int) -> dict[str, Ran]:
    """Run all plans for a number of ranks in one go; return plan and what was seen by name."""
    plans = {name: write_case(folder / name, world, *case) for name, case in CASES[world].items()}
    start_ranks("native_ranks", folder, world)
    return {name: (plan, read(folder / name, world)) for name, plan in plans.items()}


@pytest.fixture(scope="module")
def ranks2(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run(tmp_path_factory.mktemp("native"), 2)


@pytest.fixture(scope="module")
def ranks4(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run(tmp_path_factory.mktemp("native"), 4)


@pytest.fixture(scope="module")
def ranks8(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run(tmp_path_factory.mktemp("native"), 8)


@pytest.mark.parametrize(("world", "name"), RUNS)
def test_the_plan_is_what_ran(request: pytest.FixtureRequest, world: int, name: str) -> None:
    check_applied(*request.getfixturevalue(f"ranks{world}")[name])


@pytest.mark.parametrize(("world", "name"), RUNS)
def test_losses_are_those_of_one_process(request: pytest.FixtureRequest, world: int, name: str) -> None:
    _, seen = request.getfixturevalue(f"ranks{world}")[name]
    for own in seen:
        check_losses(own["losses"], tiny.reference())


def test_the_tolerance_tells_a_wrong_step_apart() -> None:
    with pytest.raises(AssertionError, match="step"):
        check_losses(list(tiny.reference(rate=tiny.RATE * 1.02)), tiny.reference())


WRONG = {
    "recompute": (
        2,
        "pipeline",
        lambda p: replace(p, recompute=(*p.recompute[:3], "full", *p.recompute[4:])),
    ),
    "chunks": (2, "pipeline", lambda p: replace(p, chunks=(Chunk(0, 0, 4), Chunk(1, 4, 8)))),
    "micro-batches": (2, "pipeline", lambda p: replace(p, micro_batch_size=2, num_microbatches=4)),
    "virtual": (2, "interleaved", lambda p: replace(p, vpp=1, chunks=(Chunk(0, 0, 4), Chunk(1, 4, 8)))),
    "schedule": (2, "gpipe", lambda p: replace(p, schedule="1f1b")),
    "shape": (2, "two-ways", lambda p: replace(p, schedule="zbv")),
    "zero": (2, "zero-2", lambda p: replace(p, zero_stage=3)),
    "copies": (2, "zero-2", lambda p: replace(p, zero_stage=0)),
    "context": (2, "context", lambda p: replace(p, cp=1, dp=2)),
    "sequence": (2, "tensor", lambda p: replace(p, sequence_parallel=True)),
    "degrees": (2, "zero-3", lambda p: replace(p, tp=2, dp=1)),
    "order": (4, "pipeline-inside", lambda p: replace(p, placement=("tp", "cp", "dp", "pp"))),
    "hybrid": (4, "hybrid", lambda p: replace(p, dp_replicate=1)),
    "pipeline": (4, "tensor-pipeline", lambda p: replace(p, pp=1, dp=2)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_plan_is_told_from_the_one_that_ran(request: pytest.FixtureRequest, wrong: str) -> None:
    world, name, change = WRONG[wrong]
    plan, seen = request.getfixturevalue(f"ranks{world}")[name]
    with pytest.raises(AssertionError):
        check_applied(change(plan), seen)
