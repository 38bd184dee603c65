"""``meshwright solve``: from a job to a proven plan and the files that launch it."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from meshwright.cli.errors import ExitCode, printable
from meshwright.cli.jobfile import Request, read_request
from meshwright.cli.progress import search_progress
from meshwright.cli.render import files_written, result_page, show
from meshwright.cli.tables import screen, write_json
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.placements import PlacementPrice, price_placements
from meshwright.planner.problem import Problem
from meshwright.planner.result import Result
from meshwright.planner.schedule_prices import SchedulePrice, price_schedules

CODES: Final = {
    "OPTIMAL": ExitCode.FOUND,
    "FEASIBLE": ExitCode.FOUND,
    "INFEASIBLE": ExitCode.INFEASIBLE,
    "UNKNOWN": ExitCode.LIMIT,
}


def run(flags: Mapping[str, Any]) -> ExitCode:
    """Read the request, solve it, print the answer and write the files."""
    request = read_request(flags)
    _check_output(flags["output"], force=flags["force"])
    _check_script(flags["script"])
    quiet = bool(flags["quiet"])
    if flags["output"] is None and (flags["script"] is not None or flags["launcher"]) and not quiet:
        print("note: --script and --launcher say what --output writes; nothing is written", file=sys.stderr)
    if request.strategy and not quiet:
        print("note: solve ignores the strategy of the job file; estimate prices it", file=sys.stderr)
    problem = Problem.load(request.model, request.cluster, request.job)
    _check_launchers(problem, flags["launcher"] or ())
    result = _search(problem, request, quiet=quiet)
    if flags["as_json"]:
        files = _write(problem, result, flags)
        placements = [one.to_dict() for one in _placements(problem, result)]
        schedules = [one.to_dict() for one in _schedules(problem, result)]
        write_json(result.to_dict() | {"placements": placements, "schedules": schedules, "files": files})
        return CODES[result.status]
    console = screen()
    priced = _placements(problem, result), _schedules(problem, result)
    show(console, result_page(result, problem.cluster, console.width, *priced))
    files = _write(problem, result, flags)
    if files:
        show(console, files_written(files))
    return CODES[result.status]


def _search(problem: Problem, request: Request, *, quiet: bool) -> Result:
    """Solve with progress on the terminal."""
    from meshwright.planner.solve import solve_problem

    with search_progress(quiet=quiet) as progress:
        return solve_problem(problem, time_limit_s=request.time_limit_s, progress=progress)


def _placements(problem: Problem, result: Result) -> tuple[PlacementPrice, ...]:
    """Return the price of the plan in each order of its dimensions."""
    return () if result.plan is None else price_placements(problem, result.plan)


def _schedules(problem: Problem, result: Result) -> tuple[SchedulePrice, ...]:
    """Return the price of the plan under each schedule of as many chunks."""
    return () if result.plan is None else price_schedules(problem, result.plan)


def _check_output(folder: Path | None, *, force: bool) -> None:
    """Refuse before a long search what writing would refuse after it."""
    if folder is None:
        return
    try:
        if folder.is_dir():
            if any(folder.iterdir()) and not force:
                raise MeshwrightError(f"output: {folder} is not empty; name a new folder, or use --force")
            return
        nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists() or p.is_symlink())
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, MeshwrightError):
            raise
        raise MeshwrightError(f"output: {str(folder)!r} is no path to write to: {error}") from error
    if not nearest.is_dir():
        raise MeshwrightError(f"output: {nearest} is no folder; name a new folder")
    try:
        with TemporaryDirectory(prefix=".meshwright-", dir=nearest):
            pass
    except OSError as error:
        why = f"nothing can be written in {nearest}: {error.strerror or error}"
        raise MeshwrightError(f"output: {why}; name another place") from error


def _check_script(script: str | None) -> None:
    """Refuse before a long search a script that no launch file could start."""
    if script is not None:
        from meshwright.planner.emit.text import quoted_script

        quoted_script(script)


def _check_launchers(problem: Problem, names: Sequence[str]) -> None:
    """Refuse before a long search launchers that do not start the target."""
    if names:
        from meshwright.planner.emit.registry import launchers_of

        launchers_of(problem.target.name, names)


def _write(problem: Problem, result: Result, flags: Mapping[str, Any]) -> list[str]:
    """Write the plan's files where asked, and return their paths."""
    folder: Path | None = flags["output"]
    if folder is None:
        return []
    if result.plan is None:
        print(printable(f"note: nothing written to {folder}: there is no plan"), file=sys.stderr)
        return []
    from meshwright.planner.emit.write import write_plan

    chosen = {"script": flags["script"], "launchers": flags["launcher"] or ()}
    return [str(path) for path in write_plan(problem, result, folder, force=flags["force"], **chosen)]
