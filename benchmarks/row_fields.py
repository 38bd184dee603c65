"""What the fields of a row may hold: checked by the types of the dataclass.

Settings are free texts here; :mod:`benchmarks.row_spelling` reads them.
"""

import reprlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_args, get_type_hints

LARGEST: Final = 10**12
"""Above any size or count of a run, and one over it below any; what lies beyond is a slip of the pen."""

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"outcome": ("ok", "oom"), "trust": ("A", "B", "C")}
"""Texts that stand alone."""


class Kind(NamedTuple):
    """The types that a value may have, in Python and in words."""

    types: tuple[type, ...]
    words: str


KINDS: Final[Mapping[Any, Kind]] = {
    str: Kind((str,), "text"),
    bool: Kind((bool,), "true or false"),
    int: Kind((int,), "positive integer"),
    float: Kind((int, float), "positive number"),
    list: Kind((list,), "list of texts"),
    Mapping: Kind((Mapping,), "object"),
}
"""By the type in the dataclass; whole numbers may stand for floating ones, truth values for none."""

STATED: Final[Mapping[str, tuple[Any, ...]]] = {
    "recipe": (str,),
    "precision_label": (str,),
    "cuda_graph_impl": (str,),
    "cuda_graph_scope": (list, str),
    "moe_flex_dispatcher_backend": (str,),
    "recompute_modules": (list,),
    "recompute_num_layers": (int,),
    "cpu_offloading_num_layers": (int,),
    "model_parallel_size": (int,),
}
"""Types of the entries of ``extra`` that are read; others are free."""


def problem_of(row_type: type, values: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the first wrong field, named with its value and what is allowed, or None.

    Parameters
    ----------
    row_type
        A dataclass; its annotations say what each field may hold. ``int`` and ``float`` are positive.
    values
        Fields by name; all of them known to the dataclass.
    """
    for name, kinds, optional in _allowed(row_type):
        value = values.get(name)
        if value is None and (optional or name not in values):
            continue
        problem = _wrong_type(name, value, kinds, optional) or _wrong_choice(name, value)
        if problem:
            return problem
    return _wrong_stated(values.get("extra") or {}) or _too_large(values.get("moe") or {})


@lru_cache(maxsize=8)
def _allowed(row_type: type) -> tuple[tuple[str, tuple[Any, ...], bool], ...]:
    """Return each field's name, the keys of :data:`KINDS` that it may have, and whether it may be None."""
    return tuple((name, *_kinds(hint)) for name, hint in get_type_hints(row_type).items())


def _kinds(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the keys of :data:`KINDS` that a type hint names, and whether None is one of its types."""
    members = get_args(hint) if type(None) in get_args(hint) else (hint,)
    plain = tuple(Mapping if "Mapping" in str(m) else m for m in members if m is not type(None))
    return plain, type(None) in members


def _wrong_type(name: str, value: object, kinds: tuple[Any, ...], optional: bool) -> str | None:
    if any(_is(value, kind) for kind in kinds):
        return None
    words = " or ".join([*(KINDS[kind].words for kind in kinds), *(["null"] if optional else [])])
    below = f" (below {LARGEST:,})" if isinstance(value, int | float) and value >= LARGEST else ""
    return f"{name} is {reprlib.repr(value)}; allowed: {words}{below}"


def _is(value: object, kind: Any) -> bool:
    """Return whether a value is of a kind, and positive if it is a number."""
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, KINDS[kind].types):
        return False
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return not isinstance(value, int | float) or isinstance(value, bool) or 1 / LARGEST < value < LARGEST


def _wrong_choice(name: str, value: object) -> str | None:
    if name in CHOICES and value not in CHOICES[name]:
        return f"{name} is {reprlib.repr(value)}; allowed: {', '.join(CHOICES[name])}"
    return None


def _too_large(moe: Mapping[str, Any]) -> str | None:
    """Return which size of a mixture is above any; the importers say what else is wrong with one."""
    large = (name for name, v in moe.items() if isinstance(v, int | float) and not v < LARGEST)
    return next((f"moe: {n} is {reprlib.repr(moe[n])}; allowed: below {LARGEST:,}" for n in large), None)


def _wrong_stated(extra: Mapping[str, Any]) -> str | None:
    wrong = (
        _wrong_type(f"extra: {name}", extra[name], kinds, True)
        for name, kinds in STATED.items()
        if extra.get(name) is not None
    )
    return next((problem for problem in wrong if problem), None)
