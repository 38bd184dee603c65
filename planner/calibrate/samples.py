"""Files of samples: on each line a case and its seconds as JSON, for later runs to be merged with them."""

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any, Final, get_args

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.files import unique_keys
from meshwright.hardware.units import TERA
from meshwright.planner.calibrate.cases import DTYPES, KINDS, Sample
from meshwright.planner.calibrate.plausible import plausible_s

MAX_SAMPLES: Final = 100_000
MOST_COUNT: Final = int(TERA)
"""Of elements and bytes: beyond what one device holds."""
MOST: Final[Mapping[str, int]] = {
    "inside": 10**4,
    "across": 10**6,
    "heads": 10**5,
    "head_dim": 10**5,
    "sequences": 10**7,
    "length": 10**8,
}
"""Of the fields that count other things: ranks of a host, hosts, and the sides of attention."""


def to_lines(samples: Iterable[Sample]) -> str:
    """Return samples as text, one JSON object a line."""
    rows = ({"kind": type(s.case).__name__.lower(), **asdict(s.case), "seconds": s.seconds} for s in samples)
    return "".join(json.dumps(row) + "\n" for row in rows)


def from_lines(text: str, where: str) -> list[Sample]:
    """Return the samples in a text.

    Raises
    ------
    MeshwrightError
        Naming the line, the field and what is allowed.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > MAX_SAMPLES:
        raise MeshwrightError(f"{where}: {len(lines)} lines; at most {MAX_SAMPLES} samples are read")
    return [_sample(line, f"{where}: line {number}") for number, line in enumerate(lines, start=1)]


def _sample(line: str, where: str) -> Sample:
    try:
        row = json.loads(line, object_pairs_hook=unique_keys(f"{where}: field"))
    except MeshwrightError:
        raise
    except (ValueError, RecursionError):
        raise MeshwrightError(f"{where}: no JSON object") from None
    if not isinstance(row, dict) or row.get("kind") not in tuple(KINDS):
        raise MeshwrightError(f"{where}: a JSON object with kind is expected, one of {', '.join(KINDS)}")
    kind, seconds = KINDS[row.pop("kind")], row.pop("seconds", None)
    own = {f.name: f for f in fields(kind)}
    unknown = sorted(set(row) - set(own))
    missing = [name for name, f in own.items() if name not in row and f.default is MISSING]
    if unknown or missing:
        raise MeshwrightError(
            f"{where}: {(unknown or missing)[0]!r}; the fields are {', '.join(own)}, seconds"
        )
    for name, value in row.items():
        words = DTYPES if name == "dtype" else get_args(own[name].type)
        _check(own[name].type, words, value, MOST.get(name, MOST_COUNT), f"{where}: {name}")
    case = kind(**row)
    least, most = plausible_s(case)
    if not _number(seconds) or not least <= seconds <= most:
        raise MeshwrightError(
            f"{where}: seconds is {reprlib.repr(seconds)}; a number from {least:.3g} to {most:.3g} is "
            "expected: no machine is faster or slower at this"
        )
    return Sample(case, float(seconds))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(wanted: Any, words: Sequence[str], value: Any, most: int, where: str) -> None:
    """Raise MeshwrightError unless a field's value is of its type: a count, a switch, one of some words."""
    if wanted is int:
        fits = _number(value) and 1 <= value <= most and int(value) == value
        what = f"a whole number from 1 to {most:,}"
    elif wanted is bool:
        fits, what = isinstance(value, bool), "true or false"
    else:
        fits, what = isinstance(value, str) and value in words, f"one of {', '.join(words)}"
    if not fits:
        raise MeshwrightError(f"{where} is {reprlib.repr(value)}; {what} is expected")
