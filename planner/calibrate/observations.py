"""Runs of one's own: which plan ran where, and what was measured of it.

A JSONL file has an object a line:

==================  ==================================================================================
step_time_s         seconds of a step; several lines of one plan count with their median. A line without
                    one (null or NaN: the run failed) is left out. Both are noted
peak_memory_bytes   of the fullest device; may be left out
plan                the path of a ``plan.json``, or the plan itself
strategy, job       in place of ``plan``: a strategy's fields, and the job's, as in a job file
model, cluster      names or paths; what the plan or ``--model`` and ``--cluster`` say by default
==================  ==================================================================================

Paths in a line are looked for beside the log first, then from where the command runs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from meshwright.hardware.errors import MeshwrightError, shown
from meshwright.hardware.files import beside, read_text, unique_keys
from meshwright.hardware.units import MIB
from meshwright.planner.calibrate.logs import FORMATS, read_log
from meshwright.planner.estimate import check_plan, written_plan
from meshwright.planner.plan import JOB_FIELDS, Plan, read_plan
from meshwright.planner.plan_names import names_of
from meshwright.planner.problem import Problem

MAX_LOG_BYTES: Final = 64 * MIB
FIELDS: Final = ("step_time_s", "peak_memory_bytes", "plan", "strategy", "job", "model", "cluster")
MEASURED: Final = ("step_time_s", "peak_memory_bytes")
JSONL: Final = "jsonl"
STEP_TIME_S: Final = (1e-6, 1e6)
"""Of any step: no kernel starts within a microsecond, no step takes eleven days."""
PEAK_BYTES: Final = (1024.0, 1e15)
"""Of any device: beyond, the number has another unit."""


Known: TypeAlias = dict[str, tuple[Problem, Plan]]
"""Problems and plans by what a line says beside what was measured."""


@dataclass(frozen=True)
class Observation:
    """A plan that ran: seconds of a step, and bytes of the fullest device where they are known."""

    problem: Problem
    plan: Plan
    step_time_s: float
    peak_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What a log tells of: runs, and what of its lines did not become a run of its own."""

    runs: tuple[Observation, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says for all runs whose log does not: names or paths, None where it is silent."""

    plan: Plan | None = None
    model: str | None = None
    cluster: str | None = None
    profile: str | None = None


def read_observations(path: Path, given: Given, form: str | None) -> Observed:
    """Return the runs that a log tells of.

    Raises
    ------
    MeshwrightError
        If the log, a plan, a model or a cluster cannot be read, or a field is wrong.
    """
    if form not in (None, JSONL, *FORMATS):
        raise MeshwrightError(f"format: {form!r} is not known; allowed: {JSONL}, {', '.join(FORMATS)}")
    text = read_text(path, MAX_LOG_BYTES)
    if form == JSONL or (form is None and path.suffix in (".jsonl", ".json")):
        return _of_lines(text, path, given)
    if given.plan is None:
        raise MeshwrightError(f"{path}: which plan ran is not told; give --plan plan.json")
    measured = read_log(text, given.plan, form, str(path))
    step_time_s = _within(measured.step_time_s, STEP_TIME_S, f"{path}: step time in seconds")
    peak = measured.peak_bytes
    peak_bytes = None if peak is None else _within(peak, PEAK_BYTES, f"{path}: peak memory in bytes")
    return Observed((Observation(*_with_problem(given.plan, given), step_time_s, peak_bytes),))


def _of_lines(text: str, path: Path, given: Given) -> Observed:
    """Return a JSONL file's runs, lines of one plan as one."""
    found: dict[str, dict[int, Observation]] = {}
    known: Known = {}
    failed = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        one = _of_line(line, f"{path}: line {number}", path.parent, given, known)
        if one is None:
            failed.append(number)
        else:
            key = f"{one.plan.to_json()} {one.problem.cluster.name}"
            found.setdefault(key, {})[number] = one
    if not found:
        what = "no line has a step_time_s" if failed else "no line"
        raise MeshwrightError(f"{path}: {what}; a JSON object with step_time_s is expected in each")
    notes = [f"{path}: {_lines(failed)} left out, without a step_time_s"] if failed else []
    notes += [
        f"{path}: {_lines(runs)} of one plan: one run, the median of their times, the largest peak"
        for runs in found.values()
        if len(runs) > 1
    ]
    return Observed(tuple(_together(list(runs.values())) for runs in found.values()), tuple(notes))


def _lines(numbers: Iterable[int]) -> str:
    """Return which lines are meant, neighbours as ranges, with their verb."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    told = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"line {told} is" if told.isdecimal() else f"lines {told} are"


def _together(runs: list[Observation]) -> Observation:
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    step_time_s = median(run.step_time_s for run in runs)
    return replace(runs[0], step_time_s=step_time_s, peak_bytes=max(peaks) if peaks else None)


def _of_line(line: str, where: str, folder: Path, given: Given, known: Known) -> Observation | None:
    """Return the run that a line tells of, None where no step of it was timed.

    ``known`` are the plans of lines before by what these say of them: a log may have one a step.
    """
    try:
        row = json.loads(line, object_pairs_hook=unique_keys(f"{where}: field"))
    except MeshwrightError:
        raise
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise MeshwrightError(f"{where}: no JSON object")
    unknown = sorted(set(row) - set(FIELDS))
    if unknown:
        raise MeshwrightError(f"{where}: {shown(unknown[0])} is not a field; allowed: {', '.join(FIELDS)}")
    if "step_time_s" in row and _is_nothing(row["step_time_s"]):
        return None
    step_time_s = _within(row.get("step_time_s"), STEP_TIME_S, f"{where}: step_time_s")
    peak = row.get("peak_memory_bytes")
    nothing = _is_nothing(peak)
    peak_bytes = None if nothing else _within(peak, PEAK_BYTES, f"{where}: peak_memory_bytes")
    for name in ("model", "cluster"):
        if name in row and not (isinstance(row[name], str) and row[name]):
            raise MeshwrightError(f"{where}: {name} is {shown(row[name])}; a name or a path is expected")
    model, cluster = (
        beside(folder, row[name]) if name in row else getattr(given, name) for name in ("model", "cluster")
    )
    here = replace(given, model=model, cluster=cluster)
    said = json.dumps({name: value for name, value in row.items() if name not in MEASURED}, sort_keys=True)
    try:
        if said not in known:
            known[said] = _told(row, folder, here)
    except MeshwrightError as error:
        raise MeshwrightError(f"{where}: {error}") from None
    return Observation(*known[said], step_time_s, peak_bytes)


def _is_nothing(value: Any) -> bool:
    """Return whether a value says that nothing was measured: null, or NaN as Python writes it."""
    return value is None or (isinstance(value, float) and isnan(value))


def _within(value: Any, limits: tuple[float, float], where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    low, high = limits
    if not number or not low <= value <= high:
        raise MeshwrightError(f"{where} is {shown(value)}; a number from {low:g} to {high:g} is expected")
    return float(value)


def _told(row: Mapping[str, Any], folder: Path, given: Given) -> tuple[Problem, Plan]:
    """Return the problem and the plan of a line: a plan, or a job and a strategy."""
    told = row.get("plan")
    if isinstance(told, str):
        plan: Plan | None = read_plan(Path(beside(folder, told)))
    elif told is not None:
        plan = Plan.from_json(json.dumps(told))
    else:
        plan = given.plan if "strategy" not in row else None
    if plan is not None:
        return _with_problem(plan, given)
    strategy, job = row.get("strategy"), row.get("job")
    if not (isinstance(strategy, dict) and isinstance(job, dict) and given.model and given.cluster):
        raise MeshwrightError("which plan ran is not told: give plan, or model, cluster, job and strategy")
    own = {"profile": beside(folder, job["profile"])} if isinstance(job.get("profile"), str) else {}
    profile = own if given.profile is None else {"profile": given.profile}
    problem = Problem.load(given.model, given.cluster, {**job, **profile})
    return problem, written_plan(problem, strategy)


def _with_problem(plan: Plan, given: Given) -> tuple[Problem, Plan]:
    """Return the problem that a plan answers, and the plan as one of this problem's.

    What is given comes before what the plan records.
    """
    job = {name: value for name in JOB_FIELDS if (value := getattr(plan, name)) is not None}
    if given.profile is not None:
        job["profile"] = given.profile
    with names_of(plan):
        problem = Problem.load(given.model or plan.model, given.cluster or plan.cluster, job)
    # The problem may name these by other paths.
    model, cluster, profile = problem.model.name, problem.cluster.name, problem.profile.name
    own = replace(plan, model=model, cluster=cluster, profile=profile)
    check_plan(problem, own)
    return problem, own
