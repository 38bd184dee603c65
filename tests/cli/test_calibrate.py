"""``meshwright calibrate``: what it prints, and what it says where nothing can be measured."""

import importlib.util
import json

import pytest
from rich.console import Console

from meshwright.cli.calibrate import described, residual_table, summary
from meshwright.planner.calibrate.cases import Product, Stream
from meshwright.planner.calibrate.collect import Progress
from meshwright.planner.calibrate.fits import fitted
from meshwright.planner.calibrate.session import Calibration
from tests.cli.shell import run
from tests.planner.calibrate.machines import MACHINE, samples


@pytest.fixture(scope="module")
def found():
    return Calibration(MACHINE, fitted(samples(), MACHINE), (Stream("fp32", 7),), ())


def test_residuals_are_told_by_kind_with_the_worst_sample(found):
    console = Console(width=200, record=True)
    console.print(residual_table(found.constants.residuals))
    lines = console.export_text().splitlines()
    product = next(line for line in lines if line.lstrip().startswith("product"))
    count = sum(isinstance(r.case, Product) for r in found.constants.residuals)
    assert f" {count} " in product
    assert "weight_gradient" in product


def test_the_summary_is_plain_data_with_every_residual(found):
    plain = json.loads(json.dumps(summary(found)))
    assert plain["ranks"] == 2
    assert len(plain["residuals"]) == len(found.constants.residuals)
    assert plain["left_out"] == [str(Stream("fp32", 7))]


def test_progress_says_the_round_and_the_kind():
    assert described(Progress(Stream("fp32", 7), 1, 3.0)) == "round 2: stream"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-o", "mine.json"), "mine.json"),
        (("-o", "none/mine.yaml"), "none"),
        (("-o", "/proc/mine.yaml"), "/proc/mine.yaml"),
        (("-o", "mine.yaml", "--name", "a/b"), "name: 'a/b'"),
        (("-o", "mine.yaml", "--budget", "0"), "budget"),
        (("-o", "mine.yaml", "--merge", "none.jsonl"), "none.jsonl"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(arguments, told):
    done = run("calibrate", *arguments)
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_it_says_what_to_install(tmp_path):
    done = run("calibrate", "-o", str(tmp_path / "mine.yaml"))
    assert done.exit_code == 2
    assert "pip install" in done.stderr
    assert not list(tmp_path.iterdir())
