"""A word of any length is refused in a line that a terminal shows, which quotes its beginning."""

from pathlib import Path

import pytest

from tests.cli.shell import run

LONG = "x" * 3000
LINE = 1500
"""Characters: a message with forty names that are known."""
JOB = ("--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--global-batch", "8", "--seq-len", "1k")


@pytest.mark.parametrize(
    "words",
    [
        ("solve", *JOB, "--pin", f"{LONG}=1"),
        ("solve", *JOB, "--pin", f"tp={LONG}"),
        ("solve", *JOB, "--pin", LONG),
        ("solve", *JOB, "--loss", LONG),
        ("solve", *JOB, "--precision", LONG),
        ("solve", *JOB, "--profile", f"generic[{LONG}=1]"),
        ("estimate", *JOB, "--recompute", LONG),
        ("estimate", *JOB, "--schedule", LONG),
        ("estimate", *JOB, "--placement", LONG),
        ("model", LONG),
        ("hardware", LONG),
    ],
    ids=lambda words: " ".join(words)[:24] + words[-1][:10],
)
def test_a_long_word_is_cut(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert "xxxx" in done.stderr
    assert len(done.stderr) < LINE


def test_a_long_name_of_a_kind_of_model_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(f'{{"model_type": "{LONG}"}}', encoding="utf-8")
    done = run("model", str(file))
    assert done.exit_code == 2
    assert len(done.stderr) < LINE
