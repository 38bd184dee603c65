"""A training script is emitted only where it does all that the plan says."""

import ast
import re
from dataclasses import replace

import pytest

from meshwright.costmodels.loss import LOSSES
from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit import arguments, scripts
from meshwright.planner.emit.registry import EMITTERS, emit
from meshwright.planner.emit.scripts import ABOUT, FOLDER
from meshwright.planner.emit.write import render
from meshwright.planner.importers import load_model
from meshwright.planner.job import Job
from meshwright.planner.problem import Problem
from meshwright.planner.strategy import make_plan
from tests.planner.emit.cases import case, cluster

SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
def test_scripts_are_python_that_says_what_it_does(file) -> None:
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree)


def test_training_scripts_are_short() -> None:
    mains = [file for file in SCRIPTS if "__main__" in file.read_text()]
    assert len(mains) >= 5
    assert all(len(file.read_text().splitlines()) < 80 for file in mains)


@pytest.mark.parametrize("target", ["deepspeed", "fsdp"])
@pytest.mark.parametrize(
    "job", [{"tuning": "lora:r=8"}, {"loss": "chunked"}, {"loss": "kernel"}, {"loss": "full"}]
)
def test_what_it_would_not_do_is_left_to_the_user_s_own(target: str, job: dict) -> None:
    problem, plan = case(target, job=job, zero_stage=3)
    files = emit(problem, plan)
    assert not set(ABOUT) & set(files)
    assert "DEFAULT_SCRIPT=train.py" in files["launch.sh"]


def test_every_loss_is_computed_by_the_script_or_told_to_the_user() -> None:
    """What is priced runs: a loss that transformers does not compute by itself is named in the README."""
    for loss in LOSSES:
        files = render(*case("fsdp", job={"loss": loss}))
        told = loss in arguments.LOSS and arguments.LOSS[loss] in files["README.md"]
        assert "train.py" in files or told, loss
        assert ("train.py" in files) == (loss in scripts.LOSSES)


def test_models_that_are_no_decoders_have_none() -> None:
    problem = Problem(load_model("bert-large"), cluster("dgx-h100:1"), Job(64, 512, target="deepspeed"))
    assert "train.py" not in emit(problem, make_plan(problem, zero_stage=2))


def test_a_pipeline_brings_its_module_and_imports_only_what_is_beside_it() -> None:
    files = emit(*case("deepspeed", pp=2))
    assert {"train.py", "planned.py", "pipeline_model.py"} <= set(files)
    assert "pipeline_model.py" not in emit(*case("deepspeed"))
    imports = [n.module for n in ast.walk(ast.parse(files["train.py"])) if isinstance(n, ast.ImportFrom)]
    assert {"pipeline_model", "planned"} <= set(imports)


@pytest.mark.parametrize("loss", ["kernel", "chunked", "fused"])
def test_a_pipeline_s_loss_is_the_one_that_its_module_computes(loss: str) -> None:
    with pytest.raises(MeshwrightError, match=f"target pipeline model.*loss={loss}"):
        case("deepspeed", job={"loss": loss}, pp=2)


def test_layers_that_are_recomputed_alone_are_told() -> None:
    problem, plan = case("fsdp", zero_stage=3, recompute="0-1:full")
    assert "Recompute decoder layers 0, 1 alone" in render(problem, plan)["README.md"]
    none = replace(plan, recompute=("none",) * 34)
    assert "alone" not in render(problem, none)["README.md"]


@pytest.mark.parametrize("target", EMITTERS)
def test_the_readme_tells_what_the_emitted_script_must_be_given(target: str) -> None:
    problem, plan = case(target, zero_stage=1 if "megatron" in target else 3)
    files = render(problem, plan)
    scripts = "".join(files.get(name, "") for name in ("train.py", "planned.py"))
    needed = re.findall(r'add_argument\(\s*"(--[a-z-]+)"[^)]*required=True', scripts)
    start = files["README.md"].split("## Start")[1].split("## ")[0]
    assert [name for name in needed if f"needs `{name} " not in start] == []
    assert ("Arguments are handed on" in start) == bool(needed)


def test_a_script_of_the_user_s_own_asks_what_it_likes() -> None:
    problem, plan = case("native", zero_stage=3)
    (plain, own) = (render(problem, plan, script)["README.md"] for script in (None, "mine.py"))
    assert "needs `--model" in plain
    assert "needs `--model" not in own
