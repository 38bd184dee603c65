"""What a row leaves open in its own field and says in another.

The year of the stack, its attention kernel where the stack's default was one through memory, what is trained.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from benchmarks.rows import Row

_ARXIV: Final = re.compile(r"\b(\d\d)(?:0[1-9]|1[0-2])\.\d{4,5}\b")
_RELEASE: Final = re.compile(r"(?<![\d.])(2\d)\.(?:0[1-9]|1[0-2])\b")
_YEAR: Final = re.compile(r"\b(20[12]\d)(?:\b|-)")
LATEST: Final = 2024
"""The year of a stack that nothing tells."""
UNFUSED_LATEST: Final = 2022
"""The last year in which stacks of their time had no flash attention."""
_FORK: Final = re.compile(r"\bfork\b", re.IGNORECASE)
"""A fork stays at the release that it left, a year before what is published about it."""
PLAIN_LATEST: Final = 2023
"""The last year in which Megatron-LM's layers were its own unless told (``--transformer-impl local``), with
flash attention and recomputation off unless asked for (``--use-flash-attn``, ``--recompute-granularity``;
megatron/arguments.py of core 0.4 and 0.5). Peaks that a fork's runs print hold scores and dropout masks."""
_STORED: Final = "nf4|gptq|int4|4-bit"
"""Precisions of frozen weights: nothing but adapters trains on them."""


def filled(row: Row) -> tuple[Row, tuple[str, ...]]:
    """Return a row with what other fields tell of its year, kernel and tuning, and what was read so."""
    changes: dict[str, Any] = {}
    if row.year is None and (year := _year(row)) is not None:
        changes["year"] = year
    known = changes.get("year", row.year)
    if known is not None and _FORK.search(row.framework):
        changes["year"] = known = known - 1
    plain = row.framework.lower().startswith("megatron-lm") and (known or LATEST) <= PLAIN_LATEST
    if plain and row.flash_attention is None:
        changes["flash_attention"] = False
        if known == PLAIN_LATEST and row.recompute is None:
            changes["recompute"] = "none"
    if row.tuning is None and (tuning := _tuning(row)) is not None:
        changes["tuning"] = tuning
    told = {name: value for name, value in changes.items() if getattr(row, name) is None}
    notes = tuple(f"{name} not stated: {value}, as other fields tell" for name, value in told.items())
    if "year" in changes and row.year is not None:
        notes = (*notes, f"a fork: the stack is of {changes['year']}")
    return (replace(row, **changes), notes) if changes else (row, ())


def _year(row: Row) -> int | None:
    """Return the year that the stack's release, its source or its attention tell; None if nothing does."""
    found = next(_years(row), None)
    if row.flash_attention is False:  # the table may be younger than the stack
        return min(found or UNFUSED_LATEST, UNFUSED_LATEST)
    return found


def _years(row: Row) -> Iterator[int]:
    """Yield the years that texts name: the release's first, then the paper's, then any."""
    for text in (row.framework, row.source):
        yield from (2000 + int(yy) for yy in _RELEASE.findall(text))
    for text in (row.ref, row.source):
        yield from (2000 + int(yy) for yy in _ARXIV.findall(text))
    for text in (row.framework, row.source, row.ref):
        yield from (int(year) for year in _YEAR.findall(text))


def _tuning(row: Row) -> str | None:
    """Return the adapters that names, a precision or a rank tell of; None where nothing does."""
    precision = (row.precision or "").lower()
    named = re.search("q-?lora|lora", f"{row.model_name} {row.framework}".lower())
    if named or row.lora is not None or re.search(_STORED, precision):
        quantised = "nf4" in precision or (named is not None and named.group().startswith("q"))
        return "qlora" if quantised else "lora"
    return None
