"""Runs of one's own in JSONL: plans by path or in place, strategies, and lines that are wrong."""

import json
from dataclasses import replace

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.observations import Given, read_observations
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan

JOB = {"global_batch_size": 16, "sequence_length": 2048}
PROBLEM = Problem.load("llama-3.1-8b", "dgx-h100", JOB)
PLAN = make_plan(PROBLEM, tp=2, zero_stage=1)
BROKEN = {**json.loads(PLAN.to_json()), "chunks": [{"rank": 0, "start": 0, "stop": 7}]}


@pytest.fixture
def log(tmp_path):
    (tmp_path / "plan.json").write_text(PLAN.to_json())

    def written(*rows):
        path = tmp_path / "run.jsonl"
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        return path

    return written


def test_lines_of_one_plan_count_with_their_median_and_their_largest_peak(log):
    rows = [{"plan": "plan.json", "step_time_s": t, "peak_memory_bytes": 1e9 * t} for t in (1.0, 9.0, 2.0)]
    (one,) = read_observations(log(*rows), Given(), None).runs
    assert (one.plan, one.step_time_s, one.peak_bytes) == (PLAN, 2.0, 9e9)
    assert one.problem.job.sequence_length == 2048


def test_a_plan_is_looked_up_once_however_many_steps_of_it_are_told(log, monkeypatch):
    asked, load = [], Problem.load
    monkeypatch.setattr(Problem, "load", lambda *given: asked.append(given) or load(*given))
    rows = [{"plan": "plan.json", "step_time_s": 1.0 + n, "peak_memory_bytes": 1e9} for n in range(9)]
    (one,) = read_observations(log(*rows), Given(), None).runs
    assert one.step_time_s == 5.0
    assert len(asked) == 1
    two = [*rows, {**rows[0], "cluster": "dgx-a100"}]
    runs = read_observations(log(*two), Given(), None).runs
    assert [run.problem.cluster.name for run in runs] == ["dgx-h100:1", "dgx-a100:1"]


def test_a_line_ends_where_json_lines_end(log, tmp_path):
    name = "one\u2028plan\x85of\u2029many.json"
    (tmp_path / "plan.json").rename(tmp_path / name)
    line = json.dumps({"plan": name, "step_time_s": 1.0}, ensure_ascii=False)
    (one,) = read_observations(log(f"{line}\r", line), Given(), None).runs
    assert (one.plan, one.step_time_s) == (PLAN, 1.0)


def test_a_plan_in_place_and_a_strategy_are_the_same_as_a_path(log):
    told = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "job": JOB}
    rows = [
        {"plan": json.loads(PLAN.to_json()), "step_time_s": 1.0},
        {**told, "strategy": {"tp": 2, "zero_stage": 1}, "step_time_s": 3.0},
    ]
    (one,) = read_observations(log(*rows), Given(), None).runs
    assert (one.plan, one.step_time_s) == (PLAN, 2.0)


@pytest.mark.parametrize("place", ["beside", "below"])
def test_paths_are_looked_for_beside_the_log_and_then_from_here(tmp_path, monkeypatch, place):
    """One rule for plan, model, cluster and profile; a log's own folder comes first."""
    logs, here = tmp_path / "logs", tmp_path / "here"
    for folder in (logs, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    own = logs if place == "beside" else here
    cluster = "name: mine\naccelerator: h100-sxm\ndevices_per_host: 8\ntiers: [{name: n, fan_out: 8, "
    (own / "mine.yaml").write_text(cluster + "link: on_package}]\n")
    (own / "mine.toml").write_text('[mine]\ninherits = "fsdp2"\n')
    told = {"model": "llama-3.1-8b", "cluster": "mine.yaml", "job": JOB | {"profile": "mine.toml"}}
    row = {**told, "strategy": {"tp": 2, "zero_stage": 1}, "step_time_s": 3.0}
    (logs / "run.jsonl").write_text(json.dumps(row))
    (one,) = read_observations(logs / "run.jsonl", Given(), None).runs
    assert one.problem.cluster.name.startswith("mine")
    assert one.plan.profile == str(own / "mine.toml")
    (own / "plan.json").write_text(one.plan.to_json())
    (logs / "run.jsonl").write_text(
        json.dumps({"plan": "plan.json", "cluster": "mine.yaml", "step_time_s": 3.0})
    )
    (again,) = read_observations(logs / "run.jsonl", Given(), None).runs
    assert (again.plan, again.problem.cluster) == (one.plan, one.problem.cluster)


def test_what_is_given_comes_before_what_the_plan_records(log):
    (one,) = read_observations(
        log({"step_time_s": 1.0}), Given(plan=PLAN, cluster="dgx-a100", profile="fsdp2"), None
    ).runs
    assert one.problem.cluster.accelerator.name.startswith("a100")
    assert (one.plan.profile, one.problem.profile.name) == ("fsdp2", "fsdp2")


def test_a_framework_s_log_needs_the_plan_that_ran(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("elapsed time per iteration (ms): 1500.0 |")
    (one,) = read_observations(path, Given(plan=PLAN), None).runs
    assert one.step_time_s == 1.5
    with pytest.raises(MeshwrightError, match="--plan"):
        read_observations(path, Given(), None)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{", "no JSON object"),
        ("[" * 10_000, "no JSON object"),
        ({"plan": "plan.json"}, "step_time_s"),
        ({"plan": "plan.json", "step_time_s": True}, "step_time_s"),
        ({"plan": "plan.json", "step_time_s": float("inf")}, "step_time_s"),
        ({"plan": "plan.json", "step_time_s": 1, "peak_memory_bytes": -1}, "peak_memory_bytes"),
        ('{"plan": "plan.json", "step_time_s": 1, "step_time_s": 2}', "field 'step_time_s' is given twice"),
        ('{"plan": "plan.json", "step_time_s": 1' + "0" * 400 + "}", "step_time_s.*from 1e-06 to 1e"),
        ({"plan": "plan.json", "step_time_s": 1e-300}, "step_time_s"),
        ({"plan": "plan.json", "step_time_s": 1, "peak_memory_bytes": 10**400}, "peak_memory_bytes"),
        ({"plan": "plan.json", "step_time_s": 1, "peak_memory_bytes": 1e-300}, "peak_memory_bytes"),
        ({"plan": "plan.json", "step_time_s": 1, "model": []}, "model"),
        ({"plan": "plan.json", "step_time_s": 1, "cluster": ""}, "cluster"),
        ({"plan": "plan.json", "step_time_s": 1, "model": "llama-3.1-70b"}, "plan: recompute has 34 layers"),
        ({"plan": BROKEN, "step_time_s": 1}, "plan: .*chunk"),
        ({"plan": "plan.json", "step_time_s": 1, "speed": 1}, "speed"),
        ({"plan": "none.json", "step_time_s": 1}, "none.json"),
        ({"plan": 3, "step_time_s": 1}, "plan"),
        ({"plan": "plan.json", "model": "llama-9", "step_time_s": 1}, "llama-9"),
        ({"step_time_s": 1}, "give plan"),
        ({"model": "llama-3.1-8b", "cluster": "dgx-h100", "job": JOB, "step_time_s": 1}, "strategy"),
        (
            {
                "model": "llama-3.1-8b",
                "cluster": "dgx-h100",
                "job": JOB,
                "strategy": {"tq": 2},
                "step_time_s": 1,
            },
            "tq",
        ),
    ],
)
def test_a_wrong_line_is_told_by_number_and_field(log, row, told):
    with pytest.raises(MeshwrightError, match=rf"line 2.*{told}"):
        read_observations(log({"plan": "plan.json", "step_time_s": 1.0}, row), Given(), None)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("elapsed time per iteration (ms): 1e-320 |", "step time"),
        ("'train_steps_per_second': 1e-320", "step time"),
        ("tps: 1e308", "step time"),
        ("memory: 1e300GiB tps: 1000", "peak memory"),
    ],
)
def test_a_framework_s_log_with_an_absurd_number_is_refused(tmp_path, line, told):
    path = tmp_path / "run.log"
    path.write_text(line)
    with pytest.raises(MeshwrightError, match=told):
        read_observations(path, Given(plan=PLAN), None)


def test_an_empty_log_is_refused(log):
    with pytest.raises(MeshwrightError, match="no line"):
        read_observations(log(""), Given(), None)


def test_lines_that_are_left_out_or_taken_together_are_named(log):
    """A run that failed spoils no log, and nothing happens to a line in silence."""
    other = replace(PLAN, micro_batch_size=2, num_microbatches=PLAN.num_microbatches // 2).to_dict()
    rows = [
        {"plan": "plan.json", "step_time_s": 1.0},
        {"plan": "plan.json", "step_time_s": None, "peak_memory_bytes": None},
        {"plan": "plan.json", "step_time_s": 3.0, "peak_memory_bytes": float("nan")},
        {"plan": other, "step_time_s": 5.0},
        {"plan": "plan.json", "step_time_s": float("nan")},
        {"plan": "plan.json", "step_time_s": 2.0},
        {"plan": "plan.json", "step_time_s": 4.0},
    ]
    got = read_observations(log(*rows), Given(), None)
    assert [run.step_time_s for run in got.runs] == [2.5, 5.0]
    left_out, together = got.notes
    assert "lines 2, 5 are left out" in left_out
    assert "lines 1, 3, 6-7 are of one plan" in together
    assert read_observations(log(rows[0], rows[3]), Given(), None).notes == ()


def test_a_log_of_failed_runs_alone_is_refused(log):
    with pytest.raises(MeshwrightError, match="no line has a step_time_s"):
        read_observations(log({"plan": "plan.json", "step_time_s": None}), Given(), None)
