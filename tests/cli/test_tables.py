"""JSON on stdout: valid everywhere, whatever the answer holds."""

import json
from types import MappingProxyType

import numpy as np
import pytest

from meshwright.cli.tables import write_json
from meshwright.planner.targets import TARGETS
from tests.cli.shell import run


def test_json_holds_no_number_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(
        {"nan": float("nan"), "inf": [float("inf"), (-float("inf"), 1.5)], "n": 3, "no": None, "b": True}
    )

    def refuse(text: str) -> None:
        raise AssertionError(text)

    read = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert read == {"nan": None, "inf": [None, [None, 1.5]], "n": 3, "no": None, "b": True}


def test_json_makes_foreign_kinds_plain(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(
        {
            "numpy": np.float64(0.5),
            "array": np.array([[1, 2]]),
            "mapping": MappingProxyType({1: np.int64(2)}),
            "set": frozenset({2, 1}),
            "other": Exception("x"),
        }
    )
    assert json.loads(capsys.readouterr().out) == {
        "numpy": 0.5,
        "array": [[1, 2]],
        "mapping": {"1": 2},
        "set": [1, 2],
        "other": "x",
    }


@pytest.mark.parametrize("width", [80, 100])
def test_no_word_of_the_targets_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    printed = {word.strip(",;") for word in run("targets").stdout.split()}
    assert printed >= {w.strip(",;") for t in TARGETS.values() for w in " ".join((t.title, *t.loses)).split()}
