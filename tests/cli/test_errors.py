"""What goes wrong becomes one line and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from meshwright.cli.errors import ExitCode, guarded, printable
from meshwright.hardware.errors import MeshwrightError
from tests.cli.shell import CHECKOUT, JOB, run

COMMANDS = ("solve", "estimate", "targets", "model", "hardware", "calibrate", "learn")


def code_of(raises: BaseException | ExitCode, **keywords: Any) -> int:
    """Run a command that raises (or answers) and return its exit code."""

    @guarded
    def command(as_json: bool = False) -> ExitCode:
        if isinstance(raises, BaseException):
            raise raises
        return raises

    try:
        command(**keywords)
    except typer.Exit as done:
        return done.exit_code
    return 0


@pytest.mark.parametrize("code", list(ExitCode))
def test_answer_is_the_exit_code(code: ExitCode) -> None:
    assert code_of(code) == code


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (MeshwrightError("tp: 3 is odd"), 2, "error: tp: 3 is odd\n"),
        (FileNotFoundError(2, "No such file or directory", "job.yaml"), 2, "error: job.yaml: No such file"),
        (PermissionError(13, "Permission denied"), 2, "error: Permission denied\n"),
        (OSError("odd"), 2, "error: odd\n"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 2, "error: a file or argument is not UTF-8"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ZeroDivisionError("by zero"), 1, "error: this is a bug in Meshwright: ZeroDivisionError: by zero\n"),
        (MeshwrightError("a\x1b[2Jb"), 2, "error: a\N{REPLACEMENT CHARACTER}[2Jb\n"),
    ],
)
def test_error_is_one_line_on_stderr(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(error) == code
    streams = capsys.readouterr()
    assert streams.err.startswith(says)
    assert streams.out == ""
    assert "Traceback" not in streams.err


def test_a_bug_says_how_to_see_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code_of(ZeroDivisionError())
    assert "MESHWRIGHT_DEBUG=1" in capsys.readouterr().err
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    assert code_of(ZeroDivisionError()) == ExitCode.BUG
    assert "Traceback" in capsys.readouterr().err


def test_json_error_is_an_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(MeshwrightError("tp: 3 is odd"), as_json=True) == ExitCode.BAD_INPUT
    streams = capsys.readouterr()
    assert json.loads(streams.out) == {"status": "ERROR", "error": "tp: 3 is odd"}
    assert streams.err == "error: tp: 3 is odd\n"


@pytest.mark.parametrize("stop", [typer.Exit(7), typer.Abort()])
def test_stops_of_the_command_line_itself_pass(stop: Exception) -> None:
    @guarded
    def command() -> ExitCode:
        raise stop

    with pytest.raises(type(stop)):
        command()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [x]\n", "plain [x]\n"),
        ("\x07\x1b\r\x9b", "\N{REPLACEMENT CHARACTER}" * 4),
        ("é×", "é×"),
        (3, "3"),
    ],
)
def test_printable(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "meshwright.cli.main", "estimate", *JOB, "--tp", "2", "--json"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == ExitCode.BROKEN_PIPE
    assert errors == b""


def test_after_a_broken_pipe_nothing_more_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert code_of(BrokenPipeError()) == ExitCode.BROKEN_PIPE
        stream.write("what the interpreter still held")
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("estimate", "--modle", "x"), "error: no such option: --modle"),
        (("estimate", "--tp", "x"), "error: invalid value for '--tp'"),
        (("bogus",), "error: no such command 'bogus'\n"),
        (("solve", "a.yaml", "b.yaml"), "error: got unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_told_like_any_other_error(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == ExitCode.BAD_INPUT
    assert done.stdout == ""
    assert done.stderr.startswith(says)
    assert done.stderr.splitlines()[1].startswith("try: meshwright")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_a_wrong_command_line_to_programs_too(command: str) -> None:
    done = run(command, "--json", "--modle", "x")
    assert done.exit_code == ExitCode.BAD_INPUT
    told = json.loads(done.stdout)
    assert told["status"] == "ERROR"
    assert done.stderr.startswith(f"error: {told['error']}\n")
    assert "--modle" in told["error"]


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "meshwright", "solve", "--help"),
        ("-m", "meshwright", "solve", "--modle", "x", "--json"),
        ("-m", "benchmarks.accuracy", "--validated"),
    ],
)
def test_whatever_is_printed_may_find_no_reader(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, *words], cwd=CHECKOUT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == ExitCode.BROKEN_PIPE
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "--version"], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.stdout.startswith("meshwright ")
    assert done.returncode == 0
