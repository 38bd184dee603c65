"""User strings in emitted text: quoted for the shell, printable in comments and documents."""

import re
import shlex

from meshwright.hardware.errors import MeshwrightError


def printable(text: str) -> str:
    """Return the text on one line, control characters and stray bytes escaped, for comments and documents."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def code(text: str) -> str:
    """Return a Markdown code span that the text cannot leave."""
    return "`" + printable(text).replace("`", "'") + "`"


def job_name(text: str) -> str:
    """Return a scheduler's job name: letters, digits, dots and dashes only."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:60].strip("-.") or "meshwright"


def quoted_script(script: str) -> str:
    """Return the training script's path as one shell word.

    Raises
    ------
    MeshwrightError
        If it is empty, holds a zero byte, or cannot be a file name.
    """
    try:
        script.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise MeshwrightError(f"script: {script!a} is no file name; give a path such as train.py") from None
    if not script.strip() or "\0" in script:
        raise MeshwrightError(f"script: {script!a} is no file name; give a path such as train.py")
    # A leading dash would be read as an option by the launchers.
    return shlex.quote(f"./{script}" if script.startswith("-") else script)
