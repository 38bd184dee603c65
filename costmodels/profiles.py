"""Software profiles by name, read from a data file or from a file of one's own.

Profiles inherit: one names a parent and overrides what differs. The numbers, their units and their sources
are in ``data/profiles.toml``. A name may carry switches that differ from the profile's own, in brackets:
``megatron-core[attention=flash-1,norm=eager]``; :func:`profile_with` writes such names. A name that ends in
``.toml`` is the path of a file with one profile of one's own, written like those of the data file: a table
whose ``inherits`` names a built-in profile and whose fields override it. It is read once.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from importlib import resources
from math import nan
from pathlib import Path
from typing import Any, Final

from meshwright.costmodels.attention_kernels import find_attention_kernel
from meshwright.costmodels.calibration import overlaid
from meshwright.costmodels.fusion import EXPERT_BIASES, FUSIONS
from meshwright.costmodels.loss import find_loss
from meshwright.costmodels.profile import TRANSFERS_BESIDE, Profile
from meshwright.hardware.errors import MeshwrightError, UnknownNameError, shown

FILE_SUFFIX: Final = ".toml"
MAX_FILE_BYTES: Final = 65536
"""Of a profile file: all of its fields with their sources take a tenth of it."""
MAX_VALUE: Final = 1e13
RATES: Final = ("_rate", "_fraction")
"""How fields end that are shares of a rate."""
LEAST_RATE: Final = 1e-6
"""Of such a field: nothing that runs reaches a millionth of what its machine can do."""
_SWITCHES: Final = tuple(f.name for f in fields(Profile) if f.name not in ("name", "title", "sources"))


@lru_cache(maxsize=1)
def sourced_profiles() -> Mapping[str, Mapping[str, Any]]:
    """Return what each profile sets in ``data/profiles.toml``, without what was fitted to runs."""
    import tomllib

    text = resources.files("meshwright.costmodels").joinpath("data/profiles.toml").read_text("utf-8")
    return tomllib.loads(text)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Any]]:
    return overlaid(sourced_profiles())


def profile_with(name: str, switches: Mapping[str, Any]) -> str:
    """Return the name of a profile whose switches differ from its own; :func:`find_profile` reads it."""
    base, own = profile_parts(name)
    told = ",".join(f"{key}={_written(value)}" for key, value in sorted({**own, **switches}.items()))
    return f"{base}[{told}]" if told else base


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def profile_parts(name: str) -> tuple[str, dict[str, str]]:
    """Return the profile's own name and its switches as text."""
    base, bracket, rest = name.partition("[")
    pairs = [pair.partition("=") for pair in rest.removesuffix("]").split(",")] if bracket else []
    return base, {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


@lru_cache(maxsize=1024)
def find_profile(name: str) -> Profile:
    """Return a profile with what it inherits, and with the switches in brackets behind its name.

    Raises
    ------
    UnknownNameError
        If there is none of that name.
    MeshwrightError
        If the data file misses a field or has an unknown one, or a switch is unknown or has a wrong value.
    """
    base, switches = profile_parts(name)
    found = own_profile(Path(base)) if base.endswith(FILE_SUFFIX) else _found(base, _table())
    if not switches:
        return found
    values = {key: _value(found, key, text) for key, text in switches.items()}
    changed = replace(found, name=absolute_name(name), **values)
    _check(changed)
    return changed


def _value(profile: Profile, key: str, text: str) -> Any:
    """Return a switch's value in the type of the profile's own."""
    own = getattr(profile, key, None) if key in _SWITCHES else None
    if own is None:
        raise MeshwrightError(
            f"profile {profile.name}: {shown(key)} is not a switch; allowed: {', '.join(_SWITCHES)}"
        )
    if isinstance(own, bool):
        if text not in ("true", "false"):
            raise MeshwrightError(f"profile {profile.name}: {key} is {shown(text)}; allowed: true, false")
        return text == "true"
    if isinstance(own, str):
        return text
    try:
        number = float(text)
    except ValueError:
        number = nan
    _check_number(profile.name, key, number, text)
    return number


def _check(profile: Profile) -> None:
    """Raise UnknownNameError if a switch names what does not exist."""
    find_attention_kernel(profile.attention)
    find_loss(profile.loss)
    if profile.pipeline_loss:
        find_loss(profile.pipeline_loss)
    for group, how in profile.fusions.items():
        allowed = [name for name in FUSIONS if name != "complex" or group == "rotary"]
        if how not in allowed:
            raise UnknownNameError(group, how, allowed)
    if profile.expert_bias not in EXPERT_BIASES:
        raise UnknownNameError("expert_bias", profile.expert_bias, list(EXPERT_BIASES))
    if profile.overlap_transfers not in TRANSFERS_BESIDE:
        raise UnknownNameError("overlap_transfers", profile.overlap_transfers, list(TRANSFERS_BESIDE))


def own_profile(path: Path) -> Profile:
    """Return the profile in a file of one's own; its name is the whole path.

    Raises
    ------
    MeshwrightError
        If the file cannot be read, holds no profile, or a field is unknown or of a wrong type.
    """
    own = _file_table(path)
    parent = _found(str(own.get("inherits", "generic")), _table())
    for key, value in own.items():
        if key not in ("inherits", "title", "sources"):
            _check_like(parent, key, value, path)
    sources = own.get("sources", [])
    if not (isinstance(sources, list) and all(isinstance(s, str) for s in [*sources, own.get("title", "")])):
        raise MeshwrightError(f"{path}: title is a text, sources a list of texts")
    changed = replace(
        parent, **{k: v for k, v in own.items() if k != "inherits"}, name=absolute_name(str(path))
    )
    _check(changed)
    return replace(changed, sources=tuple(sources) or parent.sources)


def absolute_name(name: str) -> str:
    """Return a profile's name as it means the same in any folder: with the whole path of a file."""
    base, bracket, rest = name.partition("[")
    return f"{Path(base).absolute() if base.endswith(FILE_SUFFIX) else base}{bracket}{rest}"


def parent_of(name: str) -> str | None:
    """Return the name of the profile that one inherits from; None for the root of all."""
    base = profile_parts(name)[0]
    if base.endswith(FILE_SUFFIX):
        return str(_file_table(Path(base)).get("inherits", "generic"))
    found = sourced_profiles()[base].get("inherits")
    return None if found is None else str(found)


def _file_table(path: Path) -> Mapping[str, Any]:
    """Return the one table of a profile file."""
    import tomllib

    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
        table = tomllib.loads(raw.decode("utf-8")) if len(raw) <= MAX_FILE_BYTES else {}
    except OSError as error:
        raise MeshwrightError(f"profile {path}: {error.strerror}; give the path of a TOML file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise MeshwrightError(f"profile {path}: no TOML text ({error})") from None
    own = [value for value in table.values() if isinstance(value, dict)]
    if len(own) != 1 or len(table) != 1:
        raise MeshwrightError(
            f"profile {path}: one table [name] with a profile's fields is expected, of at most "
            f"{MAX_FILE_BYTES} bytes"
        )
    return own[0]


def _check_like(parent: Profile, key: str, value: Any, path: Path) -> None:
    """Refuse an unknown field, and a value of another type than the parent's or below 0."""
    if key not in _SWITCHES:
        raise MeshwrightError(f"profile {path}: {shown(key)} is not a field; allowed: {', '.join(_SWITCHES)}")
    wanted = getattr(parent, key)
    if not isinstance(wanted, bool | str):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _check_number(str(path), key, value if number else nan, value)
    elif type(value) is not type(wanted):
        what = "true or false" if isinstance(wanted, bool) else "a text"
        raise MeshwrightError(f"profile {path}: {key} is {shown(value)}; allowed: {what}")


def _check_number(where: str, key: str, number: float, written: object) -> None:
    """Refuse a number that a field may not have; a rate, by which work is divided, is above 0."""
    least = LEAST_RATE if key.endswith(RATES) else 0.0
    if not least <= number <= MAX_VALUE:
        raise MeshwrightError(
            f"profile {where}: {key} is {shown(written)}; allowed: a number from {least:g} to {MAX_VALUE:g}"
        )


def sourced_profile(name: str) -> Profile:
    """Return a profile of the data file as its sources have it, without constants fitted to runs."""
    return _found(name, sourced_profiles())


def _found(name: str, table: Mapping[str, Mapping[str, Any]]) -> Profile:
    """Return a profile of a table."""
    if name not in table:
        raise UnknownNameError("profile", name, list(table))
    merged: dict[str, Any] = {}
    lineage = [name]
    while "inherits" in table[lineage[-1]]:
        lineage.append(str(table[lineage[-1]]["inherits"]))
    for ancestor in reversed(lineage):
        merged |= {k: v for k, v in table[ancestor].items() if k != "inherits"}
    merged["sources"] = tuple(merged.get("sources", ()))
    wanted = {f.name for f in fields(Profile)}
    if wanted ^ ({"name"} | set(merged)):
        raise MeshwrightError(f"profile {name}: fields differ: {sorted(wanted ^ ({'name'} | set(merged)))}")
    found = Profile(name=name, **merged)
    _check(found)
    return found
