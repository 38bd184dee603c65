"""The job: what is allowed for each number, and how decisions are pinned."""

import re
from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.choice import Choice, choice
from meshwright.planner.job import Job
from meshwright.planner.tuning import Tuning

CHOICES: list[tuple[Any, list[Any], list[Any]]] = [
    (4, [4], [2, 8]),
    ("4", [4], [2, 8]),
    ([2, 4], [2, 4], [1, 8]),
    ((2, 4), [2, 4], [8]),
    ("2,4", [2, 4], [1, 8]),
    ("<=8", [1, 8], [9, 16]),
    (">=2", [2, 64], [1]),
    ("!3", [0, 1, 2], [3]),
    ({"min": 2, "max": 8}, [2, 5, 8], [1, 9]),
    ({"min": 2}, [2, 100], [1]),
    ({}, [1, 100], []),
    ("true", [True], [False]),
    ("off", [False], [True]),
    (True, [True], [False]),
    ("full", ["full"], ["none"]),
    ("none,full", ["none", "full"], ["selective"]),
    (Choice(minimum=3), [3], [2]),
]


@pytest.mark.parametrize(("written", "passes", "fails"), CHOICES)
def test_a_choice_admits_what_was_written(written: Any, passes: list[Any], fails: list[Any]) -> None:
    wanted = choice(written)
    assert all(wanted.admits(v) for v in passes)
    assert not any(wanted.admits(v) for v in fails)


def test_a_bound_that_is_no_number_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="'many' is not a number"):
        choice("<=many")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"global_batch_size": 0}, "global_batch_size"),
    ({"global_batch_size": True}, "global_batch_size"),
    ({"global_batch_size": 1.5}, "global_batch_size"),
    ({"global_batch_size": 10**16}, "global_batch_size"),
    ({"sequence_length": -1}, "sequence_length"),
    ({"sequence_length": "8192"}, "sequence_length"),
    ({"tokens": 0}, "tokens"),
    ({"headroom": 1.0}, "headroom"),
    ({"headroom": -0.1}, "headroom"),
    ({"headroom": float("nan")}, "headroom"),
    ({"batch": 3}, "'batch' is not a field"),
    ({"target_length": 0}, "target_length"),
    ({"image_tokens": -1}, "image_tokens"),
    ({"tuning": "lora:r=0"}, "tuning: rank 0"),
    ({"tuning": 16}, "tuning: 16"),
    ({"oom_risk": 0.0}, "oom_risk: 0.0 is not a number above 0 and at most 0.5"),
    ({"oom_risk": 0.6}, "oom_risk: 0.6"),
    ({"oom_risk": True}, "oom_risk: True"),
    ({"oom_risk": float("nan")}, "oom_risk"),
    ({"expert_load": 0.9}, "expert_load: 0.9 is not a number of at least 1"),
    ({"expert_load": True}, "expert_load"),
    ({"expert_load": float("nan")}, "expert_load"),
    ({"mtp": "yes"}, "mtp: 'yes' is not true or false"),
    ({"pins": {"speed": 3}}, "speed"),
]


@pytest.mark.parametrize(("changes", "told"), BAD)
def test_a_bad_field_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(MeshwrightError, match=told):
        Job.from_mapping({"global_batch_size": 8, "sequence_length": 128, **changes})


def test_an_unknown_decision_is_refused_whoever_builds_the_job() -> None:
    with pytest.raises(MeshwrightError, match="'speed' is not a decision"):
        Job(8, 128, choices={"speed": Choice()})


def test_a_tuning_is_read_from_text_and_mappings_alike() -> None:
    text, mapping = (Job(8, 128, tuning=t) for t in ("lora:r=8", {"kind": "lora", "rank": 8}))  # type: ignore[arg-type]
    assert text == mapping
    assert text.tuning == Tuning("lora", 8)
    assert Job(8, 128).tuning == Tuning()


def test_lengths_and_the_experts_load_are_kept() -> None:
    job = Job.from_mapping(
        {
            "global_batch_size": 8,
            "sequence_length": 128,
            "target_length": 64,
            "image_tokens": 32,
            "expert_load": 1.25,
            "mtp": True,
        }
    )
    assert (job.target_length, job.image_tokens, job.expert_load, job.mtp) == (64, 32, 1.25, True)


def test_pins_become_choices() -> None:
    job = Job.from_mapping({"global_batch_size": 8, "sequence_length": 128, "pins": {"tp": 4, "pp": "<=2"}})
    assert job.choices["tp"].admits(4)
    assert not job.choices["tp"].admits(2)
    assert not job.choices["pp"].admits(4)


def test_a_batch_in_tokens_is_counted_in_sequences():
    job = Job.from_mapping({"global_batch_tokens": 4096, "sequence_length": 512})
    assert job.global_batch_size == 8


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "sequence_length is missing"),
        ({"sequence_length": 8}, "are missing; give one"),
        ({"sequence_length": 8, "global_batch_size": 1, "global_batch_tokens": 8}, "cannot both be given"),
        ({"sequence_length": 8, "global_batch_tokens": 9}, "nearest: 8 (1 sequence) and 16 (2 sequences)"),
        ({"sequence_length": 8, "global_batch_size": 1, "precision": ["bf16"]}, "precision"),
        ({"sequence_length": 8, "global_batch_size": 1, "headroom": "a lot"}, "headroom"),
        ({"sequence_length": 8, "global_batch_size": 1, "allow_idle": "yes"}, "allow_idle"),
        ({"sequence_length": 8.0, "global_batch_size": 1}, "sequence_length"),
        ([("sequence_length", 8)], "a mapping or a Job"),
    ],
)
def test_bad_mappings_are_refused_by_field(data, said):
    with pytest.raises(MeshwrightError, match=re.escape(said)):
        Job.from_mapping(data)
