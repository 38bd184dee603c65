"""The closed loop's jobs are legal, span what they should, and its figures are those of the runs."""

import json
from dataclasses import replace

import pytest

from benchmarks.closed_loop import (
    LARGE,
    PICK,
    SMALL,
    Job,
    Run,
    cpu_jobs,
    figures,
    gpu_jobs,
    regret_of_pick,
    report,
)
from meshwright.planner.calibrate.fits import fitted
from meshwright.planner.calibrate.machine_file import paths
from meshwright.planner.calibrate.session import write
from meshwright.planner.estimate import estimate_problem
from meshwright.planner.problem import Problem
from meshwright.planner.runtime.limits import check_plan
from meshwright.planner.strategy import make_plan
from tests.planner.calibrate.machines import GPU_MACHINE, MACHINE, samples


def priced(job: Job, tmp_path, config):
    """Every layout of a job on a made-up machine, checked as apply checks it."""
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    machine = replace(MACHINE if job.precision == "fp32" else GPU_MACHINE, inside=job.ranks)
    files = paths(tmp_path / f"machine-{job.ranks}.yaml")
    write(files, machine, fitted(samples(machine), machine), samples(machine))
    problem = Problem.load(str(tmp_path / "model"), str(files[0]), job.fields | {"profile": str(files[1])})
    found = {}
    for name, fields in job.layouts.items():
        plan = make_plan(problem, **fields)
        check_plan(plan)
        found[name] = estimate_problem(problem, plan)
    return found


@pytest.mark.parametrize("job", cpu_jobs(), ids=lambda j: f"{j.ranks} ranks, {j.length} tokens")
def test_every_layout_of_a_cpu_can_be_applied(job, tmp_path):
    assert len(priced(job, tmp_path, SMALL)) == len(job.layouts)


@pytest.mark.parametrize("job", gpu_jobs(), ids=lambda j: f"{j.length} tokens")
def test_every_layout_of_a_gpu_can_be_applied(job, tmp_path):
    found = priced(job, tmp_path, LARGE)
    assert found["micro 8 full"].peak_bytes[0] < found["micro 8"].peak_bytes[0]


def test_enough_layouts_whose_step_times_differ_enough(tmp_path):
    prices = [p for job in cpu_jobs() if job.ranks <= 2 for p in priced(job, tmp_path, SMALL).values()]
    times = [p.step_time_s for p in prices]
    assert len(times) >= 12
    assert max(times) >= 4 * min(times)


def run(name, predicted, measured, length=256):
    return Run(2, length, name, predicted, (measured,) * 3, 110.0, 100.0, True)


RUNS = [run("dp", 1.1, 1.0), run("tp", 3.0, 2.0), run(PICK, 2.0, 1.5)]


def test_the_pick_s_regret_is_its_time_over_the_fastest_one_s():
    assert regret_of_pick(RUNS) == pytest.approx(0.5)
    assert regret_of_pick(RUNS[:2]) is None


def test_figures_are_those_of_the_runs():
    text = "\n".join(figures(RUNS))
    assert "3 layouts, step times span 2.0x" in text
    assert "mean error 31.1%, tau 1.00" in text  # of 10, 50 and 33.3 %
    assert "solve's pick 50.0% at most, of the fastest predicted layout 0.0%" in text
    assert "peak memory: mean error 10.0%" in text


def test_the_report_has_a_line_a_run_and_tells_four_ranks_apart():
    lines = report([*RUNS, *(replace(r, ranks=4) for r in RUNS[:2])])
    assert sum(" dp " in line for line in lines) == 2
    assert [line for line in lines if line.startswith("4 ranks: 2 layouts")]


def test_a_layout_that_runs_out_of_memory_is_told_with_what_was_said_of_it():
    lines = report([*RUNS, replace(RUNS[0], name="large", times_s=(), fits=False)])
    assert [
        line for line in lines if "large" in line and line.endswith("out of memory; called: does not fit")
    ]
    assert any("3 layouts" in line for line in lines)
