"""Emitted files are compared with files that were read by a person; MESHWRIGHT_WRITE_GOLDEN=1 renews them."""

import os
from pathlib import Path

import pytest

from meshwright.planner.emit.write import render
from tests.planner.emit.cases import GOLDEN, case

FOLDER = Path(__file__).resolve().parents[2] / "golden" / "emit"


@pytest.mark.parametrize("name", GOLDEN)
def test_files_are_the_golden_ones(name: str) -> None:
    target, machines, strategy = GOLDEN[name]
    # A headroom of its own: the usual one follows from constants that are fitted anew.
    own = {**strategy, "job": {"headroom": 0.04, **strategy.get("job", {})}}
    files = render(*case(target, machines, **own))
    if os.environ.get("MESHWRIGHT_WRITE_GOLDEN"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (FOLDER / name / file).write_text(text)
    assert files == {p.name: p.read_text() for p in (FOLDER / name).iterdir()}
