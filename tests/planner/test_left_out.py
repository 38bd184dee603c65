"""The limits of a proof are told: what a search leaves out, and nothing that a pin brought in."""

from typing import Any

import numpy as np
import pytest

from meshwright.costmodels.schedule import names
from meshwright.planner.left_out import left_out
from meshwright.planner.problem import Problem
from meshwright.planner.solve import solve_problem
from meshwright.planner.space import enumerate_meshes
from meshwright.planner.spill import spilled


def problem(model: str = "llama-3.1-8b", cluster: str = "dgx-h100:2", **job: Any) -> Problem:
    return Problem.load(model, cluster, {"global_batch_size": 32, "sequence_length": 8192} | job)


def told(asked: Problem) -> str:
    return "; ".join(left_out(asked, asked))


@pytest.mark.parametrize("target", ["any", "megatron", "torchtitan", "deepspeed"])
def test_a_schedule_of_the_target_is_searched_or_told(target: str) -> None:
    asked = problem(target=target)
    searched = set(np.unique(enumerate_meshes(asked).schedule).tolist())
    named = told(asked).partition("(searched: ")[0]
    for name in names():
        if name in asked.target.schedules and name not in searched and asked.target.pipeline:
            assert name in named.replace(";", ",").replace(" ", ",").split(",")
        if name in searched:
            assert name not in named.removeprefix("the schedules ").split(", ")


PINS: list[tuple[dict[str, Any], str]] = [
    ({"schedule": "gpipe"}, "the schedules"),
    ({"cp": 2}, "context parts"),
    ({"offload": "optimizer"}, "offload optimizer, parameters"),
    ({"recompute": ["none", "offload"]}, "recompute offload with vpp"),
    ({"dp_replicate": 2}, "dp_replicate"),
    ({"hpz": 2}, "hpz"),
    ({"etp": 2}, "etp other than"),
]


@pytest.mark.parametrize(("pin", "what"), PINS)
def test_what_the_job_names_is_not_left_out(pin: dict[str, Any], what: str) -> None:
    assert what in told(problem("mixtral-8x7b"))
    assert what not in told(problem("mixtral-8x7b", pins=pin))


def test_dense_models_have_no_expert_degrees_to_leave_out() -> None:
    assert "etp" not in told(problem())


def test_offloading_that_was_searched_as_the_last_resort_is_not_left_out() -> None:
    for cluster, rest in (
        ("dgx-a100:2", ["offload optimizer-nvme, parameters-nvme"]),
        ("dgx-h100:2", []),
    ):
        asked = problem(cluster=cluster)
        widened = spilled(asked)
        assert widened is not None
        assert [text for text in left_out(asked, widened) if text.startswith("offload")] == rest


def test_an_answer_holds_it() -> None:
    asked = problem("gpt2", "dgx-h100", sequence_length=512, target="deepspeed")
    result = solve_problem(asked, alternatives=0)
    assert result.record is not None
    assert result.record.left_out == left_out(asked, asked)
    assert result.to_dict()["record"]["left_out"]
