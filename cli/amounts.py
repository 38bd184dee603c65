"""Numbers as people write them: 15e12 for a run's tokens, 8k for a sequence's."""

import re
from decimal import Decimal
from typing import Any, Final

_SHORT: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kKmMbBtT])")
_LETTERS: Final = {"k": 1, "m": 2, "b": 3, "t": 4}
"""Powers of a thousand, or of 1,024 where tokens of a sequence are counted."""


def whole(value: Any) -> Any:
    """Return an int for 128, 15e12 or "15e12"; anything else stays as it is, for others to refuse."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        try:
            value = float(value) if not value.strip().isdecimal() else int(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def length(value: Any) -> Any:
    """Return the tokens of 8192 or of 8k, as contexts are named: k is 1,024, M its square."""
    return _in_units(value, 1024)


def amount(value: Any) -> Any:
    """Return the tokens of 15e12 or of 15T, as data sets are counted: in thousands."""
    return _in_units(value, 1000)


def written_out(value: Any) -> str:
    """Say what 2k may mean where that is open, nothing of other values."""
    meant = [_in_units(value, base) for base in (1000, 1024)]
    return "" if meant == [whole(value)] * 2 else f"; write {' or '.join(map(str, meant))}"


def _in_units(value: Any, base: int) -> Any:
    found = _SHORT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return whole(value)
    tokens = Decimal(found[1]) * base ** _LETTERS[found[2].lower()]
    return int(tokens) if tokens == int(tokens) else float(tokens)
