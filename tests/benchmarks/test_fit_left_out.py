"""Constants are found again from runs that were made with them, and a family that leaves has no say."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pytest

from benchmarks.fit_constants import PROFILE, Constant, Shifts
from benchmarks.fit_left_out import left_out, without
from benchmarks.fit_observable import Observable
from benchmarks.fit_rows import expressed, thinned
from benchmarks.fit_runs import ROOT, Runs, profile_value
from benchmarks.fit_solve import Fit, fitted, votes_error
from benchmarks.rows import BUILT_IN, Row, read_rows

GEMM = Constant("profiles", ROOT, "gemm_fraction")
OWN = Constant("profiles", "fsdp1", "gemm_fraction")
TRUTH = {GEMM: -0.2, OWN: -0.15}
FIELDS = {"profiles": {"gemm_fraction": PROFILE["gemm_fraction"]}}
FAMILIES = ("llm-foundry", "megatron-moe", "dgxc")
ALONE = "llm-foundry"
"""The only one of them that runs FSDP1."""


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    timed = [r for r in read_rows(BUILT_IN) if r.trusted and r.step_time_s is not None]
    return tuple(r for family in FAMILIES for r in thinned([r for r in timed if r.family == family], 25))


def made(shifts: Shifts, slower: Mapping[str, float] | None = None) -> Runs:
    """Return runs as if they had taken what the cost models say under some constants, or longer by family."""
    runs = Runs(expressed(rows()))
    took = {p.row.id: p.step_time_s for p in runs.prices(shifts)}
    factor = slower or {}

    def measured(row: Row) -> float:
        return float(took[row.id] or np.nan) * factor.get(row.family, 1.0)

    seen = Observable("made up", measured, lambda priced: priced.step_time_s, FIELDS)
    return Runs(runs.runs, seen)


def gemm(profile: str, shifts: Shifts) -> float:
    return profile_value(profile, "gemm_fraction", shifts)


@lru_cache(maxsize=1)
def fit() -> Fit:
    return fitted(made(TRUTH), iterations=3)


def test_constants_that_runs_were_made_with_are_found_again() -> None:
    found = fit()
    for profile in (ROOT, "fsdp1"):
        assert gemm(profile, found.shifts) == pytest.approx(gemm(profile, TRUTH), rel=0.05)
    assert votes_error(found.runs, found.residual) < 0.15 * votes_error(found.runs, made(TRUTH).log_ratio({}))


def test_what_a_family_alone_supported_falls_back_when_it_leaves() -> None:
    left = without(fit(), (ALONE,))
    assert gemm("fsdp1", left) == gemm(ROOT, left)
    # without FSDP1 all runs are Megatron's kin: the root's constant and theirs cannot be told apart
    assert gemm("megatron-core", left) == pytest.approx(gemm("megatron-core", TRUTH), rel=0.05)
    still = without(fit(), ("dgxc",))
    assert gemm("fsdp1", still) < 0.95 * gemm(ROOT, still)


def test_a_family_that_leaves_has_no_say() -> None:
    loud = made(TRUTH, {"megatron-moe": 9.0})
    noisy = Fit(loud, fit().shifts, loud.log_ratio(fit().shifts), fit().slopes)
    calm, changed = (without(f, ("megatron-moe",)) for f in (fit(), noisy))
    assert changed == pytest.approx(calm)
    assert without(noisy, ("dgxc",)) != pytest.approx(without(fit(), ("dgxc",)))


def test_each_family_is_priced_with_the_constants_fitted_without_it() -> None:
    pair, found = left_out(fit(), rows(), (("dgxc", "megatron-moe"), (ALONE,)))
    assert {p.row.family for p in pair} == {"dgxc", "megatron-moe"}
    own = made(TRUTH)
    at = [i for i, run in enumerate(own.runs) if run.row.family == ALONE]
    expected = [p.step_time_s for p in own.prices(without(fit(), (ALONE,)), at)]
    assert [p.step_time_s for p in found] == pytest.approx(expected)
