"""Headroom: what measured peaks ask for, within limits, unless the job says otherwise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.profiles import sourced_profiles
from meshwright.costmodels.residuals import Spread
from meshwright.hardware.catalogue import load_accelerator
from meshwright.planner import headroom
from meshwright.planner.headroom import MOST, headroom_of, measured_headroom
from meshwright.planner.job import MOST_RISK, Job
from tests.planner.emit.cases import case

DEVICES = [load_accelerator(name) for name in ("h100-sxm", "a100-40gb-sxm", "rtx-4090", "mi300x")]
RISKS = st.floats(1e-4, MOST_RISK)


@given(st.sampled_from(tuple(sourced_profiles())), st.sampled_from(DEVICES), RISKS, RISKS)
def test_less_risk_asks_for_no_less_room_within_the_limits(
    profile: str, device: object, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    careful, bold = (measured_headroom(risk, profile, device).share for risk in (low, high))  # type: ignore[arg-type]
    least = device.achieved.context_bytes / device.memory_bytes  # type: ignore[attr-defined]
    assert min(least, MOST) <= bold <= careful <= MOST


@given(st.floats(-0.2, 0.5), RISKS)
def test_a_peak_that_errs_by_the_quantile_fits_exactly(error: float, risk: float) -> None:
    spread = Spread({"counter": "reserved"}, 40, 2, (0.0, 1.0), (error, error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headroom, "memory_spread", lambda profile: spread)
        found = measured_headroom(risk, "generic", DEVICES[0])
    if 0.02 < error < 0.1:
        assert (1 - found.share) * (1 + error) == pytest.approx(1.0)
    assert "40 measured peaks (reserved memory)" in found.origin
    assert ("no more than 10% is ever asked for" in found.origin) == (error / (1 + error) > MOST)


def test_a_given_headroom_is_taken_and_said_to_be_given() -> None:
    job = Job(8, 128, headroom=0.033)
    found = headroom_of(job, "generic", DEVICES[0])
    assert (found.share, found.origin, found.oom_risk) == (0.033, "as given", None)


def test_a_plan_keeps_the_share_and_its_own_file_finds_the_origin_again() -> None:
    problem, plan = case(zero_stage=3, job={"headroom": None})
    assert plan.headroom == problem.headroom.share
    again = replace(problem, job=replace(problem.job, headroom=plan.headroom))
    assert again.headroom == problem.headroom


def test_what_is_usable_is_what_the_headroom_leaves() -> None:
    from meshwright.planner.estimate import estimate_problem

    price = estimate_problem(*case(zero_stage=3, job={"headroom": None, "oom_risk": 0.2}))
    assert price.headroom is not None
    assert price.usable_bytes == pytest.approx(price.capacity_bytes * (1 - price.headroom.share))
    assert price.headroom.oom_risk == 0.2
