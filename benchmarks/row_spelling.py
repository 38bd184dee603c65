"""Settings in other people's words, put into the words that the readers of rows know.

A setting's text that begins with a known word stays as it is: sources add remarks behind ("1f1b, non-uniform
stages"); one that does so but for capitals is put into small letters. Of any other the first pattern found
says which known word stands for it; the text stays behind that word, for remarks count. A text without any
pattern is not understood, and the setting counts as not stated.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from benchmarks.rows import Row

KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "tuning": ("full", "lora", "qlora", "adapter"),
    "offload": ("none", "cpu", "checkpoints", "optimizer"),
    "schedule": ("none", "1f1b", "interleaved", "zb", "dualpipe", "gpipe", "v-half", "v-min"),
    "recompute": ("none", "full", "selective"),
}
"""How a setting's text begins where it is understood as it stands."""

_OFF: Final = r"^(no|off|false|disabled?|without|not used|n/a|0)\b"
_PATTERNS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "tuning": (
        (r"q-?lora|4.?bit|nf4", "qlora"),
        (r"lora|dora|peft", "lora"),
        (r"adapter|prefix|prompt", "adapter"),
        (r"pre.?train|\bsft\b|finetun|fine-tun|all|from scratch", "full"),
    ),
    "offload": (
        (_OFF, "none"),
        (r"activation|checkpoint", "checkpoints"),
        (r"optim", "cpu (optimizer)"),
        (r"cpu|host|param|nvme|zero|yes|true|\bon\b", "cpu"),
    ),
    "schedule": (
        (r"interleaved.?(zb|zero)|zero.?bubble.*interleav", "zb-interleaved"),
        (r"zb.?v|zero.?bubble.?v", "zbv"),
        (r"zb|zero.?bubble", "zb-1p"),
        (r"dual.?pipe", "dualpipe"),
        (r"v.?half", "v-half"),
        (r"v.?min", "v-min"),
        (r"interleav|looped|vpp|virtual|circular", "interleaved"),
        (r"1.?f.?1.?b|one.forward|pipedream|dapple|synchronous", "1f1b"),
        (r"g.?pipe|afab|f.?then.?b|all.?forward|fill.?drain", "gpipe"),
        (_OFF, "none"),
    ),
    "recompute": (
        (_OFF, "none"),
        (
            r"every|selective|partial|attn|attention|mlp|norm|moe|\bops?\b|\bsac\b|\d ?%|layers? of",
            "selective",
        ),
        (r"full|block|layer|uniform|yes|true|\bon\b|enabled|checkpoint|recomput|remat|^1$", "full"),
    ),
}
"""Patterns of a text, and the known word; the first found counts."""


def understood(row: Row) -> tuple[Row, tuple[str, ...]]:
    """Return a row with its settings in known words, and what was read into them or not understood."""
    changes: dict[str, str | None] = {}
    notes: tuple[str, ...] = ()
    for name in KNOWN:
        said = getattr(row, name)
        word = None if said is None else spelt(name, said)
        if word == said:
            continue
        changes[name] = word
        notes += (
            f"{name} is {said!r}, " + ("not known: the default" if word is None else f"read as {word}"),
        )
    return (replace(row, **changes), notes) if changes else (row, ())


@lru_cache(maxsize=1024)
def spelt(name: str, said: str) -> str | None:
    """Return a setting's text begun with a known word; None where it is not understood."""
    text = said.strip().lower()
    if text.startswith(KNOWN[name]):
        return said if said.startswith(KNOWN[name]) else text
    word = next((word for pattern, word in _PATTERNS[name] if re.search(pattern, text)), None)
    return None if word is None else word if text in word else f"{word} ({said})"
