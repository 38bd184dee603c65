"""What loading costs: the import name and the help stay light, each module stands by itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright

CHECKOUT = Path(__file__).resolve().parent.parent
ROOMS = ("hardware", "costmodels", "planner", "cli")
HEAVY = {"ortools", "networkx", "pandas", "torch", "numpy", "pydantic", "pydantic_core", "yaml"}


def unmeasured() -> dict[str, str]:
    """Return the environment without coverage, which would load modules of its own in a child."""
    return {k: v for k, v in os.environ.items() if not k.startswith("COV")}


def loaded_by(code: str) -> set[str]:
    """Return the names in ``sys.modules`` after ``code`` ran in a new interpreter."""
    probe = f"import json, sys\n{code}\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
        env=unmeasured(),
    )
    return set(json.loads(done.stderr))


def modules_of(room: str) -> list[str]:
    """Return the dotted names of all modules in a room, as they are on disk; no scripts."""
    found = sorted((CHECKOUT / room).rglob("*.py"))
    files = [f for f in found if "data" not in f.relative_to(CHECKOUT).parts]
    dotted = (".".join(("meshwright", *f.relative_to(CHECKOUT).with_suffix("").parts)) for f in files)
    return [name.removesuffix(".__init__") for name in dotted]


def test_import_meshwright_loads_no_room_and_nothing_heavy() -> None:
    loaded = loaded_by("import meshwright; assert meshwright.__version__")
    assert {m for m in loaded if m.startswith("meshwright")} == {"meshwright", "meshwright._version"}
    assert not loaded & {*HEAVY, "typer", "rich"}


def test_help_is_light() -> None:
    loaded = loaded_by(
        "from meshwright.cli.main import main\n"
        "sys.argv = ['meshwright', '--help']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
    )
    assert "meshwright.cli.main" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    ("room", "foreign"),
    [
        ("hardware", {"ortools", "typer", "rich", "torch", "pandas"}),
        ("costmodels", {"ortools", "networkx", "pydantic", "typer", "rich", "torch", "pandas"}),
        ("planner", {"typer", "rich", "torch"}),
    ],
)
def test_room_does_not_load_what_is_foreign_to_it(room: str, foreign: set[str]) -> None:
    searching = ("meshwright.planner.cpsat", "meshwright.planner.search")
    code = "\n".join(f"import {name}" for name in modules_of(room) if not name.startswith(searching))
    assert not loaded_by(code) & foreign


@pytest.mark.parametrize("room", ROOMS)
def test_each_module_imports_by_itself(room: str) -> None:
    # Forked from an interpreter in which nothing of the room is loaded, so that no module leans on the order
    # in which another one happens to import it; libraries are loaded once, before the forks, and so are the
    # rooms below, which may not know this one (the import contracts) and have a turn of their own.
    below = [name for other in ROOMS[: ROOMS.index(room)] for name in modules_of(other)]
    driver = (
        "import os, sys, importlib, traceback, numpy, networkx, pydantic, yaml, typer, rich\n"
        "import ortools.sat.python.cp_model\n"
        "import ortools.sat.python.cp_model\n"
        "at = sys.argv.index('own')\n"
        "for name in sys.argv[1:at]:\n"
        "    importlib.import_module(name)\n"
        "failed = []\n"
        "for name in sys.argv[at + 1 :]:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            importlib.import_module(name)\n"
        "        except BaseException:\n"
        "            traceback.print_exc()\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        failed.append(name)\n"
        "assert not failed, failed\n"
    )
    names = modules_of(room)
    assert names
    done = subprocess.run(
        [sys.executable, "-c", driver, *below, "own", *names],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", meshwright.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(meshwright, name) is not None
    assert name in dir(meshwright)


def test_table_and_public_names_agree() -> None:
    assert {"__version__", *meshwright._HOME} == set(meshwright.__all__)


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        meshwright.solv  # noqa: B018
