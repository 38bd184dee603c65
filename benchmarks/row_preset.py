"""Sizes that a row leaves open, where its model's name or its other sizes are those of a public model.

The built-in presets are the public configurations. A name belongs to the preset whose letters and digits it
holds, the longest; a preset counts only where every size that the row prints is its own, but for the layers:
proxies of large models have fewer.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from benchmarks.rows import Row
from meshwright.costmodels.attention import Attention
from meshwright.planner.importers import PRESETS, load_model, preset_names

_SPELT: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn_hidden": ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"),
    "vocab": ("vocab_size",),
}
"""Keys of configuration files, by the row's fields."""
_FEWER: Final = "layers"
_FREE: Final = (_FEWER, "vocab")
"""Sizes in which a row's model may differ from the public one."""


def public_sizes(row: Row) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes that a row leaves open and public models tell, and what was assumed.

    Where the name is nobody's, the heads of keys and values are those of the public models whose width,
    heads and feed-forward width the row has, if these agree.
    """
    printed = {name: getattr(row, name) for name in _SPELT}
    name = named_preset(row.model_name)
    apart = _FREE if row.moe is None else (*_FREE, "ffn_hidden")
    if name is not None and agrees(printed, sizes := sizes_of(name), apart):
        cut = re.search(r"proxy|layers|cut to", row.model_name.lower())
        found = {n: v for n, v in sizes.items() if printed[n] is None and not (cut and n == _FEWER)}
        return found, tuple(f"{n} is not stated: {v:,} as in the public {name}" for n, v in found.items())
    shape = (row.hidden, row.heads, row.ffn_hidden)
    if row.kv_heads is None and (kv := _shapes().get(shape)) is not None:
        return {"kv_heads": kv}, (f"kv_heads is not stated: {kv} as in public models of these sizes",)
    return {}, ()


def public_config(row: Row) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return the public configuration of a row's model, its layers and words as printed, and a note of it.

    None where the name holds no preset's, or another size is printed.
    """
    name = named_preset(row.model_name)
    printed = {field: getattr(row, field) for field in _SPELT}
    if name is None or not agrees(printed, sizes_of(name), _FREE):
        return None
    keys = {k: v for k, v in config_of_preset(name).items() if not k.startswith("_")}
    own = {key: printed[f] for f in _FREE for key in _SPELT[f] if key in keys and printed[f] is not None}
    return keys | own, (f"model as the public {name}",)


@lru_cache(maxsize=1024)
def mixes_without_attention(model_name: str) -> bool:
    """Return whether the public model of a name has blocks without attention: Mamba's and their kin."""
    name = named_preset(model_name)
    if name is None:
        return False
    kinds = (kind for kind in load_model(name).kinds if kind.role == "block")
    return any(not any(isinstance(op, Attention) for op in kind.operators) for kind in kinds)


@lru_cache(maxsize=1024)
def named_preset(model_name: str) -> str | None:
    """Return the preset whose name a model's name holds, the longest; None if it holds none."""
    said = _letters(model_name)
    return max((name for name, held in _patterns().items() if held.search(said)), key=len, default=None)


@lru_cache(maxsize=1)
def _patterns() -> Mapping[str, re.Pattern[str]]:
    """Return what holds each preset's name; digits behind a letter are another word (``-2507``)."""
    names = {name: _letters(name) for name in preset_names()}
    return {name: re.compile(rf"(?<!\d){said}(?!(?<=\d)\d)") for name, said in names.items()}


def _letters(name: str) -> str:
    """Return letters and digits alone; a decimal point stays, as a letter (``1.3b`` is not ``13b``)."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?<=\d)\.(?=\d)", "p", name.lower()))


def agrees(printed: Mapping[str, int | None], public: Mapping[str, int], apart: Sequence[str]) -> bool:
    """Return whether a row prints no size that a public model does not have, some sizes ``apart``."""
    pairs = ((v, public.get(n)) for n, v in printed.items() if n not in apart)
    return all(own is None or theirs is None or own == theirs for own, theirs in pairs)


@lru_cache(maxsize=256)
def config_of_preset(name: str) -> Mapping[str, Any]:
    """Return a preset's configuration file."""
    found: Mapping[str, Any] = json.loads((PRESETS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@lru_cache(maxsize=256)
def sizes_of(name: str) -> Mapping[str, int]:
    """Return a preset's sizes by the row's fields, those that its file says."""
    config = config_of_preset(name)
    said = {field: (config[key] for key in keys if key in config) for field, keys in _SPELT.items()}
    first = {field: next(values, None) for field, values in said.items()}
    sizes = {field: value for field, value in first.items() if isinstance(value, int)}
    if {"hidden", "heads"} <= sizes.keys() and "kv_heads" not in sizes and "n_embd" in config:
        sizes |= {"kv_heads": sizes["heads"], "ffn_hidden": sizes.get("ffn_hidden", 4 * sizes["hidden"])}
    return sizes


@lru_cache(maxsize=1)
def _shapes() -> Mapping[tuple[int | None, int | None, int | None], int]:
    """Return the heads of keys and values of public models by hidden size, heads and feed-forward width."""
    seen: dict[tuple[int | None, int | None, int | None], set[int | None]] = {}
    for sizes in map(sizes_of, preset_names()):
        shape = (sizes.get("hidden"), sizes.get("heads"), sizes.get("ffn_hidden"))
        if None not in shape:
            seen.setdefault(shape, set()).add(sizes.get("kv_heads", sizes.get("heads")))
    return {shape: kv for shape, each in seen.items() for kv in _only(each)}


def _only(values: Iterable[int | None]) -> list[int]:
    """Return the value if there is one alone."""
    found = list(values)
    return [v for v in found if v is not None] if len(found) == 1 else []
