"""Numbers as people read them: the only place that rounds."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from meshwright.hardware.units import bytes_to_gib, s_to_text

NONE = "–"


def seconds(value: float | None) -> str:
    """Return a time with four or five digits and its unit."""
    return NONE if value is None else s_to_text(value)


def gib(value: float) -> str:
    """Return bytes in GiB, without the unit."""
    return f"{bytes_to_gib(value):.2f}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction in per cent; what rounds to zero and is not zero says so."""
    if fraction is None:
        return NONE
    least = 10.0**-digits
    if 0 < 100 * fraction < least / 2:
        return f"< {least:.{digits}f} %"
    return f"{100 * fraction:.{digits}f} %"


def usd(value: float | None) -> str:
    """Return an amount of money."""
    if value is None:
        return NONE
    return f"${value:,.0f}" if value >= 1000 else f"${value:,.2f}" if value >= 1 else f"${value:.3g}"


def hours(value: float | None) -> str:
    """Return hours, and days where that says more."""
    if value is None:
        return NONE
    return f"{value:,.1f} h" if value < 100 else f"{value:,.0f} h ({value / 24:,.1f} days)"


def count(value: int | float) -> str:
    """Return a count with thousands apart."""
    return f"{value:,.0f}"


def plural(number: int, noun: str) -> str:
    """Return ``1 layer`` or ``2 layers``."""
    ending = "" if number == 1 else "es" if noun.endswith(("sh", "ch")) else "s"
    return f"{number:,} {noun}{ending}"


def words(name: str) -> str:
    """Return a field's name without underscores and without its unit."""
    for unit in ("_s", "_bytes"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def bar(fraction: float, width: int) -> str:
    """Return a bar of blocks, eight steps to a character."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def span(first: int, last: int) -> str:
    """Return ``3`` or ``3–7``."""
    return str(first) if first == last else f"{first}–{last}"


def runs(keys: Sequence[object]) -> list[tuple[int, int]]:
    """Return the first and last index of each run of equal neighbours."""
    found = []
    start = 0
    for _, group in groupby(keys):
        length = sum(1 for _ in group)
        found.append((start, start + length - 1))
        start += length
    return found


def listed(items: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    parts = list(items)
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
