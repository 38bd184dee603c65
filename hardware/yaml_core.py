"""What plain words of YAML mean: the core schema of YAML 1.2, which is what JSON and today's editors take.

PyYAML reads YAML 1.1, where ``1:30`` is ninety, ``010`` is eight, ``on`` and ``no`` are switches and a day is
no text. Here a number is what Python and JSON take for one, a switch is ``true`` or ``false``, and all else
is text, which the reader of a field refuses in its own words. Source: YAML 1.2.2, section 10.3.2.
"""

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import yaml

_TAG: Final = "tag:yaml.org,2002:"
_WORDS: Final = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
)
"""Kinds of plain words, the pattern of each and what it may begin with, first match first."""


@lru_cache(maxsize=1)
def loader_class() -> "type[yaml.SafeLoader]":
    """Return a safe loader (in C where libyaml exists) of the core schema that refuses repeated keys."""
    import yaml

    base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class CoreLoader(base):  # type: ignore[misc, valid-type]
        """SafeLoader in which writing a key twice is an error and not a silent override."""

        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

        def flatten_mapping(self, node: Any) -> None:
            """Leave a key ``<<`` what it is: merging is YAML 1.1 as well."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            """Return the mapping of a node; refuses a key that is written twice."""
            seen = set()
            for key in (key for key, _ in node.value if isinstance(key.value, str)):
                if key.value in seen:
                    said = f"key {key.value!r} is written twice"
                    raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                seen.add(key.value)
            mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
            return mapping

        def whole(self, node: Any) -> int:
            """Return a whole number; only a base that is written out is not ten."""
            text = self.construct_scalar(node)
            number = int(text, 0 if text[:2] in ("0o", "0x") else 10)
            str(number)  # Python refuses to print thousands of digits, in an error's sentence too
            return number

        def real(self, node: Any) -> float:
            """Return a number, infinite and none included."""
            text = self.construct_scalar(node).lower()
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))

    _resolve(CoreLoader)
    CoreLoader.add_constructor(f"{_TAG}int", CoreLoader.whole)
    CoreLoader.add_constructor(f"{_TAG}float", CoreLoader.real)
    return CoreLoader


def _resolve(kind: Any) -> None:
    """Teach a loader or a dumper the plain words of the core schema."""
    for name, pattern, first in _WORDS:
        starts = [*first, ""] if name == "null" else list(first)
        kind.add_implicit_resolver(f"{_TAG}{name}", re.compile(rf"^(?:{pattern})$"), starts)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML that means the same in YAML 1.1 and in the core schema of 1.2."""
    import yaml

    class BothDumper(yaml.SafeDumper):
        """SafeDumper that also quotes text which only the core schema takes for something else."""

    _resolve(BothDumper)
    text: str = yaml.dump(dict(data), Dumper=BothDumper, sort_keys=False, allow_unicode=True, width=100)
    return text
