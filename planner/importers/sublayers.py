"""Mixers and feeds in the short YAML form: a list of entries, each with the fields of its class by name.

.. code-block:: yaml

    mixers:
      - {kv_rank: 512, nope: 128, rope: 64, value: 128, q_rank: 1536}   # latent attention
    feeds:
      - {width: 18432, times: 3}                                        # dense MLP in three layers
      - {experts: 256, topk: 8, width: 2048, shared: 2048, times: 58}   # experts in the others

An entry is what its keys say: ``kv_rank`` makes latent attention, ``experts`` a mixture of experts. ``times``
repeats an entry; the whole list repeats over the layers and may not be longer. ``null`` leaves a sublayer
out.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from meshwright.planner.decoder import Sublayer
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.importers.config import LIMITS, Config
from meshwright.planner.latent import LatentAttention, SparseIndex
from meshwright.planner.mixers import SelfAttention

MIXERS: Final[Mapping[str, type[Any]]] = {"kv_rank": LatentAttention, "": SelfAttention}
FEEDS: Final[Mapping[str, type[Any]]] = {"experts": Experts, "": Mlp}
"""Classes by the key that tells them, the usual one last."""

GATES: Final = ("feature", "head")


def read_sublayers(config: Config, name: str, value: object) -> tuple[Sublayer | None, ...]:
    """Return the sublayers of a list; raises ModelConfigError naming the entry's field."""
    classes = MIXERS if name == "mixers" else FEEDS
    if not isinstance(value, list) or not value:
        config.refuse(name, value, "a list of mappings and null, at least one")
    layers = [layer for entry in value for layer in _entry(config, name, entry, classes)]
    if len(layers) > LIMITS["layers"]:
        config.refuse(name, len(layers), f"at most {LIMITS['layers']:,} entries")
    return tuple(layers)


def _entry(
    config: Config, name: str, entry: object, classes: Mapping[str, type[Any]]
) -> list[Sublayer | None]:
    """Return one entry's sublayer, as many times as it says."""
    if entry is None:
        return [None]
    if not isinstance(entry, Mapping):
        config.refuse(name, entry, "a mapping of fields, or null")
    times = config.count(f"{name}: times", entry.get("times", 1), "layers")
    given = {str(key): value for key, value in entry.items() if key != "times"}
    cls = next(cls for key, cls in classes.items() if not key or key in given)
    return [_made(config, name, cls, given)] * times


def _made(config: Config, name: str, cls: type[Any], given: Mapping[str, object]) -> Any:
    """Return an object of a class from its fields, each checked by what it holds."""
    known = {field.name: field for field in fields(cls)}
    for key in given:
        if key not in known:
            config.refuse(f"{name}: field", key, ", ".join((*known, "times")))
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing:
        config.refuse(f"{name}: missing field", missing[0], f"a value; required: {', '.join(missing)}")
    return cls(**{key: _value(config, f"{name}: {key}", known[key], value) for key, value in given.items()})


def _value(config: Config, name: str, field: "Field[Any]", value: object) -> Any:
    """Return a checked value: a switch, a share, a gate, an indexer or a count, as the field's type says."""
    kind = str(field.type)
    if value is None and "None" in kind:
        return None
    if "bool" in kind:
        return config.flag(name, value)
    if "float" in kind:
        return config.fraction(name, value)
    if "Literal" in kind:
        return value if value in GATES else config.refuse(name, value, f"{' or '.join(GATES)}")
    if "SparseIndex" in kind:
        if not isinstance(value, Mapping):
            config.refuse(name, value, "a mapping with heads, dim and topk")
        return _made(config, name, SparseIndex, {str(k): v for k, v in value.items()})
    return config.count(name, value, "rows", minimum=int(field.default != 0))
