"""A plan priced under each schedule that can run it."""

from dataclasses import replace

import pytest

from meshwright.planner.pins import read_pins
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from meshwright.planner.schedule_prices import price_schedules
from tests.planner.emit.cases import case


@pytest.mark.parametrize(
    ("degrees", "names"),
    [
        ({"tp": 2, "pp": 4}, {"1f1b", "gpipe", "1f1b_ahead", "zb1p", "zb2p"}),
        ({"tp": 2, "pp": 4, "vpp": 4}, {"interleaved", "interleaved_zb"}),
        ({"tp": 4}, set()),
    ],
)
def test_schedules_of_as_many_chunks_are_priced_fastest_first(
    degrees: dict[str, int], names: set[str]
) -> None:
    problem, plan = case(micro_batch_size=1, **degrees)
    found = price_schedules(problem, plan)
    assert {one.schedule for one in found} == names
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
    for one in found:
        if one.schedule == plan.schedule:
            own = price_plan(problem, plan)
            assert (one.step_time_s, one.fits) == (own.step_time_s, own.fits)


def test_weight_passes_that_fill_the_bubble_are_faster_and_a_pin_hides_nothing() -> None:
    problem, plan = case(tp=2, pp=4, micro_batch_size=1)
    found = {one.schedule: one for one in price_schedules(problem, plan)}
    assert found["zb1p"].step_time_s < found["1f1b"].step_time_s
    pinned = replace(problem.job, choices=read_pins({"schedule": "1f1b"}))
    again = price_schedules(Problem(problem.model, problem.cluster, pinned), plan)
    assert {one.schedule: one for one in again} == found
    assert again[0].to_dict()["schedule"] == again[0].schedule


def test_a_target_s_schedules_alone_are_priced() -> None:
    problem, plan = case(tp=2, pp=4, micro_batch_size=1)
    job = replace(problem.job, target="megatron")
    found = price_schedules(Problem(problem.model, problem.cluster, job), replace(plan, target="megatron"))
    assert {one.schedule for one in found} == {"1f1b"}
