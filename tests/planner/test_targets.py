"""Targets: what each framework can run, by name."""

import pytest

from meshwright.costmodels.profiles import find_profile
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.targets import TARGETS, find_target


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_has_a_profile_and_a_schedule(name: str) -> None:
    target = find_target(name)
    assert find_profile(target.profile).name == target.profile
    assert "1f1b" in target.schedules
    assert target.recompute >= {"none", "full"}
    assert target.interleaved <= target.pipeline


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"any"}))
def test_any_framework_can_do_what_one_can(name: str) -> None:
    one, anyone = find_target(name), find_target("any")
    assert one.zero_stages <= anyone.zero_stages
    assert one.recompute <= anyone.recompute
    assert one.schedules <= anyone.schedules
    assert one.tensor <= anyone.tensor


def test_an_unknown_target_is_refused_with_a_near_name() -> None:
    with pytest.raises(MeshwrightError, match="deepspeed"):
        find_target("deepsped")
