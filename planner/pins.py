"""Pins, bounds and bans as people write them (``tp=4``, ``tp<=8``, ``zero_stage!3``), made into choices."""

import re
from collections.abc import Callable, Iterable, Mapping
from math import ceil, floor, isfinite
from typing import Any, Final

from meshwright.costmodels.schedule import names as schedules
from meshwright.costmodels.strategy import OFFLOADS
from meshwright.hardware.errors import MeshwrightError, UnknownNameError, shown
from meshwright.planner.choice import DECISIONS, Choice, choice
from meshwright.planner.plan import KV_EXCHANGES, PLACEMENTS, RECOMPUTE_MODES, full_placement

_RULE: Final = re.compile(r"\s*(?P<name>\w+)\s*(?P<sign><=|>=|!=|==|=|!)\s*(?P<value>\S.*?)\s*")
_PLACEMENTS: Final = tuple(",".join(order) for order in PLACEMENTS)
_PREFIX: Final = {"<=": "<=", ">=": ">=", "!=": "!", "!": "!", "=": "", "==": ""}


def read_pins(rules: Mapping[str, Any] | Iterable[str]) -> dict[str, Choice]:
    """Return a choice for each decision that a mapping or a list of rules names.

    Several rules about one decision hold together.

    Raises
    ------
    MeshwrightError
        If a rule cannot be read, names no decision, allows a value that the decision cannot have, or
        contradicts another one.
    """
    if not isinstance(rules, Mapping | list | tuple) or any(not isinstance(rule, str) for rule in rules):
        raise MeshwrightError(
            f"pins: {shown(rules)} is neither a mapping such as {{'tp': 4}} nor a list such as ['tp<=8']"
        )
    pairs = rules.items() if isinstance(rules, Mapping) else (_split(rule) for rule in rules)
    found: dict[str, Choice] = {}
    for name, value in pairs:
        if name not in DECISIONS:
            raise UnknownNameError("pins: decision", name, list(DECISIONS))
        new = value if isinstance(value, Choice) else _read(name, value)
        new = _checked(name, new)
        found[name] = both(name, found[name], new) if name in found else new
    return found


def _read(name: str, value: Any) -> Choice:
    """Return the choice that a person wrote."""
    _check_shape(name, value)
    return _placements(value) if name == "placement" else choice(value)


def both(name: str, one: Choice, other: Choice) -> Choice:
    """Return what both choices allow; raises MeshwrightError where that is nothing."""
    sets = [c.allowed for c in (one, other) if c.allowed is not None]
    lows = [c.minimum for c in (one, other) if c.minimum is not None]
    highs = [c.maximum for c in (one, other) if c.maximum is not None]
    merged = Choice(
        allowed=frozenset.intersection(*sets) if sets else None,
        minimum=max(lows, default=None),
        maximum=min(highs, default=None),
        forbidden=one.forbidden | other.forbidden,
    )
    return _checked(name, merged)


def _split(rule: str) -> tuple[str, str]:
    """Return the decision and its value, as :func:`~meshwright.planner.choice.choice` reads it."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise MeshwrightError(
            f"pins: {shown(rule)} is no rule; write tp=4, tp=2,4, 'tp<=8', 'tp>=2' or 'zero_stage!3'"
        )
    return match["name"], _PREFIX[match["sign"]] + match["value"]


def _check_shape(name: str, value: Any) -> None:
    """Refuse what is neither a value, a list of values nor a pair of bounds."""
    items = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if isinstance(value, dict):
        items = list(value.values()) if value and set(value) <= {"min", "max"} else [value]
    if not items or any(isinstance(item, dict | list) for item in items):
        raise MeshwrightError(
            f"pins: {name} is {shown(value)}; a value, a list of values or {{min, max}} is expected"
        )


def _placements(value: Any) -> Choice:
    """Return the choice for ``placement``, each value of which is a sequence of dimensions itself."""
    if isinstance(value, str) and value.startswith("!"):
        return Choice(forbidden=frozenset({_joined(value[1:])}))
    several = isinstance(value, list | tuple) and all("," in str(item) for item in value)
    return Choice(allowed=frozenset(map(_joined, value if several else [value])))


def _joined(value: Any) -> str:
    """Return dimensions as ``tp,cp,dp,pp``; where ``cp`` is not named it lies next to ``tp``."""
    names = value.split(",") if isinstance(value, str) else value
    names = names if isinstance(names, list | tuple) else [names]
    return ",".join(full_placement([str(name).strip() for name in names]))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_COUNT: Final[tuple[Callable[[Any], bool], str]] = (_is_count, "positive integers")
_VALUES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(DECISIONS, _COUNT),
    "zero_stage": (lambda v: v in range(4) and not isinstance(v, bool), "0, 1, 2 and 3"),
    "sequence_parallel": (lambda v: isinstance(v, bool), "true and false"),
    "schedule": (lambda v: v in schedules(), ", ".join(schedules())),
    "kv_exchange": (lambda v: v in KV_EXCHANGES, " and ".join(KV_EXCHANGES)),
    "offload": (lambda v: v in OFFLOADS, ", ".join(OFFLOADS)),
    "placement": (lambda v: v in _PLACEMENTS, " and ".join(_PLACEMENTS)),
    "recompute": (lambda v: v in RECOMPUTE_MODES, ", ".join(RECOMPUTE_MODES)),
}
_DOMAINS: Final[dict[str, tuple[Any, ...]]] = {
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (True, False),
    "schedule": schedules(),
    "kv_exchange": KV_EXCHANGES,
    "offload": OFFLOADS,
    "placement": _PLACEMENTS,
    "recompute": RECOMPUTE_MODES,
}
_ORDERED: Final = {name for name in DECISIONS if _VALUES[name] is _COUNT} | {"zero_stage"}


def _checked(name: str, wanted: Choice) -> Choice:
    """Return the choice; raises MeshwrightError if it is meaningless for this decision or empty."""
    legal, allowed = _VALUES[name]
    for value in sorted((wanted.allowed or frozenset()) | wanted.forbidden, key=repr):
        if not legal(value):
            raise MeshwrightError(f"pins: {name} cannot be {shown(value)}; allowed: {allowed}")
    bounds = [b for b in (wanted.minimum, wanted.maximum) if b is not None]
    if bounds and name not in _ORDERED:
        raise MeshwrightError(f"pins: {name} has no order, so no bounds; name its values: {allowed}")
    if not all(_is_number(b) for b in bounds):
        raise MeshwrightError(f"pins: {name} has the bounds {bounds}; finite numbers are allowed")
    low, high = wanted.minimum, wanted.maximum
    none_left = low is not None and high is not None and ceil(low) > floor(high)
    values = _DOMAINS.get(name) if wanted.allowed is None else wanted.allowed
    if values is not None:
        none_left |= not any(map(wanted.admits, values))
    elif high is not None and high < 1:
        none_left = True
    if none_left:
        raise MeshwrightError(
            f"pins: the rules about {name} leave no value; to allow several, write {name}=A,B"
        )
    return wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
