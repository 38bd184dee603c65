"""Families whose layers a search put together one by one: ``block_configs`` of DeciLM and Nemotron-NAS.

Each block says of its attention that it is there, with so many query heads for each key/value head
(``n_heads_in_group``) and perhaps a window, or that it is left out (``no_op``) or a plain product
(``replace_with_linear``), and of its MLP the same with a width (``ffn_mult`` or ``intermediate_size``). As
``modeling_decilm.py`` and vLLM's ``nemotron_nas.py`` read them.
"""

from collections.abc import Mapping
from typing import Any, Final

from meshwright.planner.decoder import Sublayer
from meshwright.planner.feeds import Mlp
from meshwright.planner.gated_mixers import SquareProduct
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.families_mamba import hybrid
from meshwright.planner.importers.family import (
    DROPOUT,
    FFN,
    KV_HEADS,
    LAYERS,
    LLAMA_BIAS,
    Family,
    sizes,
    tied,
)
from meshwright.planner.importers.layer_types import shortest
from meshwright.planner.importers.rules import NOT_GIVEN, Reading, Value, optional_size, same_as, size
from meshwright.planner.mixers import SelfAttention

MULTIPLE: Final = 256
"""``ffn_mult`` widths are rounded up to a multiple of this (``_find_multiple`` in modeling_decilm.py)."""


def multiplied_width(multiplier: float, hidden: int) -> int:
    """Return the MLP width of a multiplier: two thirds of ``multiplier * hidden`` twice, rounded up."""
    return -(-int(2 * multiplier * hidden / 3) // MULTIPLE) * MULTIPLE


def _blocks(reading: Reading) -> list[Mapping[str, Any]] | None:
    """Return the block configurations, None where the file has none."""
    name, blocks = reading.config.find(("block_configs",))
    if blocks is MISSING or blocks is None:
        return None
    if not isinstance(blocks, list) or not blocks:
        reading.config.refuse(name, blocks, "a list of one object for each layer")
    for i, block in enumerate(blocks):
        parts = [block.get(part) for part in ("attention", "ffn")] if isinstance(block, Mapping) else []
        if not parts or not all(isinstance(part, Mapping) for part in parts):
            reading.config.refuse(f"block_configs[{i}]", block, "an object with attention and ffn objects")
    return blocks


def _layers(reading: Reading) -> Value:
    """Return the layers, which block configurations say where there are any."""
    blocks, layers = _blocks(reading), optional_size(*LAYERS, what="layers")(reading)
    if blocks is None:
        return 32 if layers is None else layers
    if layers is not None and layers != len(blocks):
        reading.config.refuse("block_configs", f"{len(blocks)} entries", f"one for each of {layers} layers")
    return len(blocks)


def _replaced(reading: Reading, where: str, part: Mapping[str, Any]) -> str | None:
    """Return "nothing" or "linear" where a sublayer is left out or replaced; refuse what has no price."""
    for key in ("sparsify", "num_sink_tokens"):
        if part.get(key):
            reading.config.refuse(f"{where}.{key}", part[key], "null: the planner has no price for it")
    if part.get("no_op") is True:
        return "nothing"
    return "linear" if part.get("replace_with_linear") is True else None


def _attention(reading: Reading, where: str, part: Mapping[str, Any]) -> Sublayer | None:
    replaced = _replaced(reading, where, part)
    if replaced is not None:
        return SquareProduct("attention", reading.fields["qkv_bias"]) if replaced == "linear" else None
    heads, group = reading.fields["heads"], part.get("n_heads_in_group")
    kv_heads = part.get("num_key_value_heads")
    if kv_heads is None and group is not None:
        each = reading.config.count(f"{where}.n_heads_in_group", group, "heads")
        if heads % each:
            reading.config.refuse(f"{where}.n_heads_in_group", group, f"a divisor of {heads} heads")
        kv_heads = heads // each
    kv_heads = reading.config.count(f"{where}.num_key_value_heads", kv_heads, "heads")
    window = part.get("window_length")
    reach = None if window is None else reading.config.count(f"{where}.window_length", window, "rows")
    return SelfAttention(window=reach, kv_heads=kv_heads)


def _feed(reading: Reading, where: str, part: Mapping[str, Any]) -> Sublayer | None:
    replaced = _replaced(reading, where, part)
    if replaced is not None:
        return SquareProduct("mlp", reading.fields["mlp_bias"]) if replaced == "linear" else None
    width = part.get("intermediate_size")
    if width is not None:
        return Mlp(reading.config.count(f"{where}.intermediate_size", width, "width"))
    times = part.get("ffn_mult")
    if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times <= 100:
        reading.config.refuse(f"{where}.ffn_mult", times, "a number above 0, at most 100")
    return Mlp(multiplied_width(times, reading.fields["hidden"]))


def _mixers(reading: Reading) -> Value:
    """Return the mixers of block configurations, or key/value heads listed by layer (DeciLM-7B)."""
    blocks = None if reading.missing else _blocks(reading)
    if blocks is not None:
        where = "block_configs[{}].attention"
        return shortest([_attention(reading, where.format(i), b["attention"]) for i, b in enumerate(blocks)])
    name, each = reading.config.find(("num_key_value_heads_per_layer",))
    if each is MISSING or each is None:
        return ()
    layers = reading.fields["layers"]
    if not isinstance(each, list) or len(each) != layers:
        reading.config.refuse(name, each, f"a list of one number for each of {layers} layers")
    return shortest([SelfAttention(kv_heads=reading.config.count(name, n, "heads")) for n in each])


def _feeds(reading: Reading) -> Value:
    """Return the feeds of block configurations."""
    blocks = _blocks(reading)
    if blocks is None or reading.missing:
        return ()
    return shortest([_feed(reading, f"block_configs[{i}].ffn", b["ffn"]) for i, b in enumerate(blocks)])


def _ffn(reading: Reading) -> Value:
    """Return the widest MLP of the blocks, else the one width that the file names."""
    widths = [feed.width for feed in reading.fields["feeds"] if isinstance(feed, Mlp) and feed.width]
    width = max(widths) if widths else optional_size(*FFN)(reading)
    if width is None and not reading.fields["feeds"]:
        reading.missing.append(FFN[0])
        return NOT_GIVEN
    return width or 1


def _kv_heads(reading: Reading) -> Value:
    """Return the most key/value heads that a layer has."""
    each = [m.kv_heads for m in reading.fields["mixers"] if isinstance(m, SelfAttention) and m.kv_heads]
    return max(each) if each else size(*KV_HEADS, default=same_as("heads"), what="heads")(reading)


_SIZES: Final = sizes(None, None, None, None, None)
_RULES: Final = {
    **{name: rule for name, rule in _SIZES.items() if name not in ("ffn", "kv_heads")},
    "layers": _layers,
    **tied(False),
    **DROPOUT,
    **LLAMA_BIAS,
    "mixers": _mixers,
    "feeds": _feeds,
    "ffn": _ffn,
    "kv_heads": _kv_heads,
}

NAS_FAMILIES: Final[Mapping[str, Family]] = {
    "nemotron-nas": hybrid("DeciLMDecoderLayer", _RULES),
    "deci": hybrid("DeciLMDecoderLayer", _RULES),
}
