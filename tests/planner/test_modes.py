"""Recompute modes that device or model lack are refused, however they are asked for."""

from dataclasses import replace
from typing import Any

import pytest

from meshwright.costmodels.recompute import MODES
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.bounds import demand
from meshwright.planner.estimate import check_plan, estimate_problem
from meshwright.planner.modes import check_modes
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.solve import solve_problem
from meshwright.planner.strategy import make_plan

JOB = {"global_batch_size": 32, "sequence_length": 4096}
NO_LINK = "offload needs a host link: .* has no link to it"


def problem(model: str = "llama-3.1-8b", pins: dict[str, Any] | None = None) -> Problem:
    return Problem.load(model, "dgx-h100:1", JOB | {"pins": pins or {}})


def without_link(asked: Problem) -> Problem:
    device = replace(asked.cluster.accelerator, host_link=None)
    return replace(asked, cluster=replace(asked.cluster, accelerator=device))


def test_activations_go_nowhere_without_a_host_link() -> None:
    asked = problem()
    plan = make_plan(asked, tp=8, recompute="0-3:offload")
    check_plan(asked, plan)
    with pytest.raises(MeshwrightError, match=NO_LINK):
        make_plan(without_link(asked), tp=8, recompute="0-3:offload")
    with pytest.raises(MeshwrightError, match=NO_LINK):
        check_plan(without_link(asked), plan)


@pytest.mark.parametrize("modes", ["offload", ["none", "offload"]])
def test_a_pin_on_offloading_without_a_host_link_is_refused(modes: Any) -> None:
    asked = problem(pins={"recompute": modes})
    assert demand(asked).allowed.any()
    with pytest.raises(MeshwrightError, match=NO_LINK):
        demand(without_link(asked))
    with pytest.raises(MeshwrightError, match=NO_LINK):
        solve_problem(without_link(asked), time_limit_s=1)


def test_activations_are_offloaded_by_themselves_where_there_is_a_host_link() -> None:
    at = MODES.index("offload")
    blocks = demand(problem()).blocks
    assert demand(problem()).allowed[blocks, at].all()
    assert not demand(problem()).allowed[~blocks, at].any()
    assert not demand(without_link(problem())).allowed[:, at].any()
    assert not demand(problem(pins={"recompute": "!offload"})).allowed[:, at].any()


def test_experts_are_run_again_only_where_some_layer_has_them() -> None:
    check_modes(problem("mixtral-8x7b"), {"moe"})
    with pytest.raises(MeshwrightError, match="no layer of"):
        demand(problem(pins={"recompute": "moe"}))


def test_places_of_unknown_size_are_noted_where_something_lies_there() -> None:
    asked = problem()
    unknown = replace(asked, cluster=replace(asked.cluster, host_memory_bytes=None))
    note = "host memory of the cluster is not known: not checked"

    def notes(of: Problem, mode: str) -> tuple[str, ...]:
        return estimate_problem(of, make_plan(of, tp=8, recompute=mode)).notes

    assert note in notes(unknown, "offload")
    assert note not in notes(unknown, "full")
    assert note not in notes(asked, "offload")


def with_modules(model: str, modules: Any, **job: Any) -> Problem:
    return Problem.load(model, "dgx-h100:1", JOB | {"recompute_modules": modules} | job)


def test_modules_that_a_plan_runs_again_are_priced_recorded_and_read_back() -> None:
    asked = with_modules("deepseek-v2-lite", "moe_act, mla_up_proj")
    plan = make_plan(asked, ep=8, recompute="selective")
    assert plan.recompute_modules == ("mla_up_proj", "moe_act")
    assert Plan.from_json(plan.to_json()) == plan
    less, more = (
        estimate_problem(p, make_plan(p, ep=8, recompute="selective"))
        for p in (with_modules("deepseek-v2-lite", "moe_act,mla_up_proj,mlp"), asked)
    )
    assert less.memory[0]["activations"] < more.memory[0]["activations"]
    with pytest.raises(MeshwrightError, match="recompute_modules"):
        check_plan(with_modules("deepseek-v2-lite", []), plan)


@pytest.mark.parametrize(
    ("model", "modules", "job", "said"),
    [
        ("llama-3.1-8b", ["mla_up_proj"], {}, "no module of llama-3.1-8b"),
        ("llama-3.1-8b", ["norms"], {"target": "megatron"}, "that Megatron-LM can name"),
        ("llama-3.1-8b", ["layernorm"], {"target": "deepspeed"}, "runs no single modules again"),
    ],
)
def test_modules_that_model_or_target_lack_are_refused(
    model: str, modules: list[str], job: dict[str, Any], said: str
) -> None:
    with pytest.raises(MeshwrightError, match=said):
        demand(with_modules(model, modules, **job))


@pytest.mark.parametrize("modules", [["layernrom"], 3, {"mlp": 1}])
def test_lists_of_modules_are_checked(modules: Any) -> None:
    with pytest.raises(MeshwrightError, match="recompute"):
        with_modules("llama-3.1-8b", modules)
