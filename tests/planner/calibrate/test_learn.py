"""What runs teach: constants move as far as the runs tell, and no further than physics allows."""

from dataclasses import replace

import pytest

from meshwright.costmodels.profiles import find_profile
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.bounds import MEMORY, PROFILE
from meshwright.planner.calibrate.learn import Priced, grouped, learned
from meshwright.planner.calibrate.observations import Observation
from meshwright.planner.calibrate.profile_file import write_learned
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan

JOB = {"global_batch_size": 32, "sequence_length": 4096, "profile": "fsdp2"}
LAYOUTS = (
    {"micro_batch_size": 1, "zero_stage": 3},
    {"micro_batch_size": 2, "zero_stage": 2, "recompute": "full"},
    {"tp": 2, "micro_batch_size": 2, "zero_stage": 3},
    {"tp": 4, "micro_batch_size": 4, "zero_stage": 2},
    {"tp": 8, "micro_batch_size": 1, "recompute": "full"},
)


@pytest.fixture(scope="module")
def problem():
    return Problem.load("llama-3.1-8b", "dgx-h100", JOB)


def runs(problem, factor=1.0, peak=None, **changes):
    """Runs on a machine whose stack differs from the profile in some constants."""
    profile, found = replace(problem.profile, **changes), []
    for layout in LAYOUTS:
        run = Observation(problem, make_plan(problem, **layout), 1.0)
        got = Priced.of([run], [0]).price(profile)
        seconds = factor * float(got.step_time_s[0])
        held = None if peak is None else peak * float(got.peak_bytes[0].max())
        found.append(replace(run, step_time_s=seconds, peak_bytes=held))
    return found


def mean_error(found, side):
    return sum(abs(getattr(o, side) / o.observation.step_time_s - 1) for o in found.outcomes) / len(LAYOUTS)


def test_runs_priced_together_cost_what_each_costs_alone(problem):
    every = runs(problem)
    (group,) = grouped(every)
    together = group.price(problem.profile).step_time_s
    assert together.tolist() == pytest.approx([run.step_time_s for run in every], rel=1e-12)


def test_runs_that_the_profile_explains_move_nothing(problem):
    found = learned(runs(problem))
    assert found.moved == {}
    assert mean_error(found, "after_s") < 1e-3


@pytest.mark.parametrize(
    "changes",
    [{"gemm_fraction": 0.85}, {"layer_rate": 0.5, "data_rate": 0.6}, {"step_fixed_s": 0.2}],
    ids=lambda c: ", ".join(c),
)
def test_the_error_falls_and_what_differs_moves_its_way(problem, changes):
    found = learned(runs(problem, **changes))
    assert mean_error(found, "after_s") < 0.35 * mean_error(found, "before_s")
    for name, value in changes.items():
        old = getattr(problem.profile, name)
        assert (getattr(found.profile, name) - old) * (value - old) > 0


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_no_run_moves_a_constant_beyond_physics(problem, factor):
    found = learned(runs(problem, factor))
    base = problem.profile
    for name, bounds in PROFILE.items():
        low, high = min(bounds.low, getattr(base, name)), max(bounds.high, getattr(base, name))
        assert low * (1 - 1e-9) <= getattr(found.profile, name) <= high * (1 + 1e-9)
    assert mean_error(found, "after_s") < mean_error(found, "before_s")


def test_peaks_move_memory_s_constants_and_no_others(problem):
    found = learned(runs(problem, peak=1.04))
    assert set(found.moved) <= set(MEMORY)
    assert found.moved
    ratios = [o.after_bytes / o.observation.peak_bytes for o in found.outcomes]
    assert max(abs(r - 1) for r in ratios) < 0.02


def test_runs_of_two_profiles_are_refused(problem):
    other = Problem.load("llama-3.1-8b", "dgx-h100", JOB | {"profile": "deepspeed"})
    with pytest.raises(MeshwrightError, match=r"2 profiles.*--profile"):
        learned([*runs(problem), *runs(other)])
    with pytest.raises(MeshwrightError, match="no run"):
        learned([])


@pytest.mark.parametrize("switches", ["", "[attention=flash-1]"])
def test_a_learned_profile_is_read_by_its_path_and_can_be_learned_from_again(tmp_path, switches):
    first = Problem.load("llama-3.1-8b", "dgx-h100", JOB | {"profile": f"fsdp2{switches}"})
    found, path = learned(runs(first, gemm_fraction=0.85)), tmp_path / "mine.toml"
    write_learned(path, found, ["run.jsonl"])
    read = find_profile(str(path))
    assert read.attention == first.profile.attention
    assert read.gemm_fraction == pytest.approx(found.profile.gemm_fraction, rel=1e-4)
    second = Problem.load("llama-3.1-8b", "dgx-h100", JOB | {"profile": str(path)})
    again = learned(runs(second))
    write_learned(tmp_path / "again.toml", again, ["run.jsonl"])
    same = find_profile(str(tmp_path / "again.toml"))
    assert same.gemm_fraction == pytest.approx(read.gemm_fraction, rel=1e-3)
    assert (same.working_copy, same.attention) == (read.working_copy, read.attention)


def test_fewer_runs_than_constants_that_moved_are_told(problem):
    every = runs(problem, 1.4, peak=1.2)
    for few in (every[:1], every[:2]):
        found = learned(few)
        assert len(found.notes) == (len(few) < len(set(found.moved) & set(PROFILE))) + (
            len(few) < len(set(found.moved) & set(MEMORY))
        )
        assert found.notes[0].startswith(f"{len(few)} measured step time")
        assert all(name in found.notes[0] for name in set(found.moved) & set(PROFILE))
    assert learned(runs(problem)).notes == ()


@pytest.mark.parametrize("name", [*PROFILE, *MEMORY])
def test_a_constant_is_on_its_bound_only_where_the_bound_holds_it(name):
    bounds = {**PROFILE, **MEMORY}[name]
    for bound, inward in ((bounds.low, 1), (bounds.high, -1)):
        assert bounds.touches(bound)
        if bound:
            assert not bounds.touches(bounds.moved(bound, inward * bounds.width / 10))
    assert not bounds.touches(bounds.moved(bounds.low, bounds.width / 10))
