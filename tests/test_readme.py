"""What the README shows of commands is what they print: the same words, numbers within a hundredth."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.shell import run

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ meshwright ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)```", README, re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
CLOSE = 0.01
"""Constants that are fitted anew move figures by less; a figure further off is another plan's."""


def same(shown: str, printed: str) -> bool:
    """Return whether two lines have the same words and close numbers; how long a search took is free."""
    shown, printed = (line.partition("searched for")[0] for line in (shown, printed))
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    ours, theirs = ([float(n.replace(",", "")) for n in NUMBER.findall(line)] for line in (shown, printed))
    return ours == pytest.approx(theirs, rel=CLOSE)


@pytest.mark.parametrize(("command", "block"), SHOWN)
def test_what_a_command_prints_is_shown_line_for_line(command: str, block: str) -> None:
    printed = run(*shlex.split(command.replace("\\\n", ""))).stdout.splitlines()
    at = 0
    for line in block.splitlines():
        if not line.startswith("["):
            found = next((k for k in range(at, len(printed)) if same(line, printed[k])), None)
            assert found is not None, f"README.md shows {line!r}; the command prints no such line (paste it)"
            at = found + 1


def test_both_answers_are_shown() -> None:
    assert [block.split()[0] for _, block in SHOWN] == ["OPTIMAL", "INFEASIBLE"]
