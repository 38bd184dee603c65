"""Settings that differ in numbers alone, as one: each number that differs becomes an array over strategies.

Models of one family, or one model at several sequence lengths, have the same operators with other sizes.
One call then prices the strategies of all of them. Fields that a class declares as ``Num`` may hold arrays;
whatever else two settings hold (devices, stack, recipe, and fields of other types) must be equal.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.costmodels.arrays import IntArray, Num
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.strategy import Setting

_STACKED = ("kinds", "sequence_length", "expert_load")
"""Fields of a setting whose numbers may differ."""
_NUMBER = "number"
_PLAIN = (str, bool, int, float, type(None))


@lru_cache(maxsize=256)
def _numeric(kind: Hashable) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a dataclass, and whether each may hold arrays; none of other classes."""
    return tuple((f.name, f.type in (Num, Num | None)) for f in fields(kind)) if is_dataclass(kind) else ()


def _fields(value: Any) -> tuple[tuple[str, bool], ...]:
    own: Any = type(value)
    return _numeric(own)


def structure(value: Any) -> Hashable:
    """Return what kinds, operators or tuples of them must have in common to be stacked: all but numbers."""
    own: Any = type(value)
    if own is tuple:
        return tuple([structure(v) for v in value])
    parts: list[Hashable] = [own]
    for name, numeric in _numeric(own):
        held = getattr(value, name)
        if numeric:
            parts.append(_NUMBER if held is not None else None)
        elif own is not LayerKind or name != "name":
            parts.append(held if type(held) in _PLAIN else structure(held))
    return tuple(parts) if len(parts) > 1 else value


def stack(settings: Sequence[Setting], member: IntArray) -> Setting:
    """Return one setting for strategies of several.

    Parameters
    ----------
    settings
        Alike but for numbers: their kinds have equal :func:`structure`; the first one's devices, stack and
        recipe count.
    member
        Which setting each strategy belongs to, (B,).
    """
    if len(settings) == 1:
        return settings[0]
    changes = {name: _merge([getattr(s, name) for s in settings], member) for name in _STACKED}
    return replace(settings[0], member=member, **changes)


def _merge(values: Sequence[Any], member: IntArray) -> Any:
    """Return values of one structure as one; numbers that differ are told for each strategy."""
    first = values[0]
    if all(v is first for v in values):
        return first
    if isinstance(first, tuple):
        return tuple(_merge(column, member) for column in zip(*values, strict=True))
    if not _fields(first):
        return first if all(v == first for v in values) else np.array(values)[member]
    merged: dict[str, Any] = {}
    for name, _ in _fields(first):
        held = [getattr(v, name) for v in values]
        one = _merge(held, member) if name != "name" else held[0]
        if one is not held[0]:
            merged[name] = one
    return replace(first, **merged) if merged else first


def taken(setting: Setting, rows: IntArray) -> Setting:
    """Return the setting of some of its strategies; one that is not stacked is that of any."""
    if setting.member is None:
        return setting
    changes = {name: _map(getattr(setting, name), lambda v: v[rows]) for name in _STACKED}
    return replace(setting, member=setting.member[rows], **changes)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with every array in it changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, tuple):
        parts = tuple(_map(v, change) for v in value)
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    held = [(name, getattr(value, name)) for name, _ in _fields(value)]
    found = [(name, old, _map(old, change)) for name, old in held if type(old) not in _PLAIN]
    changed = {name: new for name, old, new in found if new is not old}
    return replace(value, **changed) if changed else value
