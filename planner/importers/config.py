"""Read a model's ``config.json`` as data: validated numbers in, nothing executed, nothing guessed.

``auto_map`` and ``trust_remote_code`` name Python code beside the file; they are never followed.
"""

import json
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from meshwright.hardware.errors import MeshwrightError, shown
from meshwright.hardware.units import mib_to_bytes

SIZE_LIMIT_BYTES: Final = int(mib_to_bytes(8))
"""Far above any published config.json (the largest list every layer or thousands of labels)."""

LIMITS: Final[Mapping[str, int]] = {
    "width": 1_000_000,
    "layers": 10_000,
    "heads": 100_000,
    "vocab": 100_000_000,
    "rows": 1_000_000_000,
}
"""Upper limits by what is counted; beyond them a file is a mistake."""

MISSING: Final = object()
"""What :meth:`Config.find` returns where a file has none of the keys (null is a value)."""


class ModelConfigError(MeshwrightError):
    """A model file that cannot be read, or a model that cannot be planned; names the file and the key."""


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed configuration with typed look-ups; ``source`` names the file in messages.

    ``assumed`` collects the sizes that the file left to its class's defaults.
    """

    source: str
    values: Mapping[str, Any]
    assumed: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def model_type(self) -> str:
        """The family's name, "" if the file has none; raises ModelConfigError if it is no text."""
        value = self.values.get("model_type")
        if value is not None and not isinstance(value, str):
            self.refuse("model_type", value, "a text such as 'llama'")
        return value or ""

    def find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the first of ``names`` that is in the file with its value; ``a.b`` looks inside ``a``."""
        found = [(name, _dig(self.values, name)) for name in names]
        present = [pair for pair in found if pair[1] is not MISSING]
        return next((p for p in present if p[1] is not None), (present or [(names[0], MISSING)])[0])

    def count(self, name: str, value: object, what: str, minimum: int = 1) -> int:
        """Return ``value`` as a positive integer below the limit for ``what``, else refuse it."""
        limit = LIMITS.get(what, LIMITS["width"])
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, int) or whole):
            self.refuse(name, value, f"an integer between {minimum} and {limit:,}")
        if not minimum <= value <= limit:  # type: ignore[operator]  # int or float after the check above
            self.refuse(name, value, f"between {minimum} and {limit:,}")
        return int(value)  # type: ignore[call-overload,no-any-return]

    def flag(self, name: str, value: object) -> bool:
        """Return ``value`` if it is true or false, else refuse it."""
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def probability(self, name: str, value: object) -> float:
        """Return ``value`` if it is a number in [0, 1), else refuse it."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.refuse(name, value, "a number from 0 to below 1")
        return float(value)

    def fraction(self, name: str, value: object) -> float:
        """Return ``value`` if it is a number in [0, 1], else refuse it."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self.refuse(name, value, "a number from 0 to 1")
        return float(value)

    def refuse(self, name: str, value: object, allowed: str) -> NoReturn:
        """Raise ModelConfigError naming the file, the key, its value and what is allowed."""
        raise ModelConfigError(f"{self.source}: {name} is {reprlib.repr(value)}; allowed: {allowed}")


def _dig(values: Mapping[str, Any], name: str) -> Any:
    """Return the value at a dotted name, MISSING if any step is not there."""
    here: Any = values
    for step in name.split("."):
        if not isinstance(here, Mapping) or step not in here:
            return MISSING
        here = here[step]
    return here


def read_config(path: Path) -> Config:
    """Return the ``config.json`` at ``path`` (the file, or the folder that holds it).

    Raises
    ------
    ModelConfigError
        No such file, too large, not UTF-8, not JSON, a key given twice, or not an object. (NaN and Infinity
        stand in published files; the look-ups refuse them where a size is expected.)
    """
    file = path / "config.json" if path.is_dir() else path
    text = read_text(file)
    source = str(file)
    try:
        values = json.loads(text, object_pairs_hook=_unique(source))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelConfigError(f"{source}: not valid JSON ({error}); a config.json is expected") from error
    except ValueError as error:  # integers of thousands of digits
        if isinstance(error, ModelConfigError):
            raise
        raise ModelConfigError(f"{source}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise ModelConfigError(f"{source}: holds a {type(values).__name__}; a JSON object is expected")
    return Config(source, values)


def read_text(file: Path, limit_bytes: int = SIZE_LIMIT_BYTES) -> str:
    """Return the text of a regular file of at most ``limit_bytes``; raises ModelConfigError."""
    if not file.is_file():
        raise ModelConfigError(
            f"{file}: no such file; give a config.json, the folder that holds it or a YAML"
        )
    size = file.stat().st_size
    if size > limit_bytes:
        raise ModelConfigError(f"{file}: {size:,} bytes; a model file has at most {limit_bytes:,}")
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise ModelConfigError(f"{file}: cannot be read as text ({error})") from error


def _unique(source: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object as a dictionary."""
        values = dict(pairs)
        if len(values) < len(pairs):
            ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise ModelConfigError(f"{source}: key {shown(twice)} is given twice")
        return values

    return build
