"""``meshwright learn``: from a log to a profile file that solve and estimate take."""

import json

import pytest

from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.cli.shell import run

JOB = {"global_batch_size": 32, "sequence_length": 4096}
FLAGS = ("--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--global-batch", "32", "--seq-len", "4096")


@pytest.fixture
def log(tmp_path):
    """A log of two runs that took a quarter longer than they are priced at."""
    problem = Problem.load("llama-3.1-8b", "dgx-h100", JOB | {"profile": "fsdp2"})
    rows = []
    for number, fields in enumerate(({"tp": 1, "zero_stage": 3}, {"tp": 4, "micro_batch_size": 2})):
        plan = make_plan(problem, **fields)
        (tmp_path / f"plan-{number}.json").write_text(plan.to_json())
        priced = json.loads(run("estimate", "--plan", str(tmp_path / f"plan-{number}.json"), "--json").stdout)
        rows.append({"plan": f"plan-{number}.json", "step_time_s": 1.25 * priced["step_time_s"]})
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_error_before_and_after_is_shown_and_the_file_is_taken_by_path(log, tmp_path):
    output = tmp_path / "mine.toml"
    done = run("learn", "--log", str(log), "-o", str(output))
    assert done.exit_code == 0, done.stderr
    assert "Mean error of 2 runs: step time 20.0 % before" in " ".join(done.stdout.split())
    plain, learned = (
        json.loads(run("estimate", *FLAGS, "--tp", "4", "--profile", name, "--json").stdout)["step_time_s"]
        for name in ("fsdp2", str(output))
    )
    assert learned > 1.05 * plain


def test_json_tells_runs_and_constants(log):
    told = json.loads(run("learn", "--log", str(log), "--json").stdout)
    assert len(told["runs"]) == 2
    assert told["outside"] == {}
    assert told["constants"]
    assert len(told["constants"]) > len(told["runs"])
    assert (
        f"2 measured step times moved {len(told['constants'])} constants (gemm_fraction" in told["notes"][0]
    )
    assert all(
        abs(r["after_s"] - r["step_time_s"]) < abs(r["before_s"] - r["step_time_s"]) for r in told["runs"]
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-o", "mine.yaml"), "mine.yaml"),
        (("-o", "none/mine.toml"), "none"),
        (("--format", "nanotron"), "nanotron"),
        (("--plan", "none.json"), "none.json"),
    ],
)
def test_bad_input_is_told(log, arguments, told):
    done = run("learn", "--log", str(log), *arguments)
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_constant_outside_its_range_is_marked_and_stays(log, tmp_path):
    """As ``calibrate`` measures it on a machine that is no cluster."""
    own = tmp_path / "own.toml"
    own.write_text('[own]\ninherits = "fsdp2"\nforward_host_s = 9e-5\n')
    arguments = ("learn", "--log", str(log), "--profile", str(own))
    read = json.loads(run(*arguments, "--json").stdout)
    assert read["outside"].keys() == {"forward_host_s"}
    assert 6e-5 < read["outside"]["forward_host_s"] <= 9e-5
    assert "(outside)" in run(*arguments).stdout
