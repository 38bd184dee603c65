"""Usage errors in the words and the form of all other errors."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from meshwright.cli.errors import ExitCode, printable, tell_json


class Commands(TyperGroup):
    """A group of commands whose usage errors are one line, ``error: ...``, and where to find help."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit with its code; return what it answers outside standalone mode."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            code = ExitCode.INTERRUPTED
        except Exception as error:
            if not standalone_mode or not hasattr(error, "format_message"):
                raise
            code = _usage(error, as_json="--json" in (sys.argv[1:] if args is None else args))
        if standalone_mode:
            sys.exit(code or 0)
        return code


def _usage(error: Any, *, as_json: bool) -> int:
    """Say what of a command line is wrong; a command without any arguments shows its help.

    The options were not read, hence ``as_json`` says whether the word ``--json`` stands among them.
    """
    message, context = str(error.format_message()), getattr(error, "ctx", None)
    if "\n" in message:
        error.show()
        return int(error.exit_code)
    message = message[:1].lower() + message[1:].removesuffix(".")
    print(f"error: {printable(message)}", file=sys.stderr)
    if as_json:
        tell_json(message)
    if context is not None:
        print(f"try: {context.command_path} -h", file=sys.stderr)
    return int(error.exit_code)
