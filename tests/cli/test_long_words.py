"""A word of any length is refused in a line that a terminal shows, which quotes its beginning."""

from pathlib import Path
from time import process_time

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


def test_many_wrong_fields_are_named_in_part_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("".join(f"field{n}: 1\n" for n in range(3000)), encoding="utf-8")
    done = run("model", str(file))
    assert done.exit_code == 2
    assert "field39 and 2,960 more" in done.stderr
    assert len(done.stderr) < 2 * LINE


def test_a_key_written_twice_is_found_among_many_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    keys = ",".join(f'"key{n}": 1' for n in (*range(100_000), 99_999))
    file.write_text(f"{{{keys}}}", encoding="utf-8")
    begin = process_time()
    done = run("model", str(file))
    assert process_time() - begin < 5
    assert "key 'key99999' is given twice" in done.stderr
