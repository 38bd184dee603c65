"""Write a plan's files to a folder: whole or not at all.

A new folder is prepared beside its place and renamed into it. In an existing folder the new files are
prepared inside it and swapped in one by one; on any error the old ones are put back. What this leaves out: a
machine that dies between two swaps leaves whole files of both plans, and the old ones in ``.meshwright-*``.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.readme import readme
from meshwright.planner.emit.registry import emit, launchers_of
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate, Result

Answer = Plan | Estimate | Result


def plan_of(answer: Answer) -> Plan:
    """Return the plan of a plan, an estimate or a result.

    Raises
    ------
    MeshwrightError
        If a result has none.
    """
    plan = answer if isinstance(answer, Plan) else answer.plan
    if plan is None:
        raise MeshwrightError("plan: the search found none, so there is nothing to write")
    return plan


def render(
    problem: Problem, answer: Answer, script: str | None = None, launchers: Sequence[str] = ()
) -> dict[str, str]:
    """Return every file of the output folder, text by name.

    Raises
    ------
    MeshwrightError
        If there is no plan, its target cannot express it, a launcher cannot start it, or ``script`` is no
        file name.
    """
    plan = plan_of(answer)
    files = {**emit(problem, plan, script, launchers), "plan.json": plan.to_json()}
    return {**files, "README.md": readme(problem, plan, files, answer, launchers_of(plan.target, launchers))}


def write_plan(
    problem: Problem,
    answer: Answer,
    out_dir: str | os.PathLike[str],
    force: bool = False,
    script: str | None = None,
    launchers: Sequence[str] = (),
) -> list[Path]:
    """Write the plan's files into ``out_dir`` and return their paths, sorted.

    Parameters
    ----------
    answer
        A plan, or an estimate or result that holds one (then the README says what to expect).
    out_dir
        A new or empty folder; its parents are made. A link to a folder is followed.
    force
        Replace our files in a folder that is not empty; everything else in it stays.
    script
        The training script that is started; None: the one that is emitted, or the target's usual one.
    launchers
        Names of :data:`~meshwright.planner.emit.launchers.LAUNCHERS`; none: the target's own.

    Raises
    ------
    MeshwrightError
        As :func:`render` does, or if the folder is not empty, is a file, or cannot be written.
    """
    files = render(problem, answer, script, launchers)
    try:
        out = Path(out_dir).resolve()
        if out.is_dir():
            _check_existing(out, files, force)
            _write_into(out, files)
        else:
            _write_new(out, files)
    except OSError as error:
        raise MeshwrightError(
            f"out: {str(out_dir)!r} cannot be written: {error.strerror or error}"
        ) from error
    except (RuntimeError, ValueError) as error:
        if isinstance(error, MeshwrightError):
            raise
        # A loop of links, or a zero byte.
        raise MeshwrightError(f"out: {str(out_dir)!r} is no path: {error}") from error
    return [Path(out_dir) / name for name in sorted(files)]


def _check_existing(out: Path, files: dict[str, str], force: bool) -> None:
    """Refuse a folder with anything in it unless forced, and folders in the place of our files always."""
    present = sorted(entry.name for entry in out.iterdir())
    if present and not force:
        shown = ", ".join(map(repr, present[:3])) + (", ..." if len(present) > 3 else "")
        raise MeshwrightError(f"out: {str(out)!r} is not empty ({shown}); name a new folder, or use --force")
    for name in files:
        if (out / name).is_dir() and not (out / name).is_symlink():
            raise MeshwrightError(f"out: {str(out / name)!r} is a folder where a file must be written")


def _stage(parent: Path, files: dict[str, str]) -> Path:
    """Write the files to a new hidden folder inside ``parent``; leave nothing behind on an error."""
    staging = parent / f".meshwright-{uuid4().hex}"
    staging.mkdir()
    try:
        for name, text in files.items():
            _write(staging / name, text)
    except BaseException:
        shutil.rmtree(staging)
        raise
    return staging


def _write(path: Path, text: str) -> None:
    """Write one file to the disk; a name's stray bytes come out as they went in, scripts are executable."""
    with path.open("wb") as file:
        file.write(text.encode("utf-8", "surrogateescape"))
        file.flush()
        os.fsync(file.fileno())
    if text.startswith("#!"):
        # Whoever may read may run.
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o444) >> 2)


def _write_new(out: Path, files: dict[str, str]) -> None:
    """Prepare the folder beside its place and rename it; parents made for nothing are removed again."""
    missing = [p for p in out.parents if not p.exists()]
    staging = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = _stage(out.parent, files)
        staging.rename(out)
    except BaseException:
        if staging is not None:
            shutil.rmtree(staging)
        for parent in missing:
            if parent.is_dir():
                parent.rmdir()
        raise


def _write_into(out: Path, files: dict[str, str]) -> None:
    """Swap the files into an existing folder; on any error put the old ones back."""
    staging = _stage(out, files)
    old = staging / "old"
    try:
        old.mkdir()
        for name in files:
            if os.path.lexists(out / name):
                (out / name).rename(old / name)
            (staging / name).rename(out / name)
    except BaseException:
        _put_back(out, staging, files)
        shutil.rmtree(staging)
        raise
    shutil.rmtree(staging)


def _put_back(out: Path, staging: Path, files: dict[str, str]) -> None:
    """Undo the swap as far as it went; what is still staged was not swapped."""
    for name in files:
        if os.path.lexists(staging / "old" / name):
            (staging / "old" / name).replace(out / name)
        elif not (staging / name).exists():
            (out / name).unlink()
