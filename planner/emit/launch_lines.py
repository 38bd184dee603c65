"""Lines that a framework needs in its launcher before the processes start."""

from collections.abc import Sequence

START = "\nexec torchrun "


def before_start(launcher: str, lines: Sequence[str]) -> str:
    """Return a torchrun launcher with lines put before the command that starts the processes."""
    head, command = launcher.split(START)
    return head + "\n" + "\n".join(lines) + "\n" + START + command
