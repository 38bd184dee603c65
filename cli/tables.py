"""The plain parts of every page: the console, table shapes, JSON."""

import json
import sys
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.cli.errors import printable


def screen(*, stderr: bool = False) -> Console:
    """Return a console that takes text as it is; 80 columns and no colours where no terminal is."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def plain(text: Any, style: str = "") -> Text:
    """Return text that cannot steer the terminal."""
    return Text(printable(text), style=style)


def grid(
    *headers: str, right: Iterable[int] = (), whole: Iterable[int] = (), title: str | None = None
) -> Table:
    """Return a table with one rule below its head; ``right`` are numbers, ``whole`` words never broken."""
    heading = plain(title, "bold") if title else None
    table = Table(box=SIMPLE_HEAD, title=heading, title_justify="left", pad_edge=False, show_edge=False)
    numbers, unbroken = set(right), {*right, *whole}
    for index, header in enumerate(headers):
        is_number = index in numbers
        table.add_column(
            header,
            justify="right" if is_number else "left",
            no_wrap=index in unbroken,
            overflow="fold",
            header_style="dim",
        )
    return table


def facts(rows: Iterable[tuple[str, Any]]) -> Table:
    """Return names on the left and what they are on the right."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else plain(value))
    return table


def bullets(items: Iterable[str]) -> Table:
    """Return a list whose items wrap behind their bullet."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for item in items:
        table.add_row("•", plain(item))
    return table


def section(title: str, *parts: RenderableType) -> list[RenderableType]:
    """Return a heading and what stands below it, after an empty line."""
    return [Text(), plain(title, "bold"), *parts]


def write_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout; what is no finite number becomes null."""
    sys.stdout.write(json.dumps(_finite(data), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """Return plain data: numbers of numpy as Python's, sets as sorted lists, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((_finite(v) for v in value), key=repr)
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, float):
        return value if isfinite(value) else None
    return str(value)
