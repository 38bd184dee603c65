"""Plans of different problems are priced together as each is alone."""

from dataclasses import replace

import pytest

from meshwright.costmodels.memory import ITEMS
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.batch import Case, CasePrice, price_cases
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import cluster

PLACES = (
    ("llama-3.1-8b", "dgx-h100:2", {}, {"tp": 4, "pp": 2}),
    ("llama-3.1-8b", "dgx-h100:4", {"sequence_length": 4096}, {"tp": 4, "pp": 2, "recompute": "full"}),
    ("llama-3.1-70b", "dgx-h100:4", {}, {"tp": 8, "pp": 4}),
    ("llama-3.1-70b", "dgx-a100:4", {}, {"tp": 8, "pp": 4}),
    ("llama-3.1-8b", "dgx-h100:2", {"precision": "fp8"}, {"tp": 4, "pp": 2, "vpp": 2}),
    ("llama-3.1-8b", "dgx-h100:2", {"tuning": "lora:r=16"}, {"zero_stage": 3}),
    ("mixtral-8x7b", "dgx-h100:2", {}, {"tp": 2, "ep": 8, "pp": 1}),
    ("llama-3.1-8b", "dgx-h100:2", {"profile": "fsdp2"}, {"zero_stage": 3}),
    ("llama-3.1-8b", "dgx-h100:2", {"optimizer": "adamw-8bit"}, {"tp": 4, "pp": 2}),
)


def drawn(name: str, machines: str, job: dict[str, object], strategy: dict[str, object]) -> Case:
    work = {"global_batch_size": 64, "sequence_length": 8192} | job
    problem = Problem(load_model(name), cluster(machines), Job(**work))  # type: ignore[arg-type]
    return Case(problem, make_plan(problem, **strategy))  # type: ignore[arg-type]


CASES = [drawn(*place) for place in PLACES]


def test_a_batch_prices_as_one_by_one() -> None:
    for case, got in zip(CASES, price_cases(CASES), strict=True):
        assert isinstance(got, CasePrice)
        alone = price_plan(case.problem, case.plan)
        assert got.batch.step_time_s[got.row] == pytest.approx(alone.step_time_s, rel=1e-12)
        for rank, memory in enumerate(alone.memory):
            for item in ITEMS:
                own = got.batch.memory[item][got.row, rank]
                assert own == pytest.approx(memory[item], rel=1e-12), (case.plan.pp, item)


def test_the_order_of_cases_changes_nothing() -> None:
    forth, back = price_cases(CASES), price_cases(CASES[::-1])[::-1]
    for one, other in zip(forth, back, strict=True):
        assert isinstance(one, CasePrice)
        assert isinstance(other, CasePrice)
        assert one.batch.step_time_s[one.row] == pytest.approx(other.batch.step_time_s[other.row], rel=1e-12)


def test_models_of_one_structure_share_a_batch() -> None:
    first, second = price_cases([CASES[2], drawn("llama-3.1-8b", "dgx-h100:4", {}, {"tp": 8, "pp": 4})])
    assert isinstance(first, CasePrice)
    assert isinstance(second, CasePrice)
    assert first.batch is second.batch


def test_a_plan_without_a_price_does_not_spoil_the_others() -> None:
    broken = replace(CASES[0], plan=replace(CASES[0].plan, tp=1024))
    good, bad, also = price_cases([CASES[0], broken, CASES[1]])
    assert isinstance(bad, MeshwrightError)
    assert isinstance(good, CasePrice)
    assert isinstance(also, CasePrice)
    assert price_cases([]) == []
