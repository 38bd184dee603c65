"""Progress shows on a terminal and nowhere else."""

import io
import sys

import pytest

from meshwright.cli.progress import in_hand, search_progress
from meshwright.planner.events import SearchEvent

EVENT = SearchEvent("solving", 3, 12, 10.0, 9.9, "tp2 pp2")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


def test_terminal_shows_phase_count_and_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with search_progress() as show:
        assert show is not None
        show(EVENT)
    text = stream.getvalue()
    assert "solving" in text
    assert "3/12" in text
    assert "10.000 s, gap 1.00 %" in text


def test_pipe_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with search_progress() as show:
        assert show is None
    assert stream.getvalue() == ""


def test_quiet_shows_nothing_on_a_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with search_progress(quiet=True) as show:
        assert show is None
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (EVENT, "10.000 s, gap 1.00 %"),
        (SearchEvent("bounds", 0, 0, None, None, ""), ""),
        (SearchEvent("bounds", 0, 0, None, 1.0, "tp2"), "tp2"),
        (SearchEvent("solving", 1, 2, 10.0, None, ""), "10.000 s, gap –"),
        (SearchEvent("solving", 1, 2, 10.0, 11.0, ""), "10.000 s, gap 0.00 %"),
    ],
)
def test_in_hand(event: SearchEvent, text: str) -> None:
    assert in_hand(event) == text
