"""``meshwright solve`` around the search: exit codes, JSON, files, notes; the search itself is made up."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import solve as command
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.result import Result
from meshwright.planner.strategy import make_plan
from tests.cli import examples
from tests.cli.shell import JOB, run, shell

PROMISED = {"status", "objective_s", "lower_bound_s", "runtime_s", "plan", "memory", "breakdown"}
Answer = Callable[[Result], None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return a function that settles what the search will answer."""

    def settle(result: Result) -> None:
        def search(problem: Problem, request: Any, *, quiet: bool) -> Result:
            return result

        monkeypatch.setattr(command, "_search", search)

    return settle


def real_plan() -> Plan:
    """A plan that can be written to files."""
    job = {"global_batch_size": 128, "sequence_length": 8192}
    return make_plan(Problem.load("llama-3.1-8b", "dgx-h100", job), tp=2, recompute="full")


@pytest.mark.parametrize("script", ["", " "])
def test_a_script_that_is_no_file_name_is_refused_before_the_search(script: str) -> None:
    done = run("solve", *JOB, "--script", script)
    assert done.exit_code == 2
    assert "script" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("result", "code"),
    [(examples.result(), 0), (examples.infeasible(), 3), (examples.unknown(), 4)],
    ids=["found", "infeasible", "limit"],
)
def test_status_decides_the_exit_code_and_json_is_whole(answer: Answer, result: Result, code: int) -> None:
    answer(result)
    page = run("solve", *JOB)
    assert page.exit_code == code
    assert page.stdout.startswith(result.status)
    data = run("solve", *JOB, "--json")
    assert data.exit_code == code
    read = json.loads(data.stdout)
    assert set(read) >= PROMISED
    assert read["status"] == result.status
    assert read["files"] == []
    assert data.stderr == ""


def test_json_of_what_is_infeasible_has_no_infinity(answer: Answer) -> None:
    answer(examples.infeasible())
    read = json.loads(run("solve", *JOB, "--json").stdout)
    assert read["lower_bound_s"] is None
    assert read["plan"] is read["objective_s"] is None
    assert read["infeasibility"]["remedies"] == ["--precision pure-bf16", "24 devices"]


def test_files_are_written_listed_and_not_overwritten(answer: Answer, tmp_path: Path) -> None:
    plan = real_plan()
    answer(replace(examples.result(), plan=plan))
    folder = tmp_path / "out"
    first = run("solve", *JOB, "-o", str(folder), "--script", "mine.py")
    assert first.exit_code == 0, first.output
    names = sorted(p.name for p in folder.iterdir())
    assert Plan.from_json((folder / "plan.json").read_text()) == plan
    below = " ".join(first.stdout.split("Files written", 1)[1].split())
    assert below.count("•") == len(names)
    assert any("mine.py" in p.read_text() for p in folder.iterdir())
    again = run("solve", *JOB, "-o", str(folder))
    assert again.exit_code == 2
    assert "--force" in again.stderr
    forced = run("solve", *JOB, "-o", str(folder), "--force", "--json")
    assert forced.exit_code == 0
    assert sorted(Path(p).name for p in json.loads(forced.stdout)["files"]) == names


def test_without_a_plan_nothing_is_written_and_a_note_says_so(answer: Answer, tmp_path: Path) -> None:
    answer(examples.infeasible())
    done = run("solve", *JOB, "-o", str(tmp_path / "out"), "--json")
    assert done.exit_code == 3
    assert "nothing written" in done.stderr
    assert json.loads(done.stdout)["files"] == []
    assert list(tmp_path.iterdir()) == []


def test_strategy_of_a_job_file_is_ignored_aloud(answer: Answer, tmp_path: Path) -> None:
    answer(examples.result())
    job = tmp_path / "job.yaml"
    job.write_text("strategy: {tp: 2}\n")
    assert "solve ignores the strategy" in run("solve", str(job), *JOB).stderr
    assert run("solve", str(job), *JOB, "--quiet").stderr == ""


def test_interrupt_ends_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_search", interrupted)
    done = run("solve", *JOB)
    assert done.exit_code == 130
    assert done.stderr == "interrupted\n"


def test_a_crash_is_named_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> Result:
        raise IndexError("list index out of range")

    monkeypatch.setattr(command, "_search", crash)
    done = run("solve", *JOB)
    assert done.exit_code == 1
    assert "this is a bug in Meshwright: IndexError" in done.stderr


SMALL = ("--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--global-batch", "32", "--seq-len", "4096")


def test_real_search_from_flags_to_files_that_estimate_prices_alike(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = shell("solve", *SMALL, "--target", "fsdp", "--json", "-o", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    read = json.loads(done.stdout)
    assert read["status"] == "OPTIMAL"
    assert 0 < read["lower_bound_s"] <= read["objective_s"]
    assert read["gap"] <= 1e-3
    assert sum(read["breakdown"].values()) == pytest.approx(read["objective_s"], rel=1e-9)
    assert max(read["memory"]["peak_bytes"]) <= read["memory"]["usable_bytes"]
    priced = run("estimate", "--plan", str(folder / "plan.json"), "--json")
    assert priced.exit_code == 0, priced.output
    assert json.loads(priced.stdout)["step_time_s"] == read["objective_s"]


def test_real_page_when_piped(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama-3.2-1b\ncluster: dgx-h100\nglobal_batch_size: 32\nsequence_length: 4096\n"
        "target: fsdp\npins: {micro_batch_size: 1}\n"
    )
    done = shell("solve", str(job), "--pin", "zero_stage=3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("OPTIMAL  ")
    assert "× 1 × dp 8" in done.stdout
    assert "ZeRO stage 3" in done.stdout
    headings = {"Plan", "Where the time goes", "Memory of a device, GiB", "Proof"}
    assert headings <= set(lines)


@pytest.mark.parametrize("only", [("--script", "mine.py"), ("--launcher", "slurm")])
def test_what_only_files_would_use_is_noted_without_files(answer: Answer, only: tuple[str, str]) -> None:
    answer(examples.result())
    assert "nothing is written" in run("solve", *JOB, *only).stderr


def test_a_place_that_cannot_be_written_is_refused_before_the_search() -> None:
    done = run("solve", *JOB, "--output", "/proc/here")
    assert done.exit_code == 2, done.output
    assert "nothing can be written in /proc" in " ".join(done.stderr.split())


def test_real_search_that_finds_nothing_says_what_binds() -> None:
    alone = ("--pin", "recompute=none", "--pin", "offload=none")
    done = run("solve", *SMALL, "--cluster", "rtx-3090:1", "--target", "fsdp", *alone)
    assert done.exit_code == 3, done.output
    assert done.stdout.startswith("INFEASIBLE  ")
    assert "GiB" in done.stdout.split("Why nothing fits", 1)[1]


def test_real_search_offloads_where_nothing_fits_and_says_so() -> None:
    """The same without a word on offloading: parameters go to the host, and the page tells how much."""
    done = run("solve", *SMALL, "--cluster", "rtx-3090:1", "--target", "fsdp", "--pin", "recompute=none")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "parameters on the host" in told
    assert "nothing fits without offloading" in told
    assert "on the host" in told.split("after headroom", 1)[1]
