"""Software profiles as files: one TOML table that inherits from a built-in profile and overrides it."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from meshwright.costmodels.profiles import FILE_SUFFIX, MAX_VALUE
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.learn import Learned, overrides

DIGITS: Final = 5
"""Significant digits that are written: more than any timing has."""


def digits(value: float) -> float:
    """Return a number with the digits that are written."""
    return float(f"{value:.{DIGITS}g}")


def profile_text(
    name: str, parent: str, title: str, values: Mapping[str, Any], sources: list[str], comments: list[str]
) -> str:
    """Return a profile file's text: one table that inherits and overrides."""
    lines = [f"# {comment}" for comment in comments]
    lines += [f"[{name}]", f"inherits = {_quoted(parent)}", f"title = {_quoted(title)}"]
    lines += [f"{key} = {_toml(value)}" for key, value in sorted(values.items())]
    lines += ["sources = [", *(f"  {_quoted(source)}," for source in sources), "]"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a field's value: a text, a switch, or a number."""
    if isinstance(value, bool | str):
        return _quoted(value) if isinstance(value, str) else str(value).lower()
    return repr(digits(min(value, MAX_VALUE)))


def _quoted(text: str) -> str:
    """Return a TOML basic string: JSON's escapes are among TOML's."""
    return json.dumps(text, ensure_ascii=False)


def write_whole(texts: Mapping[Path, str]) -> None:
    """Write files whole, all of them or none; links and devices such as ``/dev/stdout`` stay what they are.

    What this leaves out: a machine that dies between two renames leaves some of them.

    Raises
    ------
    MeshwrightError
        If one cannot be written, naming it.
    """
    beside = {path: path.with_name(path.name + ".part") for path in texts if not _stays(path)}
    try:
        for path, text in texts.items():
            beside.get(path, path).write_text(text, encoding="utf-8")
        for path, part in beside.items():
            part.replace(path)
    except OSError as error:
        raise _unwritten(path, error) from None
    finally:
        for part in beside.values():
            part.unlink(missing_ok=True)


def _stays(path: Path) -> bool:
    """Return whether a path is written to where it leads: another file in its place would not be it."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def _unwritten(path: Path, error: OSError) -> MeshwrightError:
    return MeshwrightError(
        f"output: {str(path)!r} cannot be written: {error.strerror or error}; name another place"
    )


def check_place(path: Path) -> None:
    """Refuse before the work a place where no file can be written after it.

    Raises
    ------
    MeshwrightError
        Naming the path.
    """
    try:
        if path.is_dir():
            raise MeshwrightError(f"output: {str(path)!r} is a folder; give a file's name")
        if not path.parent.is_dir():
            raise MeshwrightError(f"output: {str(path.parent)!r} is no folder; make it, or name another")
        if _stays(path):
            return
        path.with_name(path.name + ".part").touch()
        path.with_name(path.name + ".part").unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(path, error) from None


def check_output(output: Path | None) -> None:
    """Refuse before the work what writing, or reading, would refuse after it.

    Raises
    ------
    MeshwrightError
        Naming the path, if its name is no profile file's or it cannot be written.
    """
    if output is None:
        return
    if output.suffix != FILE_SUFFIX:
        raise MeshwrightError(f"output: {output} is no TOML file; give a name such as mine{FILE_SUFFIX}")
    check_place(output)


def write_learned(output: Path, found: Learned, logs: Sequence[str]) -> None:
    """Write a learned profile, with the runs behind it."""
    parent, values = overrides(found)
    runs, today = len(found.outcomes), date.today().isoformat()
    errors = [
        sum(abs(getattr(o, side) / o.observation.step_time_s - 1) for o in found.outcomes) / runs
        for side in ("before_s", "after_s")
    ]
    text = profile_text(
        "learned",
        parent,
        f"{found.base.title}; refitted to runs: {runs}, {today}",
        values,
        [f"meshwright learn: {log}" for log in logs],
        [
            f"Written by meshwright learn on {today}; units are in the names.",
            f"Mean error of the step time: {errors[0]:.4f} before, {errors[1]:.4f} after, as fractions.",
        ],
    )
    write_whole({output: text})
