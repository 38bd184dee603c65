"""The root of every error that bad input raises: a ``ValueError`` with the fact and the limit."""

from typing import Final

MAX_NAMES_SHOWN: Final = 40
MAX_SHOWN: Final = 80
FILES: Final = (".json", ".yaml", ".yml", ".toml")


def shown(value: object) -> str:
    """Return a value as a message quotes it: as Python writes it, cut where it is long."""
    told = repr(value)
    return told if len(told) <= MAX_SHOWN else told[: MAX_SHOWN - 3] + "..."


class MeshwrightError(ValueError):
    """Bad input: the message names the field, its value, what is allowed and what to try."""


class CatalogueError(MeshwrightError):
    """A data file or a cluster name that cannot be used: says where, what, and what is allowed."""

    def __init__(self, where: str, field: str, value: object, allowed: str, hint: str = "") -> None:
        tail = f"; try {hint}" if hint else ""
        super().__init__(f"{where}: {field} is {shown(value)}; allowed: {allowed}{tail}")
        self.where, self.field, self.value = where, field, value


class UnknownNameError(MeshwrightError):
    """A catalogue, preset or target name that does not exist; the message lists near matches.

    ``like`` is compared with the known names where that is another; ``more`` says what else to try.
    """

    def __init__(self, what: str, name: str, known: list[str], like: str = "", more: str = "") -> None:
        from difflib import get_close_matches

        near = get_close_matches(like or name, known, n=3, cutoff=0.4)
        rest = f" and {len(known) - MAX_NAMES_SHOWN} more" if len(known) > MAX_NAMES_SHOWN else ""
        if near:
            hint = f"did you mean {', '.join(near)}?"
        elif name.lower().endswith(FILES):
            hint = "there is no such file"
        else:
            hint = f"known: {', '.join(sorted(known)[:MAX_NAMES_SHOWN])}{rest}"
        super().__init__(f"{what}: {shown(name)} is not known; {hint}{more}")
        self.name = name
