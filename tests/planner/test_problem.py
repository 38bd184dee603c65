"""Problems load names, paths and objects alike, and look every name up at once."""

from dataclasses import replace
from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from tests.planner.emit.cases import cluster, model

JOB = {"global_batch_size": 8, "sequence_length": 128}


def test_names_and_objects_are_the_same_problem() -> None:
    named = Problem.load("llama-3.1-8b", "dgx-h100:2", JOB)
    assert named == Problem.load(model(), cluster("dgx-h100:2"), Job(**JOB))
    assert named.profile.name == named.target.profile


def test_a_profile_of_the_job_replaces_the_targets() -> None:
    problem = Problem.load(model(), cluster("dgx-h100:2"), {**JOB, "profile": "fsdp2"})
    assert (problem.target.name, problem.profile.name) == ("any", "fsdp2")


def test_a_load_of_experts_that_are_not_there_is_remarked() -> None:
    def told(model: str, load: float) -> bool:
        job = {"global_batch_size": 8, "sequence_length": 512, "expert_load": load}
        return any("expert_load 3 has no effect" in n for n in Problem.load(model, "dgx-h100", job).notes)

    assert told("llama-3.1-8b", 3)
    assert not told("llama-3.1-8b", 1)
    assert not told("mixtral-8x7b", 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("target", "megatrom"), ("profile", "quick"), ("precision", "bf61"), ("optimizer", "adamm")],
)
def test_an_unknown_name_is_refused_at_once(name: str, value: str) -> None:
    job: dict[str, Any] = {**JOB, name: value}
    with pytest.raises(MeshwrightError, match=value):
        Problem.load(model(), cluster("dgx-h100:2"), job)


def test_the_model_of_a_problem_is_what_its_job_trains() -> None:
    plain = Problem.load(model(), cluster("dgx-h100:2"), JOB)
    tuned = Problem.load(model(), cluster("dgx-h100:2"), {**JOB, "tuning": "lora:r=16"})
    assert plain.model is model()
    assert tuned.model.parameters == plain.model.parameters + 41_943_040
    again = replace(tuned, job=replace(tuned.job, tuning="full"))  # type: ignore[arg-type]
    assert again.model == plain.model


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tuning": "lora:targets=z"}, "'z' names no product"),
        ({"image_tokens": 64}, "reads no images"),
        ({"target_length": 64}, "is no encoder-decoder"),
    ],
)
def test_a_job_that_asks_for_what_the_model_has_not_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MeshwrightError, match=said):
        Problem.load(model(), cluster("dgx-h100:2"), {**JOB, **changes})


def test_a_graph_without_its_prediction_layers_cannot_train_them() -> None:
    graph = replace(model(), mtp_parameters=10)
    with pytest.raises(MeshwrightError, match=r"mtp: the graph of llama-3\.1-8b was built without"):
        Problem.load(graph, cluster("dgx-h100:2"), {**JOB, "mtp": True})
