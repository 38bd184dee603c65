"""Constants live in profiles and accelerators: who inherits what, and which runs a constant reaches."""

from functools import lru_cache

import numpy as np
import pytest

from benchmarks.fit_constants import ACCELERATOR, EVERYWHERE, PROFILE, TABLES, Constant
from benchmarks.fit_file import stored_shifts
from benchmarks.fit_rows import expressed
from benchmarks.fit_runs import (
    ABOUT,
    ROOT,
    Runs,
    lineage,
    profile_value,
    rate_value,
    shifted_profile,
    value_of,
)
from benchmarks.rows import BUILT_IN, read_rows
from meshwright.costmodels.calibration import RATES, rate_factor
from meshwright.costmodels.profiles import find_profile, sourced_profiles
from meshwright.hardware.catalogue import load_accelerator


@lru_cache(maxsize=1)
def few() -> Runs:
    """Return one run of each profile and accelerator."""
    rows = [row for row in read_rows(BUILT_IN) if row.trusted and row.step_time_s is not None]
    first = {(row.framework, row.year, row.accelerator): row for row in reversed(rows)}
    runs = Runs(expressed(list(first.values())[::3]))
    return runs.take(np.flatnonzero(np.isfinite(runs.log_ratio({}))).tolist())


def test_a_child_inherits_a_shift_unless_it_sets_the_value_itself() -> None:
    shift = {Constant("profiles", ROOT, "gemm_fraction"): -0.1}
    for name in tuple(sourced_profiles()):
        sets = any("gemm_fraction" in sourced_profiles()[place] for place in lineage(name)[1:])
        before, after = profile_value(name, "gemm_fraction", {}), profile_value(name, "gemm_fraction", shift)
        assert after == pytest.approx(before * (1 if sets else np.exp(-0.1)))


def test_shifts_of_parent_and_child_add() -> None:
    child = next(name for name in tuple(sourced_profiles()) if lineage(name)[:-1] == (ROOT,))
    both = {Constant("profiles", place, "jitter"): 0.002 for place in (ROOT, child)}
    own = profile_value(child, "jitter", {})
    assert profile_value(child, "jitter", both) == pytest.approx(own + 0.004)


@pytest.mark.parametrize("name", sourced_profiles())
def test_the_stored_constants_are_what_profiles_are_read_with(name: str) -> None:
    shifts = stored_shifts()
    for field in PROFILE:
        expected = getattr(find_profile(name), field)
        assert getattr(shifted_profile(name, shifts), field) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["h100-sxm", "a100-80gb-sxm", "b200-sxm", "gb300", "rtx-4090", "mi300x"])
def test_the_stored_constants_are_what_accelerators_are_read_with(name: str) -> None:
    accelerator = load_accelerator(name)
    for rate in RATES:
        assert rate_value(accelerator, rate, stored_shifts()) == pytest.approx(
            rate_factor(accelerator, rate), rel=1e-4
        )


def test_a_switch_that_a_run_states_is_not_shifted() -> None:
    shift = {Constant("profiles", ROOT, "overlap_tensor"): 0.1}
    assert shifted_profile("generic[overlap_tensor=0.3]", shift).overlap_tensor == 0.3


def test_an_accelerator_inherits_from_its_architecture() -> None:
    h100, a100 = load_accelerator("h100-sxm"), load_accelerator("a100-80gb-sxm")
    shift = {Constant("architectures", h100.architecture, "gemm"): -0.05}
    own = {**shift, Constant("accelerators", "h100-sxm", "gemm"): 0.02}
    assert rate_value(h100, "gemm", shift) == pytest.approx(np.exp(-0.05))
    assert rate_value(h100, "gemm", own) == pytest.approx(np.exp(-0.03))
    assert rate_value(a100, "gemm", own) == 1.0


@pytest.mark.parametrize(
    "constant",
    [
        Constant("profiles", ROOT, "gemm_fraction"),
        Constant("profiles", "megatron-core", "attention_fraction"),
        Constant("profiles", "fsdp2", "data_rate"),
        Constant("architectures", "hopper", "memory"),
        Constant("accelerators", "a100-80gb-sxm", "gemm"),
    ],
    ids=str,
)
def test_a_constant_moves_only_the_runs_that_it_reaches(constant: Constant) -> None:
    runs = few()
    change = runs.log_ratio({constant: -0.3}) - runs.log_ratio({})
    assert np.abs(change[~runs.reached(constant)]).max(initial=0.0) < 1e-9
    assert change[runs.reached(constant)].max(initial=0.0) > 1e-4


def test_a_host_and_a_device_that_wait_for_each_other_are_told_by_the_runs_of_their_stack() -> None:
    runs, constant = few(), Constant("profiles", "megatron-deepspeed", "host_sync")
    change = runs.log_ratio({constant: 0.3}) - runs.log_ratio({})
    assert np.abs(change[~runs.reached(constant)]).max(initial=0.0) < 1e-9
    assert change.min() >= -1e-9
    assert change[runs.reached(constant)].max(initial=0.0) > 1e-4


@pytest.mark.parametrize("rate", ["gemm", "memory"])
def test_faster_hardware_is_never_slower(rate: str) -> None:
    runs = few()
    fast = {Constant("architectures", "hopper", rate): 0.1, Constant("architectures", "ampere", rate): 0.1}
    assert (runs.log_ratio(fast) <= runs.log_ratio({}) + 1e-9).all()


def test_each_family_and_kind_has_one_vote() -> None:
    runs = few()
    weight, groups = runs.weights(3.0), runs.groups
    for group in set(groups):
        own = [w for w, g in zip(weight, groups, strict=True) if g == group]
        assert sum(own) == pytest.approx(3.0 * min(len(own), 5) / 5)


@pytest.mark.parametrize("table", TABLES)
def test_bounds_hold_what_their_constants_start_from(table: str) -> None:
    for bounds in TABLES[table].values():
        assert bounds.low < bounds.high
        assert bounds.reason
    for name in tuple(sourced_profiles()):
        for field, bounds in PROFILE.items():
            value = profile_value(name, field, {})
            assert value == 0 or bounds.low <= value <= bounds.high, (name, field)


def test_a_value_follows_from_its_shift_and_back() -> None:
    for bounds in (*PROFILE.values(), *ACCELERATOR.values()):
        value = 0.5 * (bounds.low + bounds.high)
        assert bounds.moved(value, bounds.shift(value, bounds.high)) == pytest.approx(bounds.high)


def test_values_are_told_at_their_own_place() -> None:
    shift = {
        Constant("architectures", "hopper", "gemm"): 0.05,
        Constant("accelerators", "h100-96gb", "gemm"): 0.1,
    }
    told = [value_of(constant, shift) for constant in shift]
    assert told == pytest.approx([np.exp(0.05), np.exp(0.15)])


@pytest.mark.parametrize("field", sorted(ABOUT))
def test_a_field_says_nothing_about_runs_that_lack_its_subject(field: str) -> None:
    kind = next(tree for tree, fields in TABLES.items() if field in fields)
    constant = Constant(kind, EVERYWHERE, field)
    runs = few()
    others = np.flatnonzero(~runs.concerned(constant))
    more = {constant: 0.1}  # less than no overlap is none
    change = runs.log_ratio(more, others) - runs.log_ratio({}, others)
    assert np.abs(change).max(initial=0.0) < 1e-9
