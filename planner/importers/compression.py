"""Rules for compressed attention (DeepSeek-V4): which layers compress by how much, and which of them pick."""

from typing import Any, Final

from meshwright.planner.compressed import CompressedAttention
from meshwright.planner.importers.config import MISSING
from meshwright.planner.importers.mixing import Mixers, compact
from meshwright.planner.importers.rules import Reading, share, size
from meshwright.planner.latent import SparseIndex

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATES: Final = {SPARSE: 4, HEAVY: 128}
BY_RATIO: Final = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""What ``compress_ratios`` of the published files say of a layer."""


def compressed(reading: Reading) -> Mixers:
    """Return the attention of each layer, and of one behind the last where the file tells it."""
    given = {
        "q_rank": size("q_lora_rank", default=1024)(reading),
        "window": size("sliding_window", default=128, what="rows")(reading),
        "groups": size("o_groups", default=8)(reading),
        "group_rank": size("o_lora_rank", default=1024)(reading),
        "rope": _rotated(reading),
    }
    index = SparseIndex(
        size("index_n_heads", default=64)(reading),
        size("index_head_dim", default=128)(reading),
        size("index_topk", default=512)(reading),
    )
    rates = _rates(reading)

    def mixer(name: str) -> CompressedAttention:
        """Return the mixer of a layer type."""
        return CompressedAttention(**given, stride=rates.get(name), index=index if name == SPARSE else None)

    mixers = tuple(mixer(name) for name in _names(reading))
    return compact(mixers)


def _rotated(reading: Reading) -> int:
    """Return the rotated features of a head: as told, or an eighth."""
    name, value = reading.config.find(("qk_rope_head_dim",))
    if value is not MISSING and value is not None:
        return reading.config.count(name, value, "width")
    return int(reading.fields["head_dim"] * share("partial_rotary_factor", default=64 / 512)(reading))


def _rates(reading: Reading) -> dict[str, int]:
    """Return the tokens of one entry by the layer's kind."""
    rates = dict(RATES)
    for name, short in ((SPARSE, "compress_rate_csa"), (HEAVY, "compress_rate_hca")):
        rates[name] = size(f"compress_rates.{name}", short, default=rates[name])(reading)
    return rates


def _names(reading: Reading) -> list[str]:
    """Return each layer's kind as the file lists it, else two heavy ones and then both by turns."""
    layers = max(0, reading.fields["layers"])
    named = _list(reading, "layer_types", (SLIDING, SPARSE, HEAVY), layers)
    if named is not None:
        return named
    ratios = _list(reading, "compress_ratios", tuple(BY_RATIO), layers)
    if ratios is not None:
        return [BY_RATIO[ratio] for ratio in ratios]
    return [SPARSE if i >= 2 and i % 2 else HEAVY for i in range(layers)]


def _list(reading: Reading, name: str, allowed: tuple[Any, ...], layers: int) -> list[Any] | None:
    _, values = reading.config.find((name,))
    if values is MISSING or values is None:
        return None
    if not isinstance(values, list) or len(values) < layers or any(v not in allowed for v in values):
        reading.config.refuse(name, values, f"one of {', '.join(map(str, allowed))} for each layer")
    return values
