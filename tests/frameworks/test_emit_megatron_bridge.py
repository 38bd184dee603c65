"""Names and fields of the emitted recipe are in the sources of Megatron-Bridge and Megatron-Core.

Neither can be imported under Python 3.11: their sources are read, not run.
"""

import ast
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from meshwright.planner.emit.megatron_bridge import model_fields
from meshwright.planner.emit.registry import emit
from tests.planner.emit.cases import case
from tests.planner.emit.test_megatron_bridge import calls

FOLDER = Path(sys.prefix) / "megatron-lm"
"""Where the gate unpacks megatron-bridge 0.6.2 and megatron-core 0.19.2."""
if not (FOLDER / "megatron" / "bridge").is_dir():
    pytest.skip(f"Megatron-Bridge's sources are not in {FOLDER}", allow_module_level=True)

CASES = {
    "dense": {"tp": 4, "pp": 2, "vpp": 2, "recompute": "full"},
    "inside": {"tp": 2, "pp": 2, "placement": "tp,cp,pp,dp", "zero_stage": 0},
    "copies": {"dp_replicate": 2, "cp": 4, "ulysses": 2},
}


@lru_cache(maxsize=64)
def tree(module: str) -> ast.Module:
    path = FOLDER.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def defined(module: str) -> set[str]:
    """Return the names that a module defines or imports at its top."""
    found: set[str] = set()
    for node in tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


@lru_cache(maxsize=1)
def fields() -> frozenset[str]:
    """Return the annotated fields of every class in the two packages' configurations."""
    root = FOLDER / "megatron"
    places = [*(root / "core").rglob("*config*.py"), *(root / "training" / "config").glob("*.py")]
    places += [
        root / "core/datasets/gpt_dataset.py",
        root / "bridge/data/base.py",
        root / "bridge/training/comm_overlap.py",
        root / "bridge/training/config.py",
        root / "bridge/training/tokenizers/config.py",
    ]
    found: set[str] = set()
    for place in filter(Path.is_file, places):
        for node in ast.walk(ast.parse(place.read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return frozenset(found)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("file", ["meshwright_recipe.py", "train.py"])
def test_every_import_is_there(name: str, file: str) -> None:
    source = emit(*case("megatron-bridge", **CASES[name]))[file]
    imports = [
        n
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.ImportFrom) and str(n.module).startswith("megatron")
    ]
    assert imports
    for node in imports:
        assert node.module is not None
        assert {alias.name for alias in node.names} <= defined(node.module)


@pytest.mark.parametrize("name", CASES)
def test_every_field_is_one_of_theirs(name: str) -> None:
    problem, plan = case("megatron-bridge", **CASES[name])
    assert set(model_fields(problem, plan)) <= fields()
    found = calls(emit(problem, plan)["meshwright_recipe.py"])
    configs = {n: keys for n, keys in found.items() if n.endswith("Config")}
    assert len(configs) >= 8
    for keys in configs.values():
        assert set(keys) <= fields()


def test_the_optimizer_s_function_has_the_arguments() -> None:
    module = "megatron.bridge.recipes.utils.optimizer_utils"
    name = "distributed_fused_adam_with_cosine_annealing"
    function = next(n for n in tree(module).body if isinstance(n, ast.FunctionDef) and n.name == name)
    known = {argument.arg for argument in function.args.args}
    given = calls(emit(*case("megatron-bridge"))["meshwright_recipe.py"])[name]
    assert set(given) | {"lr_decay_iters"} <= known
