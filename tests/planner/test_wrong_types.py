"""Values of no type that a field has: each is refused in words that name the field, whatever it is."""

from dataclasses import fields
from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.estimate import estimate
from meshwright.planner.job import Job
from meshwright.planner.strategy import Strategy

JOB = {"global_batch_size": 8, "sequence_length": 1024}
ODD: tuple[Any, ...] = (object(), 1j, 2.5, float("nan"), b"x", {1: 2}, [[1]], [None], range(3), len, "\0")
"""What no decision and no field of a job may be."""
JOB_FIELDS = sorted({f.name for f in fields(Job)} - {"choices"} | {"pins", "global_batch_tokens"})
FREE = ("sequence_parallel",)
"""Whose truth counts, whatever it is."""
NUMBERS = ("expert_load",)
"""Any number of at least 1 will do."""


@pytest.mark.parametrize("name", [f.name for f in fields(Strategy) if f.name not in FREE])
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_a_decision_of_no_known_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(MeshwrightError, match=name):
        estimate("llama-3.2-1b", "dgx-h100", JOB, {name: value})


@pytest.mark.parametrize("name", JOB_FIELDS)
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_a_job_s_field_of_no_known_type_is_refused_by_name(name: str, value: Any) -> None:
    if name in NUMBERS and value == ODD[2]:
        return
    own = {key: kept for key, kept in JOB.items() if key != name}
    own = {"sequence_length": 1024} if name == "global_batch_tokens" else own
    with pytest.raises(MeshwrightError, match=name.replace("_", "[_ ]").rstrip("s")):
        estimate("llama-3.2-1b", "dgx-h100", {**own, name: value}, {"tp": 8})
