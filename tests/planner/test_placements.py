"""A plan priced in each order of its dimensions."""

from dataclasses import replace

import pytest

from meshwright.planner.pins import read_pins
from meshwright.planner.placements import price_placements
from meshwright.planner.pricing import price_plan
from meshwright.planner.problem import Problem
from tests.planner.emit.cases import case


def test_each_order_of_the_dimensions_in_use_is_priced_once() -> None:
    problem, plan = case(tp=2, cp=2, pp=2, dp=2, micro_batch_size=1)
    found = price_placements(problem, plan)
    assert len({one.order for one in found}) == len(found) == 6
    assert all(one.order[0] == "tp" for one in found)
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
    own = next(one for one in found if one.placement == plan.placement)
    assert own.step_time_s == price_plan(problem, plan).step_time_s


@pytest.mark.parametrize(("degrees", "orders"), [({"tp": 2, "pp": 2}, 2), ({"cp": 2}, 2), ({"dp": 16}, 1)])
def test_dimensions_of_one_rank_make_no_difference(degrees: dict[str, int], orders: int) -> None:
    problem, plan = case(**degrees)
    assert len(price_placements(problem, plan)) == orders


def test_a_pin_on_the_placement_does_not_hide_what_it_costs() -> None:
    problem, plan = case(tp=2, pp=4, placement="tp,pp,dp")
    pinned = replace(problem.job, choices=read_pins({"placement": "tp,pp,dp"}))
    found = price_placements(Problem(problem.model, problem.cluster, pinned), plan)
    assert found == price_placements(problem, plan)
    assert {one.order for one in found} == {("tp", "dp", "pp"), ("tp", "pp", "dp")}
    assert found[0].to_dict()["placement"] == list(found[0].placement)
