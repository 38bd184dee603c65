"""Experts that a row leaves open, where its model's name is that of a public mixture.

A row says a mixture's sizes in ``moe``. One that names a public mixture and leaves ``moe`` open ran that
mixture all the same: experts come from the public configuration, in the words of a row.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from benchmarks.row_model import EXPERTS, reads_experts, style_of
from benchmarks.row_preset import agrees, config_of_preset, mixes_without_attention, named_preset, sizes_of
from benchmarks.rows import Row

_DENSE_WIDTH: Final = "ffn_hidden"
"""A row may print the experts' width here."""


def with_experts(row: Row) -> tuple[Row, tuple[str, ...]]:
    """Return a row with the experts of the public mixture that it names, and what was assumed.

    A row that prints another size than the public model's is another model, but for layers and words:
    proxies have fewer. Mixtures whose blocks no row's words describe (Mamba's kin) stay as they are.
    """
    name = None if row.moe is not None else named_preset(row.model_name)
    if name is None or mixes_without_attention(row.model_name) or not reads_experts(style_of(row).model_type):
        return row, ()
    experts, public = _experts(name), sizes_of(name)
    printed = {field: getattr(row, field) for field in public}
    if not experts or not agrees(printed, public, ("layers", "vocab", _DENSE_WIDTH)):
        return row, ()
    if row.ffn_hidden not in (None, public.get(_DENSE_WIDTH), experts.get("expert_ffn")):
        return row, ()
    return replace(row, moe=experts), (f"experts are not stated: as in the public {name}",)


@lru_cache(maxsize=256)
def _experts(name: str) -> Mapping[str, Any]:
    """Return a preset's experts in the words of a row; nothing for a dense model."""
    config = config_of_preset(name)
    found = {word: next((config[k] for k in keys if k in config), None) for word, keys in EXPERTS.items()}
    if found["experts"] is None or found["topk"] is None:
        return {}
    found["expert_ffn"] = found["expert_ffn"] or config.get("intermediate_size")
    found["shared_ffn"] = config.get("shared_expert_intermediate_size")
    kinds = config.get("layer_types") or ()
    found["sliding_window_every_other_layer"] = "sliding_attention" in kinds or None
    return {word: value for word, value in found.items() if value is not None}
