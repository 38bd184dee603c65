"""What a command answers to the shell: its exit code, and one line in place of a traceback."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import wraps
from typing import Any, ParamSpec, TextIO

import typer

from meshwright.hardware.errors import MeshwrightError

P = ParamSpec("P")


class ExitCode(IntEnum):
    """Exit codes of every command, as ``--help`` lists them."""

    FOUND = 0
    BUG = 1
    BAD_INPUT = 2
    INFEASIBLE = 3
    LIMIT = 4
    INTERRUPTED = 130
    """128 + SIGINT, as shells report it."""
    BROKEN_PIPE = 141
    """128 + SIGPIPE."""


def guarded(command: Callable[P, ExitCode]) -> Callable[P, None]:
    """Turn a command's answer into an exit code, and what it raises into one line on stderr.

    With ``--json`` (a keyword ``as_json`` that is true) the error stands on stdout too, as an object with
    the ``status`` ``ERROR``. ``MESHWRIGHT_DEBUG=1`` shows the traceback.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        """Run the command and end with its status."""
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            code = _report(error, as_json=bool(kwargs.get("as_json")))
        if code:
            raise typer.Exit(int(code))

    return run


def _report(error: BaseException, *, as_json: bool) -> ExitCode:
    """Say what went wrong and return the exit code for it."""
    if os.environ.get("MESHWRIGHT_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        _abandon(sys.stdout)
        return ExitCode.BROKEN_PIPE
    code, message = _verdict(error)
    print(f"{'' if code is ExitCode.INTERRUPTED else 'error: '}{printable(message)}", file=sys.stderr)
    if as_json:
        tell_json(message)
    return code


def tell_json(message: str) -> None:
    """Say what went wrong to a program that reads stdout."""
    print(json.dumps({"status": "ERROR", "error": message}))


def _verdict(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code and the sentence for an exception."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED, "interrupted"
    if isinstance(error, MeshwrightError):
        return ExitCode.BAD_INPUT, str(error)
    if isinstance(error, UnicodeError):
        return ExitCode.BAD_INPUT, f"a file or argument is not UTF-8 text ({error})"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return ExitCode.BAD_INPUT, f"{where}{error.strerror or error}"
    return ExitCode.BUG, (
        f"this is a bug in Meshwright: {type(error).__name__}: {error}\n"
        "Run again with MESHWRIGHT_DEBUG=1 for the traceback, and report it with the command."
    )


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """End quietly where whoever reads the output has left (``| head``), as other commands do.

    What is printed outside of commands (help, usage errors) is covered too, and the interpreter's last flush.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except (BrokenPipeError, SystemExit) as stop:
        if not any(isinstance(e, BrokenPipeError) for e in (stop, stop.__context__)):
            raise
        _abandon(sys.stdout)
        _abandon(sys.stderr)
        raise SystemExit(int(ExitCode.BROKEN_PIPE)) from None


def _abandon(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter's last flush does not fail once more."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def printable(text: Any) -> str:
    """Return text without control characters: a file's name or a model's must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(text))
