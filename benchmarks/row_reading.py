"""Files of rows that others wrote: every line becomes a row, and what is wrong in one is told beside it.

:func:`benchmarks.rows.read_rows` refuses a file for one wrong field, as a file to fit to must be right. Here
a number in quotes is the number, a length of 8k is 8192, a field that no row has is left out, and any other
wrong value counts as not stated; a line that holds no row stands as one without a price, with the reason.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from benchmarks.row_fields import problem_of
from benchmarks.rows import BUILT_IN, REQUIRED, Row, read_rows, text_of
from meshwright.cli.amounts import length
from meshwright.hardware.errors import MeshwrightError, shown
from meshwright.hardware.files import unique_keys


@dataclass(frozen=True, slots=True)
class MisreadRow(Row):
    """A row that is not taken as it is written.

    Attributes
    ----------
    misread
        What was read otherwise.
    unreadable
        Why nothing can be priced; None if something can.
    """

    misread: tuple[str, ...] = ()
    unreadable: str | None = None


_FIELDS: Final = tuple(f.name for f in fields(Row))
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")
_WHOLE: Final = re.compile(r"\s*[0-9]{1,18}\s*")
_ENDLESS: Final = re.compile(r"\d{31,}")
"""Numbers inside texts that count nothing in so many digits; of thousands of digits Python makes none."""
_LONGEST: Final = 2000
"""Characters of a text that are read: six times what any source remarks."""
_TRUTH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SHAPE: Final = ("moe",)
"""Fields without which a row would be priced as another model."""
_NOT_STATED: Final = "not stated"


def read_all(files: Sequence[Path]) -> tuple[Row, ...]:
    """Return the rows of all files, of the built-in one without any; every line that is not empty is one.

    Raises
    ------
    RowError
        If a file cannot be read.
    """
    if not files:
        return read_rows(BUILT_IN)
    found = [
        row_of_line(line, f"{file.name}:{n}")
        for file in files
        for n, line in enumerate(text_of(file).split("\n"), start=1)
        if line.strip()
    ]
    return tuple(found)


def row_of_line(line: str, where: str) -> Row:
    """Return the row of a line; ``where`` stands for its id if it has none."""
    try:
        values = json.loads(line, object_pairs_hook=unique_keys("field"))
    except MeshwrightError as error:
        return _none(where, str(error))
    except (ValueError, RecursionError):
        return _none(where, "the line is not JSON that can be read; one object a line")
    if not isinstance(values, dict):
        return _none(where, "the line is no JSON object")
    return lenient(values, where)


def _none(where: str, reason: str) -> MisreadRow:
    texts = dict.fromkeys(REQUIRED, _NOT_STATED) | {"id": where, "outcome": "ok"}
    return MisreadRow(**texts, unreadable=reason)


def lenient(values: Mapping[str, Any], where: str) -> Row:
    """Return the row of an object, with what had to be read otherwise."""
    told = [f"{shown(name)} is not a field: left out" for name in values if name not in _FIELDS]
    known = {name: _plain(name, value) for name, value in values.items() if name in _FIELDS}
    other = {name: got for name, got in known.items() if got != values[name]}
    told += [f"{name} is {shown(values[name])}: read as {shown(got)}" for name, got in other.items()]
    for name, usual in (dict.fromkeys(REQUIRED, _NOT_STATED) | {"id": where, "outcome": "ok"}).items():
        if not isinstance(known.get(name), str):
            said = "not stated" if known.get(name) is None else shown(known[name])
            told.append(f"{name} is {said}" + f": read as {usual!r}" * (usual != _NOT_STATED))
            known[name] = usual
    unreadable = None
    while problem := problem_of(Row, known):
        told.append(f"{problem}: counts as not stated")
        name = problem.split()[0].rstrip(":")
        if name == "extra" and isinstance(known["extra"], Mapping):
            inner = problem.split()[1]
            known["extra"] = {k: v for k, v in known["extra"].items() if k != inner}
            continue
        known.pop(name)
        known |= {"outcome": "ok"} if name == "outcome" else {}
        unreadable = problem if name in _SHAPE else unreadable
    return MisreadRow(**known, misread=tuple(told), unreadable=unreadable) if told else Row(**known)


_HINTS: Final = {name: {*get_args(hint), hint} for name, hint in get_type_hints(Row).items()}


def _plain(name: str, value: Any) -> Any:
    """Return a value as its field has it, where it is the same in other clothes."""
    kinds = _HINTS[name]
    if isinstance(value, str) and name != "id":
        value = _ENDLESS.sub("", value)[:_LONGEST]
    if isinstance(value, float) and isnan(value):  # how some writers say null
        return None
    if isinstance(value, str) and name == "seq_len":
        value = length(value)
    if isinstance(value, str) and str not in kinds:
        text = value.strip().lower().replace(",", "")
        if bool in kinds:
            return _TRUTH.get(text, value)
        if _NUMBER.fullmatch(text) and kinds & {int, float}:
            value = float(text)
    if isinstance(value, float) and int in kinds and value.is_integer():
        return int(value)
    if isinstance(value, bool) and bool not in kinds and str in kinds:
        return str(value).lower()
    if isinstance(value, int | float) and str in kinds:
        return str(value)
    if name == "outcome" and isinstance(value, str):
        return "oom" if re.search("oom|memory", value.lower()) else value.strip().lower()
    if isinstance(value, Mapping):
        return {k: _entry(v) for k, v in value.items()}
    return value


def _entry(value: Any) -> Any:
    """Return what stands in an object's field: a count in quotes is the count, no number says null."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    return None if isinstance(value, float) and isnan(value) else value
