"""What measured runs leave unexplained: which group is asked, and what its quantiles say."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels import residuals
from meshwright.costmodels.profiles import sourced_profiles
from meshwright.costmodels.residuals import (
    FAMILIES,
    LEAST,
    Spread,
    ancestry,
    measured_accelerators,
    memory_spread,
    spreads,
    step_time_spread,
)
from meshwright.hardware.catalogue import load_accelerator

H100, B200 = load_accelerator("h100-sxm"), load_accelerator("b200-sxm")
Table = Callable[..., None]


MANY = max(FAMILIES.values())


def of(runs: int = LEAST, error: float = 0.1, families: int = MANY, **fields: str) -> dict[str, Any]:
    return {"of": fields, "runs": runs, "families": families, "errors": [0.0, error]}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """Let a test write the groups of a table; what was read before is forgotten, and again afterwards."""

    def write(what: str, *groups: dict[str, Any]) -> None:
        monkeypatch.setattr(residuals, "residuals", lambda: {what: {"shares": [0, 1], "groups": groups}})
        residuals._index.cache_clear()

    yield write
    residuals._index.cache_clear()


@given(
    st.lists(st.floats(-1, 3), min_size=2, max_size=9),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_larger_share_of_the_runs_has_a_larger_error(errors: list[float], one: float, other: float) -> None:
    shares = tuple(i / (len(errors) - 1) for i in range(len(errors)))
    spread = Spread({}, LEAST, MANY, shares, tuple(sorted(errors)))
    low, high = sorted((one, other))
    assert min(errors) <= spread.quantile(low) <= spread.quantile(high) <= max(errors)


def test_the_nearest_group_with_runs_enough_is_asked(table: Table) -> None:
    groups = [
        of(profile="megatron-bridge", accelerator="h100-sxm", kind="dense"),
        of(profile="megatron-bridge", kind="dense"),
        of(profile="megatron-core", accelerator="h100-sxm", kind="dense"),
        of(accelerator="h100-sxm", kind="dense"),
        of(architecture="hopper", kind="dense"),
        of(kind="dense"),
        of(),
    ]
    for first in range(len(groups)):
        for lacking in ({"runs": LEAST - 1}, {"families": FAMILIES["step_time"] - 1}):
            few = [{**g, **lacking} for g in groups[:first]]
            table("step_time", *few, *groups[first:])
            found = step_time_spread("megatron-bridge[norm=eager]", H100, "dense")
            assert found is not None
            assert dict(found.group) == groups[first]["of"]
    table("step_time", of(LEAST - 1))
    assert step_time_spread("megatron-bridge", H100, "dense") is None


def test_where_nothing_was_measured_runs_that_nothing_was_fitted_to_tell(table: Table) -> None:
    unseen = of(accelerator="unseen", kind="dense")
    table("step_time", unseen, of(kind="dense"), of(profile="fsdp2", kind="dense"))
    found = step_time_spread("fsdp2", B200, "dense")
    assert found is not None
    assert dict(found.group) == unseen["of"]


def test_what_a_device_holds_comes_first_then_the_nearest_stack(table: Table) -> None:
    groups = [
        of(profile="unsloth", counter="reserved"),
        of(profile="peft", counter="nvidia-smi"),
        of(counter="reserved"),
        of(profile="unsloth", counter="allocated"),
        of(profile="peft", counter="active"),
        of(),
    ]
    for first in range(len(groups)):
        table("memory", *groups[first:])
        found = memory_spread("unsloth")
        assert found is not None
        assert dict(found.group) == groups[first]["of"]


@pytest.mark.parametrize("name", sourced_profiles())
def test_ancestors_end_short_of_the_profile_that_all_share(name: str) -> None:
    own = ancestry(name)
    assert "generic" not in own
    assert own[:1] == (() if name == "generic" else (name,))


@pytest.mark.parametrize("what", ["step_time", "memory"])
def test_the_files_quantiles_rise_and_all_runs_are_a_group(what: str) -> None:
    found = spreads(what)
    every = next(s for s in found if not s.group)
    for spread in found:
        assert 0 < spread.runs <= every.runs
        assert all(a < b for a, b in pairwise(spread.shares))
        assert all(a <= b for a, b in pairwise(spread.errors))
        if what == "step_time":
            assert spread.errors[0] >= 0
    assert len({frozenset(s.group.items()) for s in found}) == len(found)


def test_measured_accelerators_are_in_the_catalogue() -> None:
    for name in measured_accelerators():
        assert load_accelerator(name).name == name
