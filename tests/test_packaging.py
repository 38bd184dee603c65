"""The package list, the wheel, and the wheel at work outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from meshwright import __version__

# One worker builds the wheel for all tests of this file.
pytestmark = pytest.mark.xdist_group("packaging")

CHECKOUT = Path(__file__).resolve().parent.parent
ROOMS = ("hardware", "costmodels", "planner", "cli")
SETUPTOOLS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]


def packages_on_disk() -> set[str]:
    """Return the dotted names of all folders of ours that hold Python modules, not scripts that are data."""
    files = {f.relative_to(CHECKOUT) for room in ROOMS for f in (CHECKOUT / room).rglob("*.py")}
    folders = {file.parent for file in files if "data" not in file.parts}
    return {"meshwright", *(".".join(("meshwright", *folder.parts)) for folder in folders)}


def data_on_disk() -> set[str]:
    """Return the wheel paths that the data files of the rooms must have."""
    files = {f for room in ROOMS for f in (CHECKOUT / room).rglob("data/**/*") if f.is_file()}
    return {f"meshwright/{f.relative_to(CHECKOUT)}" for f in files if "__pycache__" not in f.parts}


def test_package_list_equals_folders_on_disk() -> None:
    assert len(SETUPTOOLS["packages"]) == len(set(SETUPTOOLS["packages"]))
    assert set(SETUPTOOLS["packages"]) == packages_on_disk()


def test_every_package_has_a_docstring() -> None:
    for name in packages_on_disk():
        init = CHECKOUT.joinpath(*name.split(".")) / "__init__.py"
        assert init.read_text().startswith('"""'), init


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy: building leaves its traces beside the sources."""
    tree = tmp_path_factory.mktemp("tree")
    keep = {"meshwright", *ROOMS, "pyproject.toml", "README.md", "LICENSE"}
    for entry in CHECKOUT.iterdir():
        if entry.is_dir() and entry.name in keep:
            shutil.copytree(
                entry, tree / entry.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif entry.name in keep:
            shutil.copy(entry, tree)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tree / "dist", tree]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of a new environment that has the wheel and borrows only the dependencies."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    # A path named by a .pth file does not have its own .pth files read: an editable install stays unseen.
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    return home / "bin"


def run_outside(command: list[str | Path], folder: Path) -> str:
    """Run a command in ``folder`` with nothing of the checkout on its path and return what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert names == {"meshwright", f"meshwright-{__version__}.dist-info"}


def test_wheel_has_all_modules_and_data(wheel: Path) -> None:
    listed = zipfile.ZipFile(wheel).namelist()
    modules = {
        f"meshwright/{f.relative_to(CHECKOUT)}" for room in ROOMS for f in (CHECKOUT / room).rglob("*.py")
    }
    assert len(listed) == len(set(listed))
    assert modules | data_on_disk() | {"meshwright/py.typed"} <= set(listed)


def test_wheel_knows_its_version_and_where_it_lives(clean_environment: Path, tmp_path: Path) -> None:
    shown = run_outside([clean_environment / "meshwright", "--version"], tmp_path)
    assert __version__ in shown
    where = run_outside(
        [clean_environment / "python", "-c", "import meshwright.planner as p; print(p.__file__)"], tmp_path
    )
    assert Path(where.strip()).is_relative_to(clean_environment.parent)


def test_wheel_plans_the_built_in_example(clean_environment: Path, tmp_path: Path) -> None:
    job = "--model llama-3.1-8b --cluster dgx-h100 --global-batch 128 --seq-len 8192 --json"
    answer = json.loads(run_outside([clean_environment / "meshwright", "solve", *job.split()], tmp_path))
    assert answer["status"] == "OPTIMAL"
    assert 0 < answer["lower_bound_s"] <= answer["objective_s"]
    assert answer["objective_s"] <= answer["lower_bound_s"] * 1.001
