"""What is not applied is refused by name; every plan for the native target is applied."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Chunk
from meshwright.planner.runtime.limits import check_plan, check_world
from tests.planner.emit.cases import case
from tests.strategies import launchable


@settings(max_examples=60, deadline=None)
@given(launchable("native"))
def test_every_plan_for_the_target_is_applied(drawn) -> None:
    _, plan = drawn
    check_plan(plan)
    check_world(plan, plan.num_devices)


BEYOND = {
    "kv_exchange=ring": {"cp": 2},
    "ep=4": {"ep": 4},
    "etp=2": {"etp": 2},
    "hpz=8": {"hpz": 8},
    "ulysses=2": {"ulysses": 2},
    "offload=optimizer": {"offload": "optimizer"},
    "precision=fp8": {"precision": "fp8"},
    "zero_stage=1": {"zero_stage": 1},
    "schedule=zb2p": {"schedule": "zb2p"},
    "tuning=lora": {"tuning": "lora:r=16"},
    "recompute=selective": {"recompute": ("none", *["selective"] * 32, "none")},
    "recompute=full on layer 0": {"recompute": ("full", *["none"] * 33)},
    "recompute=full on layer 33": {"recompute": (*["none"] * 33, "full")},
    "global_batch_size=7": {"global_batch_size": 7},
    "dp_replicate=3": {"dp_replicate": 3},
    "chunks: pp x vpp=1": {"chunks": (Chunk(0, 0, 16), Chunk(0, 16, 34))},
}


@pytest.mark.parametrize("named", BEYOND)
def test_what_is_not_applied_is_named(named: str) -> None:
    _, plan = case("native", zero_stage=3)
    check_plan(plan)
    with pytest.raises(MeshwrightError, match=f"apply cannot carry out {named}"):
        check_plan(replace(plan, **BEYOND[named]))


def test_everything_that_is_not_applied_is_named_at_once() -> None:
    _, plan = case("native", zero_stage=3)
    with pytest.raises(
        MeshwrightError, match=r"ep=4: only ep=1; offload=parameters: only none; .*plan for it"
    ):
        check_plan(replace(plan, ep=4, offload="parameters"))


@pytest.mark.parametrize(
    "chunks",
    [
        (Chunk(0, 0, 17), Chunk(1, 18, 34)),
        (Chunk(0, 0, 17), Chunk(1, 17, 33)),
        (Chunk(1, 0, 17), Chunk(0, 17, 34)),
    ],
    ids=["gap", "short", "ranks"],
)
def test_chunks_that_no_schedule_runs_are_refused(chunks: tuple[Chunk, ...]) -> None:
    _, plan = case("native", pp=2, zero_stage=2)
    with pytest.raises(MeshwrightError, match="chunks: "):
        check_plan(replace(plan, chunks=chunks))


def test_zero_says_nothing_on_one_data_parallel_rank() -> None:
    _, plan = case("native", "dgx-h100:1", tp=8, dp=1)
    check_plan(replace(plan, zero_stage=1))


@pytest.mark.parametrize("processes", [1, 8, 17])
def test_another_number_of_processes_is_refused(processes: int) -> None:
    _, plan = case("native", tp=4, pp=2)
    with pytest.raises(MeshwrightError, match=f"{processes} processes run, .* tp 4 x pp 2 x dp 2 = 16"):
        check_world(plan, processes)
