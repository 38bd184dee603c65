"""Estimates price a plan that a person wrote, and refuse one that belongs elsewhere."""

import re
from dataclasses import replace
from typing import Any

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.estimate import check_plan, estimate, estimate_problem
from meshwright.planner.plan import Chunk, Plan
from tests.planner.emit.cases import case, cluster, model

JOB = {"global_batch_size": 128, "sequence_length": 8192}


def test_a_strategy_and_its_plan_have_one_price() -> None:
    problem, plan = case(tp=4, pp=2)
    by_name = estimate(model(), cluster("dgx-h100:2"), JOB, {"tp": 4, "pp": 2})
    assert by_name == estimate("llama-3.1-8b", "dgx-h100:2", JOB, plan)
    assert by_name == estimate_problem(problem, plan)


def _changed(**changes: Any) -> Plan:
    return replace(case(tp=4, pp=2)[1], **changes)


def _chunks(*spans: tuple[int, int, int]) -> tuple[Chunk, ...]:
    return tuple(Chunk(*span) for span in spans)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"recompute": ("none",) * 33}, "recompute has 33 layers"),
    ({"global_batch_size": 64}, "global_batch_size is 64, here it is 128"),
    ({"sequence_length": 4096}, "sequence_length is 4096"),
    ({"chunks": _chunks((0, 0, 34))}, "1 chunks; pp x vpp is 2"),
    ({"chunks": _chunks((0, 0, 10), (1, 11, 34))}, "chunk 1 (11 to 34 on rank 1) must start at layer 10"),
    ({"chunks": _chunks((0, 0, 0), (1, 0, 34))}, "must start at layer 0, hold a layer"),
    ({"chunks": _chunks((1, 0, 10), (0, 10, 34))}, "live on rank 0"),
    ({"chunks": _chunks((0, 0, 10), (1, 10, 33))}, "the chunks end at layer 33"),
    ({"recompute": ("full", *("none",) * 33)}, "layer 0 (full) cannot be recomputed"),
    ({"dp": 4}, "device count"),
    ({"parameters": 3}, "parameters is 3, here it is 8030261248"),
    ({"hidden_size": 4095}, "hidden_size is 4095, here it is 4096"),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[told[:36] for _, told in REFUSED])
def test_a_plan_that_does_not_fit_the_problem_is_refused(changes: dict[str, Any], told: str) -> None:
    problem, _ = case(tp=4, pp=2)
    with pytest.raises(MeshwrightError) as error:
        check_plan(problem, _changed(**changes))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ({"foo": 1}, "'foo' is not a field"),
        ({1: 2}, "'1' is not a field"),
        (None, "a Plan or a strategy's fields"),
        ({"dp": 8, "micro_batch_size": 3}, "nearest: 120 and 144"),
        ({"pp": 10**12}, "too large"),
        ({"recompute": "0-3:full,2-5:none"}, "overlaps"),
    ],
)
def test_a_strategy_that_is_none_is_refused(strategy: Any, told: str) -> None:
    with pytest.raises(MeshwrightError, match=re.escape(told)):
        estimate("llama-3.1-8b", "dgx-h100", {"global_batch_size": 128, "sequence_length": 512}, strategy)


@pytest.mark.parametrize(
    "changes", [{"model": "gpt2"}, {"cluster": "dgx-a100:1"}, {"loss": ""}, {"optimizer": "sgd"}]
)
def test_a_plan_for_something_else_is_refused(changes: dict[str, Any]) -> None:
    problem, _ = case(tp=4, pp=2)
    with pytest.raises(MeshwrightError, match="what it was made for"):
        check_plan(problem, _changed(**changes))
