"""The plan that the headroom forbids is real: faster, within the device, and beyond what may be filled."""

import pytest

from meshwright.planner.field import survey
from meshwright.planner.lost import headroom_words, lost_to_headroom
from meshwright.planner.problem import Problem
from meshwright.planner.result import Result
from meshwright.planner.search import search
from meshwright.planner.solve import solve_problem
from tests.planner.small import SEEDS, known
from tests.referees.problems import random_problem, with_memory


def solved(seed: int, capacity: float, headroom: float) -> tuple[Problem, Result]:
    """Return a problem on a device of that size, with its answer."""
    problem = with_memory(random_problem(seed, 4, 4), capacity)
    problem = problem.leaving(headroom)
    return problem, solve_problem(problem, alternatives=0)


def test_a_lost_plan_is_faster_fits_the_device_and_not_the_room_left() -> None:
    told = 0
    for seed in SEEDS[:12]:
        for capacity in sorted(known(seed)[1])[:-1]:
            _, result = solved(seed, capacity, 0.2)
            lost, best = result.lost_to_headroom, result.estimate
            if lost is None or best is None:
                continue
            told += 1
            assert lost.step_time_s < best.step_time_s
            assert best.usable_bytes < max(lost.peak_bytes) <= lost.capacity_bytes
            assert headroom_words(best, lost) in result.binding
            assert result.to_dict()["lost_to_headroom"]["step_time_s"] == lost.step_time_s
    assert told


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_nothing_is_lost_without_a_headroom_or_where_memory_does_not_bind(seed: int) -> None:
    for capacity, headroom in ((min(known(seed)[1], default=1e15), 0.0), (1e15, 0.2)):
        assert solved(seed, capacity, headroom)[1].lost_to_headroom is None


def test_no_time_is_spent_once_the_clock_has_run_out() -> None:
    problem, result = solved(SEEDS[0], 1e15, 0.2)
    assert result.estimate is not None
    f = survey(problem)
    winner = search(f, lambda: False).best
    assert winner is not None
    assert lost_to_headroom(f, winner, result.estimate, lambda: True) is None
