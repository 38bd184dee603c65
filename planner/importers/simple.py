"""Our own short form of a model, in YAML: the fields of ``DecoderSpec`` by name.

.. code-block:: yaml

    name: mine            # the file's own by default
    hidden: 4096          # required: hidden, layers, heads, ffn, vocab
    layers: 32
    heads: 32
    ffn: 14336            # width of one branch of a gated MLP
    vocab: 128256
    kv_heads: 8           # default: heads
    head_dim: 128         # default: hidden / heads
    gated: true           # every other field: see DecoderSpec, with its default
    tied: false
    windows: [4096, null] # repeats over the layers
    feeds:                # and mixers: where layers differ, see meshwright.planner.importers.sublayers
      - {experts: 8, topk: 2, width: 14336}

Nothing that is written is ignored: a list longer than the layers and a field that another one overrides are
refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

from meshwright.hardware.errors import MAX_NAMES_SHOWN, MAX_SHOWN, CatalogueError, shown
from meshwright.hardware.files import parse_yaml
from meshwright.planner.blocks import decoder_graph
from meshwright.planner.decoder import DecoderSpec, NormPlace
from meshwright.planner.graph import ModelGraph
from meshwright.planner.importers.config import Config, ModelConfigError, read_text
from meshwright.planner.importers.contradictions import refuse_contradictions
from meshwright.planner.importers.sublayers import read_sublayers

Reader: TypeAlias = Callable[[Config, str, object], Any]
"""Checks the value of a named field and returns it."""

SIZE_LIMIT_BYTES: Final = 2**16
"""Far above a page of fields; YAML is read slowly."""

SIZES: Final = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab")
REQUIRED: Final = ("hidden", "layers", "heads", "ffn", "vocab")
PATTERNS: Final = ("windows", "mixers", "feeds")
"""Lists with an entry for each layer, repeated where they are shorter."""
CHOICES: Final[Mapping[str, tuple[str | None, ...]]] = {
    "qk_norm": ("head", "full", "plain", None),
    "positions": ("rotary", "learned", "alibi", "none"),
}


def model_from_yaml(path: Path, *, mtp: bool = False) -> ModelGraph:
    """Return the graph of a YAML file; raises ModelConfigError naming the field."""
    try:
        values = parse_yaml(read_text(path, SIZE_LIMIT_BYTES), str(path))
    except CatalogueError as error:
        raise ModelConfigError(str(error)) from error
    name = values.pop("name", path.stem)
    config = Config(str(path), values)
    if "model_type" in values:
        from meshwright.planner.importers.hf import model_from_config

        return model_from_config(config, _name(config, "name", name), mtp=mtp)
    return decoder_graph(_spec(config, name), name, family="yaml", mtp=mtp)


def _spec(config: Config, name: object) -> DecoderSpec:
    """Return the specification with every value and the name checked; all that is wrong is told at once."""
    known = ["name", *(f.name for f in fields(DecoderSpec) if f.name in READERS)]
    unknown = [str(key) for key in config.values if key not in known]
    missing = [key for key in REQUIRED if key not in config.values]
    wrong = []
    given: dict[str, Any] = {}
    for key, value in {"name": name, **config.values}.items():
        try:
            if key in known:
                given[key] = READERS.get(key, _name)(config, key, value)
        except ModelConfigError as error:
            wrong.append(str(error).removeprefix(f"{config.source}: "))
    if missing:
        wrong.append(f"missing fields {', '.join(missing)}")
    if unknown:
        first, rest = unknown[:MAX_NAMES_SHOWN], len(unknown) - MAX_NAMES_SHOWN
        more = f" and {rest:,} more" if rest > 0 else ""
        wrong.append(f"unknown fields {', '.join(map(_hinted, first))}{more}; known: {', '.join(known)}")
    if wrong:
        raise ModelConfigError(f"{config.source}: " + "; ".join(wrong))
    if "head_dim" not in given and given["hidden"] % given["heads"]:
        config.refuse("hidden", given["hidden"], f"a multiple of heads ({given['heads']}), or give head_dim")
    del given["name"]
    derived = {"kv_heads": given["heads"], "head_dim": given["hidden"] // given["heads"]}
    spec = DecoderSpec(**{**derived, **given})
    _refuse_ignored(config, spec)
    refuse_contradictions(config, spec)
    return spec


def _hinted(key: str) -> str:
    """Return a key, and the nearest that a file may have."""
    near = get_close_matches(key, READERS, n=1)
    told = shown(key)[1:-1] if len(key) > MAX_SHOWN else key
    return f"{told} ({near[0]}?)" if near else told


def _refuse_ignored(config: Config, spec: DecoderSpec) -> None:
    """Raise ModelConfigError where a field would have no effect, or only in part."""
    if spec.mixers and "windows" in config.values:
        config.refuse("windows", config.values["windows"], "no windows beside mixers; give each its window")
    if spec.position_rows and spec.positions != "learned":
        config.refuse("position_rows", spec.position_rows, "none unless positions is learned")
    # One entry more than layers is the layer of multi-token prediction (pattern.layer_behind).
    longest = spec.layers + bool(spec.mtp_layers)
    for name in PATTERNS:
        entries = len(getattr(spec, name))
        if entries > longest:
            behind = " and one for multi-token prediction" if spec.mtp_layers else ""
            allowed = f"at most {spec.layers:,}, one for each layer{behind}; shorten the list or its times"
            config.refuse(f"{name}: number of entries", entries, allowed)


def _name(config: Config, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        config.refuse(key, value, "a text of one line")
    return value


def _rows(config: Config, name: str, value: object) -> int:
    return config.count(name, value, "rows", minimum=0)


def _layers(config: Config, name: str, value: object) -> int:
    return config.count(name, value, "layers", minimum=0)


def _length(config: Config, name: str, value: object) -> int | None:
    return None if value is None else config.count(name, value, "rows")


def _width(config: Config, name: str, value: object) -> int | None:
    return None if value is None else config.count(name, value, "width")


def _size(config: Config, name: str, value: object) -> int:
    return config.count(name, value, name)


def _choice(config: Config, name: str, value: object) -> Any:
    if value not in CHOICES[name]:
        config.refuse(name, value, ", ".join("null" if c is None else c for c in CHOICES[name]))
    return value


def _norms(config: Config, name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list) or any(place not in get_args(NormPlace) for place in value):
        config.refuse(name, value, f"a list of {', '.join(get_args(NormPlace))}")
    return tuple(value)


def _windows(config: Config, name: str, value: object) -> tuple[int | None, ...]:
    if not isinstance(value, list) or not value:
        config.refuse(name, value, "a list of token counts and null, at least one")
    return tuple(None if w is None else config.count(name, w, "rows") for w in value)


BY_DEFAULT: Final[Mapping[type, Reader]] = {bool: Config.flag, float: Config.probability}
"""Checks for the fields whose default tells what they hold."""

READERS: Final[Mapping[str, Reader]] = {
    **{f.name: BY_DEFAULT[type(f.default)] for f in fields(DecoderSpec) if type(f.default) in BY_DEFAULT},
    **dict.fromkeys(SIZES, _size),
    **dict.fromkeys(CHOICES, _choice),
    "rotary_share": Config.fraction,
    "norms": _norms,
    "windows": _windows,
    "position_rows": _rows,
    "mtp_layers": _layers,
    "activation_weights": _rows,
    "residual_streams": _size,
    "mixers": read_sublayers,
    "feeds": read_sublayers,
    "embedding_dim": _width,
    "max_sequence_length": _length,
}
"""How each field of the specification is checked."""
