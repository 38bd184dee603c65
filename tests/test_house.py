"""Rules of the house that no single module can keep: links, one version, one place for units."""

import ast
import operator
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshwright

CHECKOUT = Path(__file__).resolve().parent.parent
ROOMS = ("hardware", "costmodels", "planner", "cli")
TEXT_SUFFIXES = {"", ".py", ".md", ".toml", ".yaml", ".yml", ".json", ".csv", ".txt", ".sh"}
FOLDED = {ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.Mult: operator.mul}
BINARY_FACTORS = {2**20, 2**30, 2**40}
DECIMAL_FACTORS = {10**9, 10**12, 10**15}
IGNORED = {".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", "htmlcov"}


def python_files() -> list[Path]:
    """Return every Python file of ours by its real path."""
    folders = (*ROOMS, "meshwright", "tests", "benchmarks")
    return sorted({f.resolve() for folder in folders for f in (CHECKOUT / folder).rglob("*.py")})


def text_files() -> Iterator[Path]:
    """Yield every text file of the checkout once, caches and environments left out."""
    for folder, subfolders, names in os.walk(CHECKOUT):
        subfolders[:] = [
            s for s in subfolders if s not in IGNORED and not s.endswith(("_cache", ".egg-info"))
        ]
        for path in (Path(folder) / name for name in names):
            if path.suffix in TEXT_SUFFIXES and not path.name.startswith(".coverage"):
                yield path


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_linked_under_the_import_name(room: str) -> None:
    link = CHECKOUT / "meshwright" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room


def test_links_are_committed_as_links() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--stage", "meshwright"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    modes = {line.split("\t")[1]: line.split()[0] for line in listing.stdout.splitlines()}
    assert {path for path, mode in modes.items() if mode == "120000"} == {f"meshwright/{r}" for r in ROOMS}


def test_version_is_written_in_one_place() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "meshwright._version.__version__"}
    writers = [f for f in python_files() if re.search(r"^__version__\s*=", f.read_text(), re.MULTILINE)]
    assert writers == [CHECKOUT / "meshwright" / "_version.py"]


def test_changelog_begins_with_this_version() -> None:
    newest = re.search(r"^## \[?([\d.]+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == meshwright.__version__


def test_imports_are_absolute_and_under_the_import_name() -> None:
    wrong = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = ["." * node.level + (node.module or "")]
            wrong += [f"{path}: {name}" for name in names if name.split(".")[0] in {"", *ROOMS}]
    assert wrong == []


def test_no_file_names_a_place_outside_the_checkout() -> None:
    # A path of one person's machine, or one that climbs out of the checkout, is absent elsewhere.
    outside = re.compile(
        r"(?<![\w./])/(?:home|root|work|Users)/\w|\.\./(?!hardware|costmodels|planner|cli)\w|(?<![\w/])shared/"
    )
    url = re.compile(r"https?://\S+")
    this = Path(__file__).resolve()
    found = [
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in text_files()
        if path != this
        for line in path.read_text(encoding="utf-8").splitlines()
        if outside.search(url.sub("", line))
    ]
    assert found == []


def literal_value(node: ast.expr) -> object:
    """Return the value of a literal or of a power, shift or product of two literals, else None."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in FOLDED:
        left, right = literal_value(node.left), literal_value(node.right)
        if isinstance(left, int) and isinstance(right, int):
            return FOLDED[type(node.op)](left, right)
    return None


def conversions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the places that convert a unit.

    That is a binary prefix anywhere, and a decimal one that multiplies, divides or is given a name (as a
    bound or a default the same number is only a large number). Sizes of models are counts, whatever they
    are a power of.
    """
    counted = {
        id(inner)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "sizes"
        for argument in (*call.args, *(k.value for k in call.keywords))
        for inner in ast.walk(argument)
    }
    for node in ast.walk(tree):
        if id(node) in counted:
            continue
        inside: list[ast.expr | None] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            inside = [node.left, node.right]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            inside = [node.value]
        decimal = any(value is not None and literal_value(value) in DECIMAL_FACTORS for value in inside)
        if decimal or (isinstance(node, ast.expr) and literal_value(node) in BINARY_FACTORS):
            yield node


@pytest.mark.parametrize(
    "text",
    [
        "x * 2**30",
        "1 << 30",
        "1024 ** 3",
        "f(1024 * 1024)",
        "rate * 1e9",
        "x / 1_000_000_000_000",
        "GIGA = 1e9",
    ],
)
def test_a_conversion_is_recognised(text: str) -> None:
    assert list(conversions(ast.parse(text)))


@pytest.mark.parametrize(
    "text", ["x < 1e12", "Field(le=10**9)", "1024 * heads", "2**x", "sizes(length=1048576)"]
)
def test_a_large_number_is_no_conversion(text: str) -> None:
    assert not list(conversions(ast.parse(text)))


def test_units_are_converted_in_one_place() -> None:
    rooms = [f for f in python_files() if f.relative_to(CHECKOUT).parts[0] in ROOMS]
    found = [
        f"{path.relative_to(CHECKOUT)}: {ast.unparse(node)}"
        for path in rooms
        if path != CHECKOUT / "hardware" / "units.py"
        for node in conversions(ast.parse(path.read_text()))
    ]
    assert found == []


def undocumented(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions and classes without a docstring, nested ones too, private ones apart."""
    for node in ast.walk(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and not node.name.startswith("_") and not ast.get_docstring(node):
            yield node.name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('def f():\n    """Return."""\n    def g(): pass', ["g"]),
        ('class A:\n    """One."""\n    def f(self): pass\n    def _g(self): pass', ["f"]),
        ("def _f(): pass", []),
    ],
)
def test_what_has_no_docstring_is_recognised(text: str, names: list[str]) -> None:
    assert list(undocumented(ast.parse(text))) == names


def test_what_has_a_name_for_others_has_a_docstring() -> None:
    """Linters ask this of what a module exports; here of inner functions and classes too."""
    folders = (*ROOMS, "benchmarks")
    found = [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in python_files()
        if path.relative_to(CHECKOUT).parts[0] in folders and "data" not in path.parts
        for name in undocumented(ast.parse(path.read_text()))
    ]
    assert found == []
