"""What would make a plan fit: every answer fits, changes one decision or two that need each other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.estimate import estimate_problem
from meshwright.planner.lighter import lighter_plans
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan

JOB = {"global_batch_size": 64, "sequence_length": 8192}


def problem(model: str = "llama-3.1-8b", **more: object) -> Problem:
    return Problem.load(model, "dgx-h100", JOB | more)


def changed(before: Plan, after: Plan) -> set[str]:
    """Return the decisions that differ, without what follows from others."""
    follows = {"dp", "num_microbatches", "chunks", "sequence_parallel", "loss"}
    return {k for k, v in before.to_dict().items() if after.to_dict()[k] != v} - follows


@settings(max_examples=12, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]),
    micro_batch=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "0-7:full"]),
)
def test_each_fits_and_changes_what_it_says(tp: int, micro_batch: int, zero: int, recompute: str) -> None:
    given_problem = problem()
    plan = make_plan(given_problem, tp=tp, micro_batch_size=micro_batch, zero_stage=zero, recompute=recompute)
    found = lighter_plans(given_problem, plan)
    for one in found:
        assert estimate_problem(given_problem, one.estimate.plan).fits
        assert changed(plan, one.estimate.plan) == set(one.changes)
    times = [one.estimate.step_time_s for one in found]
    assert times == sorted(times)
    alone = {name for one in found if len(one.changes) == 1 for name in one.changes}
    assert all(not alone & set(one.changes) for one in found if len(one.changes) == 2)


def test_sharding_the_states_is_found_where_they_are_what_is_too_much() -> None:
    full = problem()
    found = lighter_plans(full, make_plan(full, zero_stage=0))
    assert found[0].changes == {"zero_stage": 3}


def test_two_changes_are_told_where_one_does_not_do() -> None:
    full = problem(target="fsdp")
    found = lighter_plans(full, make_plan(full, zero_stage=3, micro_batch_size=4))
    assert {"recompute": "full", "micro_batch_size": 1} in [one.changes for one in found]


def test_nothing_is_told_where_nothing_helps() -> None:
    huge = problem("llama-3.1-405b")
    assert lighter_plans(huge, make_plan(huge, tp=8)) == ()
