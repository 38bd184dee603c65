"""Zamba2: Mamba-2 layers, some of them behind a transformer block that they share."""

from collections.abc import Mapping
from typing import Final

from meshwright.planner.importers.families_mamba import NO_FEED, hybrid
from meshwright.planner.importers.family import DROPOUT, NO, Family, biases, sizes, tied
from meshwright.planner.importers.layer_types import LINEAR, listed, shortest
from meshwright.planner.importers.rules import Reading, Value, choose, flag, same_as, size, times
from meshwright.planner.recurrent import Mamba2
from meshwright.planner.shared_block import BehindSharedBlock

HYBRID: Final = "hybrid"
_DEFAULT: Final = (
    LINEAR,
    *((LINEAR,) * 5 + (HYBRID,)) * 7,
    *(LINEAR,) * 4,
    HYBRID,
    *(LINEAR,) * 3,
    HYBRID,
    *(LINEAR,) * 2,
)
"""The layers of Zamba2-2.7B, the default of transformers' class whatever their number."""


def _names(reading: Reading) -> tuple[str, ...]:
    """Return the listed layer types; they say how many there are."""
    key, value = reading.config.find(("layers_block_type", "layer_types"))
    if not isinstance(value, list):
        return _DEFAULT
    reading.fields.setdefault("layers", len(value))
    return listed(key, otherwise=lambda r: _DEFAULT)(reading)


def _mamba2(reading: Reading) -> Mamba2:
    heads = size("n_mamba_heads", default=8, what="heads")(reading)
    inner = size("mamba_expand", default=2)(reading) * reading.fields["hidden"]
    if inner % heads:
        reading.config.refuse("n_mamba_heads", heads, f"a divisor of the inner width ({inner})")
    return Mamba2(
        heads,
        inner // heads,
        groups=size("mamba_ngroups", default=1, what="heads")(reading),
        state=size("mamba_d_state", default=64)(reading),
        conv_width=size("mamba_d_conv", default=4)(reading),
        bias=flag("add_bias_linear")(reading),
        chunk=size("chunk_size", default=256)(reading),
    )


def _mixers(reading: Reading) -> Value:
    """Return a mixer for each layer; the first to use each of the blocks owns it."""
    mixer, names = _mamba2(reading), _names(reading)
    unknown = next((n for n in names if n not in (LINEAR, HYBRID)), None)
    if unknown is not None:
        reading.config.refuse("layer type", unknown, f"{LINEAR} (or mamba) or {HYBRID}")
    blocks = size("num_mem_blocks", default=1, what="layers")(reading)
    rank = size("adapter_rank", default=128)(reading)
    adapters = flag("use_shared_attention_adapter")(reading)
    bias = flag("add_bias_linear")(reading)

    def layer(i: int) -> Mamba2 | BehindSharedBlock:
        """Return the mixer of one layer."""
        if names[i] == LINEAR:
            return mixer
        return BehindSharedBlock(mixer, names[:i].count(HYBRID) < blocks, rank, adapters, bias)

    return shortest([layer(i) for i in range(len(names))])


ZAMBA_FAMILIES: Final[Mapping[str, Family]] = {
    "zamba2": hybrid(
        "Zamba2MambaDecoderLayer",
        {
            **sizes(2560, 1, 32, times(same_as("hidden"), 4), 32000, length=4096),
            "layers": lambda r: len(_names(r)),
            "head_dim": lambda r: max(1, 2 * r.fields["hidden"] // max(1, r.fields["heads"])),
            **tied(True),
            **DROPOUT,
            **biases(NO),
            "positions": choose(flag("use_mem_rope"), "rotary", "none"),
            "mixers": _mixers,
            "feeds": NO_FEED,
        },
        ("shared blocks are counted once: stages of a pipeline that share one need a copy each",),
    ),
}
