"""Problems load names, paths and objects alike, and look every name up at once."""

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


@pytest.mark.parametrize(
    ("name", "value"),
    [("target", "megatrom"), ("profile", "quick"), ("precision", "bf61"), ("optimizer", "adamm")],
)
def test_an_unknown_name_is_refused_at_once(name: str, value: str) -> None:
    job: dict[str, Any] = {**JOB, name: value}
    with pytest.raises(MeshwrightError, match=value):
        Problem.load(model(), cluster("dgx-h100:2"), job)
