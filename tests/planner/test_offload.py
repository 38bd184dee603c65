"""States off the device: where they lie, what moving them costs, and which limits hold."""

import json
from dataclasses import replace
from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.deepspeed import NVME_PATH, script
from meshwright.planner.emit.registry import emit
from meshwright.planner.estimate import estimate_problem
from meshwright.planner.infeasible import fits
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate
from meshwright.planner.solve import solve_problem
from meshwright.planner.spill import spilled
from meshwright.planner.strategy import make_plan

JOB = {"global_batch_size": 32, "sequence_length": 4096, "target": "deepspeed"}
GB, TB = 1e9, 1e12


def problem(rate: float | None = 50 * GB, size: float | None = 30.72 * TB, **job: Any) -> Problem:
    found = Problem.load("llama-3.1-8b", "dgx-a100:1", JOB | job)
    return replace(found, cluster=replace(found.cluster, nvme_bytes_per_s=rate, nvme_bytes=size))


def priced(asked: Problem, offload: str, zero_stage: int = 3) -> Estimate:
    return estimate_problem(
        asked, make_plan(asked, zero_stage=zero_stage, micro_batch_size=1, recompute="full", offload=offload)
    )


def test_the_catalogue_knows_the_drives_of_a_node() -> None:
    cluster = Problem.load("llama-3.1-8b", "dgx-a100:1", JOB).cluster
    assert (cluster.nvme_bytes_per_s, cluster.nvme_bytes) == (50 * GB, 30.72 * TB)


@pytest.mark.parametrize("what", ["optimizer", "parameters"])
def test_drives_hold_what_host_memory_would_and_are_no_faster(what: str) -> None:
    host, drives = priced(problem(), what), priced(problem(), f"{what}-nvme")
    assert drives.peak_bytes == host.peak_bytes
    assert drives.nvme_bytes == host.host_bytes
    assert max(host.nvme_bytes) == max(drives.host_bytes) == 0
    assert drives.step_time_s > host.step_time_s


def test_faster_drives_are_never_slower_and_come_near_the_host() -> None:
    steps = [priced(problem(rate=r * GB), "parameters-nvme").step_time_s for r in (5, 50, 500, 5e6)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(priced(problem(), "parameters").step_time_s)


def test_optimizer_time_is_that_of_the_drives_where_they_are_the_slowest() -> None:
    """A tenth of the rate takes ten times as long, but for the gradients and weights over the host link."""
    slow, slower = (priced(problem(rate=r * GB), "optimizer-nvme").breakdown["optimizer"] for r in (1.0, 0.1))
    assert slower == pytest.approx(10 * slow, rel=0.05)


def test_drives_that_are_not_known_are_refused_by_name() -> None:
    with pytest.raises(MeshwrightError, match=r"offload to drives.*give nvme_gb_per_s"):
        priced(problem(rate=None), "parameters-nvme")


def test_drives_need_zero_3_and_weights_do() -> None:
    with pytest.raises(MeshwrightError, match="offload to drives"):
        priced(problem(), "optimizer-nvme", zero_stage=2)
    with pytest.raises(MeshwrightError, match="offloaded states are split"):
        priced(problem(), "parameters", zero_stage=2)
    assert priced(problem(), "optimizer", zero_stage=2).fits


def test_drives_too_small_are_what_binds_and_host_memory_is_not() -> None:
    """12 bytes of masters and moments and 2 of gradients for each of 8.03e9 parameters are 112 GB a host."""
    tight = problem(size=50 * GB, pins={"offload": "optimizer-nvme"})
    tight = replace(tight, cluster=replace(tight.cluster, host_memory_bytes=1 * GB))
    found = solve_problem(tight, alternatives=0)
    assert found.status == "INFEASIBLE"
    assert found.infeasibility is not None
    assert found.infeasibility.rule == "drives"
    assert fits(replace(tight, cluster=replace(tight.cluster, nvme_bytes=120 * GB)))


def test_a_search_where_drives_are_pinned_ends_in_a_plan_on_them() -> None:
    found = solve_problem(problem(pins={"offload": "parameters-nvme"}), alternatives=0)
    assert found.status == "OPTIMAL"
    assert found.plan is not None
    assert found.plan.offload == "parameters-nvme"
    assert max(found.estimate.nvme_bytes) > 0 if found.estimate else False


def test_drives_are_not_the_last_resort_and_a_pin_has_the_last_word() -> None:
    away = spilled(problem())
    assert away is not None
    assert not away.job.choices["offload"].admits("parameters-nvme")
    assert away.job.choices["offload"].admits("parameters")
    assert spilled(problem(pins={"offload": "none"})) is None


@pytest.mark.parametrize("what", ["optimizer", "parameters"])
def test_deepspeed_is_told_where_the_drives_are(what: str) -> None:
    asked = problem()
    plan = make_plan(asked, zero_stage=3, micro_batch_size=1, recompute="full", offload=f"{what}-nvme")
    block = json.loads(emit(asked, plan)["ds_config.json"])["zero_optimization"]
    home = {"device": "nvme", "nvme_path": NVME_PATH, "pin_memory": True}
    assert block["offload_optimizer"] == home
    assert block.get("offload_param") == (home if what == "parameters" else None)
    assert any(NVME_PATH in note for note in script(asked, plan))
